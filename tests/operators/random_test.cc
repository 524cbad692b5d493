#include "operators/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "operators/float_loops.h"

namespace plo {
namespace {

void ExpectWords(const PhiloxBlock& block, uint32_t a, uint32_t b, uint32_t c,
                 uint32_t d) {
  EXPECT_EQ(block.word[0], a);
  EXPECT_EQ(block.word[1], b);
  EXPECT_EQ(block.word[2], c);
  EXPECT_EQ(block.word[3], d);
}

// The known-answer vectors of the Random123 distribution.
TEST(RandomTest, PhiloxGivesTheKnownAnswers) {
  ExpectWords(Philox(0, 0, 0, 0, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c,
              0x9b00dbd8);
  constexpr uint32_t kOnes = 0xffffffffu;
  ExpectWords(Philox(kOnes, kOnes, kOnes, kOnes, kOnes, kOnes), 0x408f276d,
              0x41c83b0e, 0xa20bc7c6, 0x6d5451fd);
  ExpectWords(Philox(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822,
                     0x299f31d0),
              0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1);
}

TEST(RandomTest, HashIsFnv1a) {
  EXPECT_EQ(HashBytes("", 0), 0xcbf29ce484222325u);
  EXPECT_EQ(HashBytes("a", 1), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(HashBytes("foobar", 6), 0x85944171f73967e8u);
}

TEST(RandomTest, LogIsAccurate) {
  double worst = 0;
  for (int i = 1; i < 1000000; ++i) {
    const float x = static_cast<float>(i) * 1e-6f;
    const double want = std::log(static_cast<double>(x));
    worst = std::max(worst, std::abs(LogOfNormal(x) - want) /
                                std::max(std::abs(want), 1e-30));
  }
  EXPECT_LT(worst, 2 * 0x1p-23);
}

// The pair lies on the circle and angle that the two words name.
TEST(RandomTest, NormalPairMatchesBoxMuller) {
  for (uint32_t i = 0; i < 100000; ++i) {
    const PhiloxBlock words = RandomWords(3, 4, i);
    const NormalPair got = NormalFromWords(words.word[0], words.word[1]);
    const float u =
        std::fma(static_cast<float>(words.word[0] >> 1), 0x1p-31f, 0x1p-32f);
    const double radius = std::sqrt(-2 * std::log(static_cast<double>(u)));
    const double angle = 2 * M_PI * UniformFromWord(words.word[1]);
    ASSERT_NEAR(got.first, radius * std::cos(angle), 1e-6);
    ASSERT_NEAR(got.second, radius * std::sin(angle), 1e-6);
  }
  // The extremes of the first word are finite.
  EXPECT_NEAR(NormalFromWords(0, 0).first, std::sqrt(64 * std::log(2.0)), 1e-5);
  EXPECT_NEAR(NormalFromWords(0xffffffffu, 0).first, 0.0, 1e-4);
}

TEST(RandomTest, LoopsMatchTheScalarFunctions) {
  const FloatLoops& loops = GetFloatLoops();
  for (const int64_t n : {0, 1, 3, 4, 255, 256, 257, 1001}) {
    std::vector<float> uniform(n + 1, 9.0f), normal(n + 1, 9.0f);
    loops.uniform(77, 5, 1000, n, uniform.data());
    loops.normal(77, 5, 1000, n, normal.data());
    for (int64_t e = 0; e < n; ++e) {
      const PhiloxBlock words = RandomWords(77, 5, 1000 + e / 4);
      ASSERT_EQ(uniform[e], UniformFromWord(words.word[e % 4]));
      const int64_t pair = e % 4 / 2 * 2;
      const NormalPair want =
          NormalFromWords(words.word[pair], words.word[pair + 1]);
      ASSERT_EQ(normal[e], e % 2 == 0 ? want.first : want.second);
    }
    EXPECT_EQ(uniform[n], 9.0f);
    EXPECT_EQ(normal[n], 9.0f);
  }
}

TEST(RandomTest, MomentsAreThoseOfTheDistributions) {
  constexpr int64_t kCount = 1 << 20;
  std::vector<float> x(kCount);
  GetFloatLoops().normal(RandomKey(1, 2), 0, 0, kCount, x.data());
  double sum = 0, square = 0, fourth = 0;
  for (float value : x) {
    const double v = value;
    sum += v;
    square += v * v;
    fourth += v * v * v * v;
  }
  EXPECT_NEAR(sum / kCount, 0.0, 5e-3);
  EXPECT_NEAR(square / kCount, 1.0, 7e-3);
  EXPECT_NEAR(fourth / kCount, 3.0, 6e-2);
  GetFloatLoops().uniform(RandomKey(1, 2), 0, 0, kCount, x.data());
  sum = square = 0;
  for (float value : x) {
    sum += value;
    square += static_cast<double>(value) * value;
  }
  EXPECT_NEAR(sum / kCount, 0.5, 2e-3);
  EXPECT_NEAR(square / kCount, 1.0 / 3.0, 2e-3);
}

// Equal shards of samples tile the global batch, whatever the rank count.
TEST(RandomTest, GlobalSamplesTileTheBatch) {
  for (const int ranks : {1, 2, 4}) {
    uint64_t next = 8 * 3 * 5;  // step 5, three micro-steps of 8 samples
    for (int micro = 0; micro < 3; ++micro) {
      for (int rank = 0; rank < ranks; ++rank) {
        for (int64_t b = 0; b < 8 / ranks; ++b) {
          EXPECT_EQ(GlobalSample(5, 3, micro, ranks, rank, 8 / ranks, b),
                    next++);
        }
      }
    }
  }
}

}  // namespace
}  // namespace plo
