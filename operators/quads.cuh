// Elements of a float dtype, as fp32: one, or four consecutive ones at a time.
// The dtype is a value: all threads of a launch take the same branch.
#ifndef PLO_OPERATORS_QUADS_CUH_
#define PLO_OPERATORS_QUADS_CUH_

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

// Elements [at, at + 4) of an array that is 16-byte aligned, at % 4 == 0, as
// they come: words, or 16 bits each in the first two.
__device__ inline uint4 LoadQuad(DType dtype, const void* data, int64_t at) {
  if (dtype == DType::kFp32) {
    return *reinterpret_cast<const uint4*>(static_cast<const float*>(data) +
                                           at);
  }
  const uint2 two =
      *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(data) + at);
  return make_uint4(two.x, two.y, 0, 0);
}
__device__ inline float4 FloatsOfQuad(DType dtype, const uint4& raw) {
  if (dtype == DType::kFp32) {
    return make_float4(__uint_as_float(raw.x), __uint_as_float(raw.y),
                       __uint_as_float(raw.z), __uint_as_float(raw.w));
  }
  return make_float4(FloatFromBits16(dtype, raw.x & 0xFFFFu),
                     FloatFromBits16(dtype, raw.x >> 16),
                     FloatFromBits16(dtype, raw.y & 0xFFFFu),
                     FloatFromBits16(dtype, raw.y >> 16));
}
__device__ inline void StoreQuad(DType dtype, void* data, int64_t at,
                                 const float4& x) {
  if (dtype == DType::kFp32) {
    *reinterpret_cast<float4*>(static_cast<float*>(data) + at) = x;
    return;
  }
  *reinterpret_cast<uint2*>(static_cast<uint16_t*>(data) + at) = make_uint2(
      Bits16FromFloat(dtype, x.x) | (Bits16FromFloat(dtype, x.y) << 16),
      Bits16FromFloat(dtype, x.z) | (Bits16FromFloat(dtype, x.w) << 16));
}

}  // namespace plo

#endif  // PLO_OPERATORS_QUADS_CUH_
