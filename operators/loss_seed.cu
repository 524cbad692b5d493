// count_valid, count_elements, loss_seed: one block or thread each, so that the
// host never waits for a count.
#include "operators/row_reduce.cuh"

namespace plo {
namespace {

constexpr int kThreads = 1024;

__global__ void __launch_bounds__(kThreads)
    CountValid(int64_t n, int64_t ignore_index, const int32_t* labels,
               float* count) {
  int64_t valid = 0;
#pragma unroll 8
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    valid += labels[i] != ignore_index;
  }
  valid = RowSum(valid);
  if (threadIdx.x == 0) *count = static_cast<float>(valid);
}

void CountValidKernel(KernelContext& context) {
  const Tensor& labels = context.In("labels");
  CountValid<<<1, kThreads, 0, StreamOf(context)>>>(
      labels.numel, context.attrs().GetInt("ignore_index"),
      labels.as<const int32_t>(), context.Out("count").as<float>());
  CheckLaunch("CountValid");
}

__global__ void StoreValue(float value, float* out) { *out = value; }

void CountElementsKernel(KernelContext& context) {
  StoreValue<<<1, 1, 0, StreamOf(context)>>>(
      static_cast<float>(context.In("x").numel),
      context.Out("count").as<float>());
  CheckLaunch("StoreValue");
}

__global__ void LossSeed(const float* count, const float* scale, float* seed) {
  *seed = (scale == nullptr ? 1.0f : *scale) / fmaxf(*count, 1.0f);
}

void LossSeedKernel(KernelContext& context) {
  const Tensor* scale = context.TryIn("scale");
  LossSeed<<<1, 1, 0, StreamOf(context)>>>(
      context.In("count").as<const float>(),
      scale == nullptr ? nullptr : scale->as<const float>(),
      context.Out("seed").as<float>());
  CheckLaunch("LossSeed");
}

}  // namespace

void RegisterLossSeedCuda(KernelRegistry& kernels) {
  kernels.Register("count_valid", DeviceKind::kCuda, CountValidKernel);
  kernels.Register("count_elements", DeviceKind::kCuda, CountElementsKernel);
  kernels.Register("loss_seed", DeviceKind::kCuda, LossSeedKernel);
}

}  // namespace plo
