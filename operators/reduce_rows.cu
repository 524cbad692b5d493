// reduce_rows: the gradient of a bias. fp32 sums in two stages.
#include "operators/column_sums.cuh"
#include "operators/rows.h"

namespace plo {
namespace {

template <typename T>
__global__ void __launch_bounds__(32 * kColumnWarps)
    SumSlices(int64_t rows, int64_t slice_rows, RowAccess access, const T* x,
              float* partials) {
  constexpr int kCount = kPackOf<T>;
  const int64_t column = (int64_t{blockIdx.x} * 32 + threadIdx.x) * kCount;
  const int64_t begin = blockIdx.y * slice_rows;
  const int64_t end = min(rows, begin + slice_rows);
  Floats<kCount> sums = {};
  if (column < access.n) {
#pragma unroll 4
    for (int64_t row = begin + threadIdx.y; row < end; row += kColumnWarps) {
      const Floats<kCount> values =
          LoadRow<kCount>(x + row * access.n, column, access);
#pragma unroll
      for (int i = 0; i < kCount; ++i) sums.value[i] += values.value[i];
    }
  }
  StoreColumnPartials(sums, access.n, partials);
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
    SumSlices<<<grid, dim3(32, kColumnWarps), 0, stream>>>(
        rows, plan.slice_rows, MakeRowAccess<T>(n, values), values, partials);
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
