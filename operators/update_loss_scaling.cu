// update_loss_scaling on CUDA.
#include "operators/cuda_util.cuh"
#include "operators/step_record.h"
#include "operators/update_loss_scaling.h"

namespace plo {
namespace {

// The outputs are the inputs' bytes.
__global__ void UpdateLossScaleKernel(const float* record, LossScaleRule rule,
                                      float* scale, int32_t* good,
                                      int32_t* bad) {
  LossScale state = {*scale, *good, *bad};
  UpdateLossScale(rule, record[kRecordSkip] != 0.0f, state);
  *scale = state.scale;
  *good = state.good;
  *bad = state.bad;
}

void UpdateKernel(KernelContext& context) {
  UpdateLossScaleKernel<<<1, 1, 0, StreamOf(context)>>>(
      context.In("record").as<const float>(),
      MakeLossScaleRule(context.attrs()), context.Out("scale").as<float>(),
      context.Out("good").as<int32_t>(), context.Out("bad").as<int32_t>());
  CheckLaunch("update_loss_scaling");
}

}  // namespace

void RegisterUpdateLossScalingCuda(KernelRegistry& kernels) {
  kernels.Register("update_loss_scaling", DeviceKind::kCuda, UpdateKernel);
}

}  // namespace plo
