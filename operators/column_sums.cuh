// Sums of the columns of a matrix in two stages; see ColumnPlan.
#ifndef PLO_OPERATORS_COLUMN_SUMS_CUH_
#define PLO_OPERATORS_COLUMN_SUMS_CUH_

#include <cstdint>

#include "operators/gpu_layout.h"
#include "operators/packs.cuh"

namespace plo {

inline constexpr int kColumnWarps = 8;  // of a block, which share out the rows

// Adds up what the warps of a block hold of their strip, in order, and writes
// it to partials[slice].
template <int kCount>
__device__ inline void StoreColumnPartials(const Floats<kCount>& sums,
                                           int64_t n, float* partials) {
  __shared__ float parts[kColumnWarps][32 * kCount];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    parts[threadIdx.y][threadIdx.x * kCount + i] = sums.value[i];
  }
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.y * 32 + threadIdx.x);
  for (int i = thread; i < 32 * kCount; i += 32 * kColumnWarps) {
    const int64_t column = int64_t{blockIdx.x} * 32 * kCount + i;
    if (column >= n) return;
    float total = parts[0][i];
#pragma unroll
    for (int warp = 1; warp < kColumnWarps; ++warp) total += parts[warp][i];
    partials[blockIdx.y * n + column] = total;
  }
}

// out = the sum of `count` rows of partials, plus acc unless null.
template <typename T>
__global__ void __launch_bounds__(32 * kColumnWarps)
    FinishColumns(int64_t count, int64_t n, const float* partials, const T* acc,
                  T* out) {
  __shared__ float parts[kColumnWarps][32];
  const int64_t column = int64_t{blockIdx.x} * 32 + threadIdx.x;
  float sum = 0.0f;
  if (column < n) {
#pragma unroll 8
    for (int64_t i = threadIdx.y; i < count; i += kColumnWarps) {
      sum += partials[i * n + column];
    }
  }
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || column >= n) return;
  float total = parts[0][threadIdx.x];
#pragma unroll
  for (int warp = 1; warp < kColumnWarps; ++warp) {
    total += parts[warp][threadIdx.x];
  }
  if (acc != nullptr) total += ToFloat(acc[column]);
  out[column] = FromFloat<T>(total);
}

template <typename T>
void LaunchFinishColumns(cudaStream_t stream, int64_t count, int64_t n,
                         const float* partials, const T* acc, T* out) {
  FinishColumns<<<static_cast<unsigned>(DivideUp(n, 32)),
                  dim3(32, kColumnWarps), 0, stream>>>(count, n, partials, acc,
                                                       out);
  CheckLaunch("FinishColumns");
}

}  // namespace plo

#endif  // PLO_OPERATORS_COLUMN_SUMS_CUH_
