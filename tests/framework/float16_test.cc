#include "framework/ir/float16.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace plo {
namespace {

// Rounds `value` to a multiple of the spacing of a format with `mantissa` bits
// and smallest normal exponent `min_exponent`, ties to even, in double.
double RoundTo(double value, int mantissa, int min_exponent) {
  if (value == 0 || !std::isfinite(value)) return value;
  int exponent = 0;
  std::frexp(value, &exponent);  // value in [2^(exponent-1), 2^exponent)
  const int scale = std::max(exponent - 1, min_exponent) - mantissa;
  return std::ldexp(std::nearbyint(std::ldexp(value, -scale)), scale);
}

// Every fp32 exponent with mantissas around all rounding boundaries.
template <typename Check>
void ForInterestingFloats(Check check) {
  for (uint32_t exponent = 0; exponent < 256; ++exponent) {
    for (uint32_t high = 0; high < 1u << 10; high += 7) {
      for (uint32_t low : {0u, 1u, 0x0FFFu, 0x1000u, 0x1001u, 0x1FFFu}) {
        const uint32_t bits = exponent << 23 | high << 13 | low;
        check(std::bit_cast<float>(bits));
        check(std::bit_cast<float>(bits | 0x80000000u));
      }
    }
  }
  for (uint32_t high = 0; high < 1u << 16; ++high) {
    for (uint32_t low : {0u, 0x7FFFu, 0x8000u, 0x8001u}) {
      check(std::bit_cast<float>(high << 16 | low));
    }
  }
}

TEST(Float16Test, FloatToFp16RoundsToNearestEven) {
  ForInterestingFloats([](float value) {
    const float back = Fp16BitsToFloat(FloatToFp16Bits(value));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(back));
      return;
    }
    double want = RoundTo(value, 10, -14);
    if (std::abs(want) > 65504) {
      want = std::copysign(std::numeric_limits<double>::infinity(), want);
    }
    ASSERT_EQ(back, want) << value;
    ASSERT_EQ(std::signbit(back), std::signbit(value)) << value;
  });
}

TEST(Float16Test, FloatToBf16RoundsToNearestEven) {
  ForInterestingFloats([](float value) {
    const float back = Bf16BitsToFloat(FloatToBf16Bits(value));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(back));
      return;
    }
    double want = RoundTo(value, 7, -126);
    if (std::abs(want) > 0x1.FEp127) {
      want = std::copysign(std::numeric_limits<double>::infinity(), want);
    }
    ASSERT_EQ(back, want) << value;
    ASSERT_EQ(std::signbit(back), std::signbit(value)) << value;
  });
}

TEST(Float16Test, EverySixteenBitPatternSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 1u << 16; ++bits) {
    const auto pattern = static_cast<uint16_t>(bits);
    const bool fp16_nan = (bits & 0x7FFFu) > 0x7C00u;
    const uint16_t fp16_want = fp16_nan ? bits | 0x0200u : bits;
    ASSERT_EQ(FloatToFp16Bits(Fp16BitsToFloat(pattern)), fp16_want) << bits;
    const bool bf16_nan = (bits & 0x7FFFu) > 0x7F80u;
    const uint16_t bf16_want = bf16_nan ? bits | 0x0040u : bits;
    ASSERT_EQ(FloatToBf16Bits(Bf16BitsToFloat(pattern)), bf16_want) << bits;
  }
}

}  // namespace
}  // namespace plo
