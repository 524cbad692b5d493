// slice_micro: a copy of the current micro-step's part of a feed.
#include "operators/cuda_util.cuh"

namespace plo {
namespace {

void SliceMicroKernel(KernelContext& context) {
  const Tensor& x = context.In("x");
  const Tensor& out = context.Out("out");
  const int64_t micro = context.step().micro_index;
  PLO_ENFORCE(micro < x.shape[0], kInternal, Describe(context.op()),
              ": micro-step ", micro, " of a feed of ", x.shape[0]);
  const int64_t bytes = out.numel * SizeOf(out.dtype);
  if (bytes == 0) return;
  CheckCuda(cudaMemcpyAsync(out.data, x.as<const char>() + micro * bytes,
                            static_cast<size_t>(bytes),
                            cudaMemcpyDeviceToDevice, StreamOf(context)),
            "cudaMemcpyAsync");
}

}  // namespace

void RegisterSliceMicroCuda(KernelRegistry& kernels) {
  kernels.Register("slice_micro", DeviceKind::kCuda, SliceMicroKernel);
}

}  // namespace plo
