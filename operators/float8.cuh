// Eight consecutive elements of a float dtype at a time, as fp32, in 16-byte
// accesses. The dtype is a value: all threads of a launch take the same branch.
#ifndef PLO_OPERATORS_FLOAT8_CUH_
#define PLO_OPERATORS_FLOAT8_CUH_

#include <cstdint>

#include "operators/cuda_util.cuh"

namespace plo {

inline bool IsAligned16(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

__device__ inline float FloatFromBits16(DType dtype, uint32_t bits) {
  if (dtype == DType::kBf16) return __uint_as_float(bits << 16);
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}
__device__ inline uint32_t Bits16FromFloat(DType dtype, float value) {
  if (dtype == DType::kBf16) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
  }
  return __half_as_ushort(__float2half_rn(value));
}

// Element i of an array of `dtype`.
__device__ inline float LoadFloat(DType dtype, const void* data, int64_t i) {
  if (dtype == DType::kFp32) return static_cast<const float*>(data)[i];
  return FloatFromBits16(dtype, static_cast<const uint16_t*>(data)[i]);
}
__device__ inline void StoreFloat(DType dtype, void* data, int64_t i,
                                  float value) {
  if (dtype == DType::kFp32) {
    static_cast<float*>(data)[i] = value;
  } else {
    static_cast<uint16_t*>(data)[i] =
        static_cast<uint16_t>(Bits16FromFloat(dtype, value));
  }
}

// Elements [i, i + 8) of an array that is 16-byte aligned; i % 8 == 0.
__device__ inline void LoadFloat8(DType dtype, const void* data, int64_t i,
                                  float (&x)[8]) {
  if (dtype == DType::kFp32) {
    const float4* at =
        reinterpret_cast<const float4*>(static_cast<const float*>(data) + i);
    const float4 a = at[0];
    const float4 b = at[1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
    x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
    return;
  }
  const uint4 w =
      *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(data) + i);
  const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    x[2 * k] = FloatFromBits16(dtype, words[k] & 0xFFFFu);
    x[2 * k + 1] = FloatFromBits16(dtype, words[k] >> 16);
  }
}
__device__ inline void StoreFloat8(DType dtype, void* data, int64_t i,
                                   const float (&x)[8]) {
  if (dtype == DType::kFp32) {
    float4* at = reinterpret_cast<float4*>(static_cast<float*>(data) + i);
    at[0] = make_float4(x[0], x[1], x[2], x[3]);
    at[1] = make_float4(x[4], x[5], x[6], x[7]);
    return;
  }
  uint32_t words[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    words[k] = Bits16FromFloat(dtype, x[2 * k]) |
               (Bits16FromFloat(dtype, x[2 * k + 1]) << 16);
  }
  *reinterpret_cast<uint4*>(static_cast<uint16_t*>(data) + i) =
      make_uint4(words[0], words[1], words[2], words[3]);
}

}  // namespace plo

#endif  // PLO_OPERATORS_FLOAT8_CUH_
