#include "operators/vector_ops.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "framework/ir/float16.h"

namespace plo {
namespace {

std::vector<const VectorOps*> Builds() {
  std::vector<const VectorOps*> builds = {&PortableVectorOps()};
  if (Avx2VectorOps() != nullptr) builds.push_back(Avx2VectorOps());
  return builds;
}

bool SameBits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

TEST(VectorOps, WidensEvery16BitPattern) {
  std::vector<uint16_t> bits(65536 + 5);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  std::vector<float> out(bits.size());
  const int64_t n = static_cast<int64_t>(bits.size());
  for (const VectorOps* ops : Builds()) {
    ops->bf16_to_float(bits.data(), out.data(), n);
    for (size_t i = 0; i < bits.size(); ++i) {
      ASSERT_TRUE(SameBits(out[i], Bf16BitsToFloat(bits[i]))) << i;
    }
    ops->fp16_to_float(bits.data(), out.data(), n);
    for (size_t i = 0; i < bits.size(); ++i) {
      ASSERT_TRUE(SameBits(out[i], Fp16BitsToFloat(bits[i]))) << i;
    }
  }
}

TEST(VectorOps, NarrowsLikeTheScalarConversions) {
  std::mt19937 engine(7);
  std::vector<float> x(200003);
  for (float& v : x) v = std::bit_cast<float>(static_cast<uint32_t>(engine()));
  // Around the fp16 range: ties, subnormals, the overflow threshold.
  for (size_t i = 0; i < 100000; ++i) {
    const uint32_t low = static_cast<uint32_t>(engine()) & 0x3FFFu;
    const uint32_t high = 0x32000000u + (static_cast<uint32_t>(i) << 12);
    x[i] = std::bit_cast<float>((high & 0x4FFFE000u) | low |
                                (static_cast<uint32_t>(i % 2) << 31));
  }
  std::vector<uint16_t> out(x.size());
  const int64_t n = static_cast<int64_t>(x.size());
  for (const VectorOps* ops : Builds()) {
    ops->float_to_bf16(x.data(), out.data(), n);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(out[i], FloatToBf16Bits(x[i])) << x[i];
    }
    ops->float_to_fp16(x.data(), out.data(), n);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(out[i], FloatToFp16Bits(x[i])) << x[i];
    }
  }
}

TEST(VectorOps, ExpIsAccurateAndTotal) {
  std::vector<float> x;
  for (float v = -103.5f; v < 88.7f; v += 0.0137f) x.push_back(v);
  const size_t finite = x.size();
  const float inf = std::numeric_limits<float>::infinity();
  for (float v : {-inf, inf, std::nanf(""), -200.0f, 200.0f, 0.0f}) {
    x.push_back(v);
  }
  std::vector<float> y(x.size());
  for (const VectorOps* ops : Builds()) {
    ops->exp(x.data(), y.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < finite; ++i) {
      const double want = std::exp(static_cast<double>(x[i]));
      ASSERT_NEAR(y[i], want, 3e-7 * want + 2e-45) << x[i];
    }
    EXPECT_EQ(y[finite], 0.0f);
    EXPECT_EQ(y[finite + 1], inf);
    EXPECT_TRUE(std::isnan(y[finite + 2]));
    EXPECT_EQ(y[finite + 3], 0.0f);
    EXPECT_EQ(y[finite + 4], inf);
    EXPECT_EQ(y[finite + 5], 1.0f);
  }
}

TEST(VectorOps, BuildsAgreeBitForBitAtEveryLength) {
  if (Avx2VectorOps() == nullptr) GTEST_SKIP() << "this CPU has no AVX2";
  const VectorOps& a = PortableVectorOps();
  const VectorOps& b = *Avx2VectorOps();
  std::mt19937 engine(3);
  std::normal_distribution<float> normal;
  for (int64_t n = 0; n < 70; ++n) {
    std::vector<float> x(70), y(70), z(70), out_a(70, 9.0f), out_b(70, 9.0f);
    for (auto* v : {&x, &y, &z}) {
      for (float& e : *v) e = normal(engine);
    }
    EXPECT_TRUE(SameBits(a.max(x.data(), n), b.max(x.data(), n)));
    EXPECT_TRUE(SameBits(a.sum(x.data(), n), b.sum(x.data(), n)));
    EXPECT_TRUE(
        SameBits(a.dot(x.data(), y.data(), n), b.dot(x.data(), y.data(), n)));
    EXPECT_TRUE(SameBits(a.sum_squares_about(x.data(), 0.3f, n),
                         b.sum_squares_about(x.data(), 0.3f, n)));
    EXPECT_TRUE(SameBits(a.exp_sum(x.data(), 0.3f, out_a.data(), n),
                         b.exp_sum(x.data(), 0.3f, out_b.data(), n)));
    EXPECT_EQ(out_a, out_b);
    EXPECT_TRUE(SameBits(a.exp_sum_only(x.data(), 0.3f, n),
                         b.exp_sum(x.data(), 0.3f, out_b.data(), n)));
    a.softmax_backward(x.data(), y.data(), 0.2f, 0.7f, out_a.data(), n);
    b.softmax_backward(x.data(), y.data(), 0.2f, 0.7f, out_b.data(), n);
    EXPECT_EQ(out_a, out_b);
    a.mul_add(x.data(), y.data(), z.data(), out_a.data(), n);
    b.mul_add(x.data(), y.data(), z.data(), out_b.data(), n);
    EXPECT_EQ(out_a, out_b);
    a.axpy(x.data(), 0.7f, out_a.data(), n);
    b.axpy(x.data(), 0.7f, out_b.data(), n);
    EXPECT_EQ(out_a, out_b);
    // Nothing past the end.
    for (size_t i = static_cast<size_t>(n); i < 70; ++i) {
      EXPECT_EQ(out_a[i], 9.0f);
    }
  }
}

TEST(VectorOps, ReductionsMatchDouble) {
  std::vector<float> x(1000);
  double sum = 0, squares = 0;
  std::mt19937 engine(5);
  std::normal_distribution<float> normal;
  for (float& v : x) {
    v = normal(engine);
    sum += v;
    squares += (v - 0.5) * (v - 0.5);
  }
  EXPECT_NEAR(Vec().sum(x.data(), 1000), sum, 1e-4);
  EXPECT_NEAR(Vec().sum_squares_about(x.data(), 0.5f, 1000), squares, 1e-2);
  EXPECT_EQ(Vec().max(x.data(), 0), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(Vec().sum(x.data(), 0), 0.0f);
}

}  // namespace
}  // namespace plo
