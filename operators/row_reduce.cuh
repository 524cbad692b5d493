// Reductions over the threads that share a row, in a fixed order.
#ifndef PLO_OPERATORS_ROW_REDUCE_CUH_
#define PLO_OPERATORS_ROW_REDUCE_CUH_

#include <cstdint>

#include "operators/cuda_util.cuh"
#include "operators/gpu_layout.h"

namespace plo {

inline dim3 BlockOf(const RowLayout& layout) {
  return dim3(static_cast<unsigned>(layout.threads),
              static_cast<unsigned>(layout.rows));
}

template <typename V>
__device__ inline V ShuffleXor(const V& value, int mask) {
  static_assert(sizeof(V) % 4 == 0);
  constexpr int kWords = sizeof(V) / 4;
  uint32_t words[kWords];
  __builtin_memcpy(words, &value, sizeof(V));
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    words[i] = __shfl_xor_sync(0xFFFFFFFFu, words[i], mask);
  }
  V result;
  __builtin_memcpy(&result, words, sizeof(V));
  return result;
}

// Combines `value` over the threads of a row of blockDim.x threads, a multiple
// of 32, and gives all of them the result. All threads of the block must call
// it. `op` must be commutative bit for bit.
template <typename V, typename Op>
__device__ inline V RowReduce(V value, const Op& op) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    value = op(value, ShuffleXor(value, mask));
  }
  if (blockDim.x == 32) return value;
  __shared__ V parts[32];
  const int warps = static_cast<int>(blockDim.x) / 32;
  V* row = parts + threadIdx.y * warps;
  __syncthreads();  // the parts of the last call are read
  if (threadIdx.x % 32 == 0) row[threadIdx.x / 32] = value;
  __syncthreads();
  V total = row[0];
  for (int i = 1; i < warps; ++i) total = op(total, row[i]);
  return total;
}

struct SumOp {
  template <typename V>
  __device__ V operator()(V a, V b) const {
    return a + b;
  }
};
struct MaxOp {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

template <typename V>
__device__ inline V RowSum(V value) {
  return RowReduce(value, SumOp{});
}

}  // namespace plo

#endif  // PLO_OPERATORS_ROW_REDUCE_CUH_
