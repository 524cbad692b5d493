// bf16 and fp16 as storage types, with scalar conversions to and from fp32.
//
// Conversions to 16 bits round to nearest, ties to even; fp16 has subnormals
// and overflows to infinity. NaN stays NaN: quiet, sign and upper payload bits
// kept, which is also what the F16C and AVX512_BF16 instructions give, so
// scalar and vector kernels agree bit for bit.
#ifndef PLO_FRAMEWORK_IR_FLOAT16_H_
#define PLO_FRAMEWORK_IR_FLOAT16_H_

#include <bit>
#include <cstdint>

namespace plo {

inline float Bf16BitsToFloat(uint16_t bits) {
  uint32_t wide = static_cast<uint32_t>(bits) << 16;
  const bool nan = (wide & 0x7FFFFFFFu) > 0x7F800000u;
  return std::bit_cast<float>(nan ? wide | 0x00400000u : wide);
}

inline uint16_t FloatToBf16Bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  const uint32_t rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);
  return static_cast<uint16_t>(nan ? (bits >> 16) | 0x0040u : rounded >> 16);
}

inline float Fp16BitsToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7FFFu;
  if (magnitude > 0x7C00u) {
    return std::bit_cast<float>(sign | 0x7FC00000u | (magnitude << 13));
  }
  if (magnitude == 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u);
  if (magnitude >= 0x0400u) {
    return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
  }
  // Subnormal: magnitude * 2^-24 is exact in fp32.
  const float value = static_cast<float>(magnitude) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
}

inline uint16_t FloatToFp16Bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    return static_cast<uint16_t>(sign | 0x7E00u |
                                 ((magnitude >> 13) & 0x03FFu));
  }
  // 65520 is halfway between the largest fp16 and 2^16.
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5 leaves the rounded multiple of 2^-24 in the low
    // mantissa bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(
        sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u));
  }
  const uint32_t rounded = magnitude + 0x0FFFu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

struct BFloat16 {
  uint16_t bits;
};

struct Float16 {
  uint16_t bits;
};

// One spelling for kernels templated on the element type.
inline float ToFloat(float value) { return value; }
inline float ToFloat(BFloat16 value) { return Bf16BitsToFloat(value.bits); }
inline float ToFloat(Float16 value) { return Fp16BitsToFloat(value.bits); }

template <typename T>
T FromFloat(float value);
template <>
inline float FromFloat<float>(float value) {
  return value;
}
template <>
inline BFloat16 FromFloat<BFloat16>(float value) {
  return BFloat16{FloatToBf16Bits(value)};
}
template <>
inline Float16 FromFloat<Float16>(float value) {
  return Float16{FloatToFp16Bits(value)};
}

}  // namespace plo

#endif  // PLO_FRAMEWORK_IR_FLOAT16_H_
