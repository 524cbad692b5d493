// sum_squared_error: squares of the fp32 differences summed in double, blocks
// first; and its gradient.
#include "operators/elementwise.cuh"
#include "operators/row_reduce.cuh"

namespace plo {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads)
    SumSquares(RowAccess access, const T* x, const T* y, double* partials) {
  constexpr int kCount = kPackOf<T>;
  double sum = 0;
  const int64_t step = int64_t{gridDim.x} * kThreads * kCount;
#pragma unroll 2
  for (int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kCount;
       at < access.n; at += step) {
    const Floats<kCount> a = LoadRow<kCount>(x, at, access);
    const Floats<kCount> b = LoadRow<kCount>(y, at, access);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const double d = a.value[i] - b.value[i];
      sum += d * d;
    }
  }
  sum = RowSum(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    SumPartials(int64_t count, const double* partials, float* out) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += partials[i];
  sum = RowSum(sum);
  if (threadIdx.x == 0) *out = static_cast<float>(sum);
}

void ForwardKernel(KernelContext& context) {
  const Tensor& x = context.In("x");
  const int64_t blocks = SumBlocks(x.numel);
  auto* partials = static_cast<double*>(context.workspace());
  const cudaStream_t stream = StreamOf(context);
  DispatchDeviceFloat(x.dtype, [&](auto type) {
    using T = decltype(type);
    const T* xs = x.as<const T>();
    const T* ys = context.In("y").as<const T>();
    SumSquares<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
        MakeRowAccess<T>(x.numel, xs, ys), xs, ys, partials);
    CheckLaunch("SumSquares");
  });
  SumPartials<<<1, kThreads, 0, stream>>>(blocks, partials,
                                          context.Out("loss_sum").as<float>());
  CheckLaunch("SumPartials");
}

struct Gradient {
  const float* dloss;
  __device__ float operator()(float x, float y) const {
    return __builtin_fmaf(x - y, 2.0f * *dloss, 0.0f);
  }
};

void BackwardKernel(KernelContext& context) {
  MapBinary(context, context.In("x"), context.In("y"), context.Out("dx"),
            Gradient{context.In("dloss").as<const float>()});
}

}  // namespace

void RegisterSquaredErrorCuda(KernelRegistry& kernels) {
  kernels.Register("sum_squared_error", DeviceKind::kCuda, ForwardKernel);
  kernels.Register("sum_squared_error_grad", DeviceKind::kCuda, BackwardKernel);
}

}  // namespace plo
