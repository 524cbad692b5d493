// What the kernels of layer_norm.cu and layer_norm_grad.cu share.
//
// A row that fits two packs a thread (NormLayout, NormGradLayout) is read once.
// Its fast kernel takes aligned packs; another does the same sums in the same
// order for rows at any address and of any length.
#ifndef PLO_OPERATORS_LAYER_NORM_CUH_
#define PLO_OPERATORS_LAYER_NORM_CUH_

#include <cstdint>
#include <type_traits>

#include "operators/packs.cuh"

namespace plo {

inline constexpr int kNormPacks = 2;  // of a thread

// The kernel of layer_norm_grad.
void LayerNormGradCuda(KernelContext& context);

// First column of this thread's pack `p`.
template <typename T>
__device__ inline int64_t NormColumn(int64_t p) {
  return (p * blockDim.x + threadIdx.x) * kPackOf<T>;
}

// A pack as fp32, two values of 16 bits at a time.
template <typename T>
__device__ inline Floats<kPackOf<T>> Unpack(const uint4& raw) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
  Floats<kPackOf<T>> x;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      x.value[i] = __uint_as_float(words[i]);
    } else if constexpr (std::is_same_v<T, __half>) {
      __half2 pair;
      __builtin_memcpy(&pair, &words[i], sizeof pair);
      const float2 two = __half22float2(pair);
      x.value[2 * i] = two.x;
      x.value[2 * i + 1] = two.y;
    } else {
      x.value[2 * i] = __uint_as_float(words[i] << 16);
      x.value[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
    }
  }
  return x;
}

// Rounded to nearest even.
template <typename T>
__device__ inline uint4 Pack(const Floats<kPackOf<T>>& x) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      words[i] = __float_as_uint(x.value[i]);
    } else if constexpr (std::is_same_v<T, __half>) {
      const __half2 pair =
          __floats2half2_rn(x.value[2 * i], x.value[2 * i + 1]);
      __builtin_memcpy(&words[i], &pair, sizeof pair);
    } else {
      const __nv_bfloat162 pair =
          __floats2bfloat162_rn(x.value[2 * i], x.value[2 * i + 1]);
      __builtin_memcpy(&words[i], &pair, sizeof pair);
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// x + y rounded to T, as a separate add stores it.
template <typename T>
__device__ inline uint4 RoundedSum(const uint4& x, const uint4& y) {
  Floats<kPackOf<T>> sum = Unpack<T>(x);
  const Floats<kPackOf<T>> other = Unpack<T>(y);
#pragma unroll
  for (int i = 0; i < kPackOf<T>; ++i) sum.value[i] += other.value[i];
  return Pack<T>(sum);
}

// Keeps the compiler from holding the fp32 values of a pack in registers from
// one use to the next.
__device__ inline void Forget(uint4& raw) {
  asm volatile("" : "+r"(raw.x), "+r"(raw.y), "+r"(raw.z), "+r"(raw.w));
}

// Ones where a row is null.
template <bool kVector, typename T>
__device__ inline uint4 LoadWeights(const T* row, int64_t column, int64_t n) {
  if (row != nullptr) return LoadRawPack<kVector>(row, column, n);
  Floats<kPackOf<T>> ones;
#pragma unroll
  for (float& one : ones.value) one = 1.0f;
  return Pack<T>(ones);
}

template <bool kVector, typename T>
__device__ inline void StoreRawPack(const uint4& raw, T* row, int64_t column,
                                    int64_t n) {
  if constexpr (kVector) {
    if (column < n) *reinterpret_cast<uint4*>(row + column) = raw;
  } else {
    T values[kPackOf<T>];
    __builtin_memcpy(values, &raw, sizeof raw);
#pragma unroll
    for (int i = 0; i < kPackOf<T>; ++i) {
      if (column + i < n) row[column + i] = values[i];
    }
  }
}

// Whatever the access, for kernels of any row.
template <typename T>
__device__ inline uint4 LoadAny(const T* row, int64_t column,
                                const RowAccess& access) {
  if (access.vector) return LoadRawPack<true>(row, column, access.n);
  return LoadRawPack<false>(row, column, access.n);
}
template <typename T>
__device__ inline void StoreAny(const uint4& raw, T* row, int64_t column,
                                const RowAccess& access) {
  if (access.vector) return StoreRawPack<true>(raw, row, column, access.n);
  StoreRawPack<false>(raw, row, column, access.n);
}

// Sums over the blockDim.x threads of each row of a block, in a fixed order.
// Two calls in a row must name different slots (0, 1), so that one barrier a
// call suffices. kGroups: rows of several warps each share the block, and
// each waits for its own threads alone.
template <int kValues, bool kGroups>
struct RowSums {
  // Of each warp, a multiple of four for each row.
  float4 parts[2][kValues][8];

  __device__ inline void Sum(float (&values)[kValues], int slot) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
#pragma unroll
      for (float& value : values) {
        value += __shfl_xor_sync(0xFFFFFFFFu, value, mask);
      }
    }
    if (blockDim.x == 32) return;
    const int warps = static_cast<int>(blockDim.x) / 32;
    const int quads = (warps + 3) / 4;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int first = static_cast<int>(threadIdx.y) * quads;
    // The last warp writes the zeros behind its part too.
    const int count = warp + 1 == warps ? quads * 4 - warp : 1;
    if (lane < count) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        reinterpret_cast<float*>(parts[slot][i] + first)[warp + lane] =
            lane == 0 ? values[i] : 0.0f;
      }
    }
    if constexpr (kGroups) {
      asm volatile("bar.sync %0, %1;" ::"r"(threadIdx.y + 1), "r"(blockDim.x)
                   : "memory");
    } else {
      __syncthreads();
    }
#pragma unroll
    for (float& value : values) value = 0.0f;
    for (int q = 0; q < quads; ++q) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        const float4 four = parts[slot][i][first + q];
        values[i] += (four.x + four.y) + (four.z + four.w);
      }
    }
  }
};

}  // namespace plo

#endif  // PLO_OPERATORS_LAYER_NORM_CUH_
