// reduce_rows: the gradient of a bias. fp32 sums in two stages.
#include "operators/column_sums.cuh"
#include "operators/rows.h"

namespace plo {
namespace {

constexpr int kAhead = 4;  // rows of a warp under way

template <typename T>
__device__ void AddPack(const uint4& raw, Floats<kPackOf<T>>& sums) {
  T values[kPackOf<T>];
  __builtin_memcpy(values, &raw, sizeof raw);
#pragma unroll
  for (int i = 0; i < kPackOf<T>; ++i) sums.value[i] += ToFloat(values[i]);
}

// Rows past the end are zeros: they change no bit of sums that start at +0.
template <bool kVector, typename T>
__global__ void __launch_bounds__(32 * kColumnWarps, 5)
    SumSlices(int64_t rows, int64_t slice_rows, int64_t n, const T* x,
              float* partials) {
  constexpr int kCount = kPackOf<T>;
  const int64_t column = (int64_t{blockIdx.x} * 32 + threadIdx.x) * kCount;
  const int64_t begin = blockIdx.y * slice_rows;
  const int64_t end = min(rows, begin + slice_rows);
  Floats<kCount> sums = {};
  if (column < n) {
    for (int64_t row = begin + threadIdx.y; row < end;
         row += kAhead * kColumnWarps) {
      uint4 packs[kAhead] = {};
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const int64_t at = row + k * kColumnWarps;
        if (at < end) packs[k] = LoadRawPack<kVector>(x + at * n, column, n);
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k) AddPack<T>(packs[k], sums);
    }
  }
  StoreColumnPartials(sums, n, partials);
}

void ReduceRowsKernel(KernelContext& context) {
  const Tensor& x = context.In("x");
  const Tensor& out = context.Out("out");
  const int64_t n = RowLength(x.shape), rows = RowCount(x.shape);
  if (n == 0) return;
  const ColumnPlan plan = MakeColumnPlan(rows, n, x.dtype);
  float* partials = static_cast<float*>(context.workspace());
  const cudaStream_t stream = StreamOf(context);
  DispatchDeviceFloat(x.dtype, [&](auto type) {
    using T = decltype(type);
    const T* values = x.as<const T>();
    const dim3 grid(static_cast<unsigned>(plan.strips),
                    static_cast<unsigned>(plan.slices));
    const auto kernel = MakeRowAccess<T>(n, values).vector
                            ? SumSlices<true, T>
                            : SumSlices<false, T>;
    kernel<<<grid, dim3(32, kColumnWarps), 0, stream>>>(rows, plan.slice_rows,
                                                        n, values, partials);
    CheckLaunch("SumSlices");
    T* result = out.as<T>();
    const T* acc = context.attrs().GetBool("accumulate") ? result : nullptr;
    LaunchFinishColumns(stream, plan.slices, n, partials, acc, result);
  });
}

}  // namespace

void RegisterReduceRowsCuda(KernelRegistry& kernels) {
  kernels.Register("reduce_rows", DeviceKind::kCuda, ReduceRowsKernel);
}

}  // namespace plo
