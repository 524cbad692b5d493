// The base and AVX2 versions of FloatLoops agree bit for bit, and the
// approximations keep their error bounds.
#include "operators/float_loops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace plo {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

uint32_t Bits(float x) { return std::bit_cast<uint32_t>(x); }

// NaNs count as equal whatever their payload.
bool SameBits(float a, float b) {
  return Bits(a) == Bits(b) || (std::isnan(a) && std::isnan(b));
}

// Special values, all magnitudes, and the range where activations live.
std::vector<float> Samples() {
  std::vector<float> xs = {0.0f,     -0.0f, 1.0f,   -1.0f,    kInf,
                           -kInf,    kNan,  1e-45f, -1e-40f,  3e38f,
                           -3e38f,   88.0f, -88.0f, 65504.0f, 65520.0f,
                           65519.9f, 6e-8f, 2.9e-8f};
  std::mt19937 rng(7);
  for (int i = 0; i < 20000; ++i)
    xs.push_back(std::bit_cast<float>(static_cast<uint32_t>(rng())));
  std::uniform_real_distribution<float> near(-10.0f, 10.0f);
  for (int i = 0; i < 20000; ++i) xs.push_back(near(rng));
  return xs;
}

// Error of `got` in units of the last place of the fp32 number next to `want`.
double UlpError(float got, double want) {
  const float rounded = static_cast<float>(want);
  const double ulp = std::max<double>(
      std::abs(static_cast<double>(std::nextafter(rounded, kInf) - rounded)),
      std::numeric_limits<float>::min() * 0x1p-23);
  return std::abs(got - want) / ulp;
}

TEST(FloatLoopsTest, VersionsAgreeBitForBit) {
  const FloatLoops* fast = Avx2FloatLoops();
  if (fast == nullptr) GTEST_SKIP() << "this CPU has no AVX2";
  const FloatLoops& base = BaseFloatLoops();
  const std::vector<float> xs = Samples();
  std::vector<float> ys(xs.rbegin(), xs.rend());
  const int64_t n = static_cast<int64_t>(xs.size());
  std::vector<float> a(xs.size()), b(xs.size());
  const auto expect_same = [&](const char* what) {
    for (size_t i = 0; i < xs.size(); ++i) {
      ASSERT_TRUE(SameBits(a[i], b[i]))
          << what << " of " << xs[i] << ", " << ys[i] << ": " << a[i] << " and "
          << b[i];
    }
  };
  using V = FloatLoops;
  for (const auto& [name, member] :
       std::vector<std::pair<const char*, V::Unary V::*>>{
           {"exp", &V::exp},
           {"tanh", &V::tanh},
           {"erf", &V::erf},
           {"relu", &V::relu},
           {"silu", &V::silu},
           {"gelu_tanh", &V::gelu_tanh},
           {"gelu_erf", &V::gelu_erf}}) {
    (base.*member)(xs.data(), n, a.data());
    (fast->*member)(xs.data(), n, b.data());
    expect_same(name);
  }
  for (const auto& [name, member] :
       std::vector<std::pair<const char*, V::Binary V::*>>{
           {"add", &V::add},
           {"sub", &V::sub},
           {"mul", &V::mul},
           {"div", &V::div},
           {"max", &V::max},
           {"relu_grad", &V::relu_grad},
           {"silu_grad", &V::silu_grad},
           {"tanh_grad", &V::tanh_grad},
           {"gelu_tanh_grad", &V::gelu_tanh_grad},
           {"gelu_erf_grad", &V::gelu_erf_grad}}) {
    (base.*member)(xs.data(), ys.data(), n, a.data());
    (fast->*member)(xs.data(), ys.data(), n, b.data());
    expect_same(name);
  }
  base.scale(xs.data(), 0.3f, -1.7f, n, a.data());
  fast->scale(xs.data(), 0.3f, -1.7f, n, b.data());
  expect_same("scale");
  base.normal(11, 5, 64, n, a.data());
  fast->normal(11, 5, 64, n, b.data());
  expect_same("normal");
  base.uniform(11, 5, 64, n, a.data());
  fast->uniform(11, 5, 64, n, b.data());
  expect_same("uniform");
  EXPECT_EQ(base.count_nonfinite(xs.data(), n),
            fast->count_nonfinite(xs.data(), n));
}

TEST(FloatLoopsTest, ResultsDoNotDependOnPositionOrLength) {
  const FloatLoops& kernels = GetFloatLoops();
  const std::vector<float> xs = Samples();
  std::vector<float> whole(xs.size());
  kernels.gelu_tanh(xs.data(), static_cast<int64_t>(xs.size()), whole.data());
  for (int64_t length = 0; length <= 67; ++length) {
    for (const int64_t offset : {0, 1, 5}) {
      std::vector<float> part(static_cast<size_t>(length) + 1, 42.0f);
      kernels.gelu_tanh(xs.data() + offset, length, part.data());
      for (int64_t i = 0; i < length; ++i) {
        ASSERT_TRUE(SameBits(part[i], whole[offset + i]));
      }
      ASSERT_EQ(part[length], 42.0f) << "wrote past the end";
    }
  }
}

// Largest ulp error over a dense sweep.
double WorstUlp(FloatLoops::Unary kernel, double (*reference)(double),
                float low, float high) {
  double worst = 0;
  constexpr int kCount = 200000;
  std::vector<float> xs(kCount), out(kCount);
  for (int i = 0; i < kCount; ++i) {
    xs[i] = low + (high - low) * (static_cast<float>(i) / kCount);
  }
  kernel(xs.data(), kCount, out.data());
  for (int i = 0; i < kCount; ++i) {
    worst = std::max(worst, UlpError(out[i], reference(xs[i])));
  }
  return worst;
}

// Largest error of out relative to max(|x|, 1) in units of 2^-24.
double WorstAbsolute(FloatLoops::Unary kernel, double (*reference)(double)) {
  double worst = 0;
  constexpr int kCount = 400000;
  std::vector<float> xs(kCount), out(kCount);
  for (int i = 0; i < kCount; ++i)
    xs[i] = -20.0f + 40.0f * (static_cast<float>(i) / kCount);
  kernel(xs.data(), kCount, out.data());
  for (int i = 0; i < kCount; ++i) {
    const double scale = std::max(1.0, std::abs(static_cast<double>(xs[i])));
    worst =
        std::max(worst, std::abs(out[i] - reference(xs[i])) / scale * 0x1p24);
  }
  return worst;
}

double GeluTanhReference(double x) {
  return 0.5 * x *
         (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double GeluErfReference(double x) {
  return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
}
double SiluReference(double x) { return x / (1 + std::exp(-x)); }

TEST(FloatLoopsTest, ApproximationsKeepTheirBounds) {
  const FloatLoops& kernels = GetFloatLoops();
  EXPECT_LE(WorstUlp(kernels.exp, std::exp, -86.0f, 88.0f), 2.0);
  EXPECT_LE(WorstUlp(kernels.tanh, std::tanh, -12.0f, 12.0f), 3.0);
  EXPECT_LE(WorstUlp(kernels.tanh, std::tanh, -1e-3f, 1e-3f), 1.0);
  EXPECT_LE(WorstUlp(kernels.erf, std::erf, -6.0f, 6.0f), 3.0);
  EXPECT_LE(WorstUlp(kernels.gelu_tanh, GeluTanhReference, -1.0f, 20.0f), 4.0);
  EXPECT_LE(WorstUlp(kernels.silu, SiluReference, -40.0f, 40.0f), 4.0);
  EXPECT_LE(WorstAbsolute(kernels.gelu_tanh, GeluTanhReference), 3.0);
  EXPECT_LE(WorstAbsolute(kernels.gelu_erf, GeluErfReference), 2.0);
}

TEST(FloatLoopsTest, SumsUseFixedLanes) {
  const FloatLoops& kernels = GetFloatLoops();
  std::vector<float> xs(1003);
  for (size_t i = 0; i < xs.size(); ++i) xs[i] = 0.1f * static_cast<float>(i);
  double lanes[8] = {}, squares[8] = {}, expected[8] = {}, squared[8] = {};
  kernels.sum(xs.data(), 1003, lanes);
  kernels.sum_squares(xs.data(), 1003, squares);
  for (size_t i = 0; i < xs.size(); ++i) {
    expected[i % 8] += xs[i];
    squared[i % 8] += static_cast<double>(xs[i]) * xs[i];
  }
  for (int lane = 0; lane < 8; ++lane) {
    EXPECT_EQ(lanes[lane], expected[lane]);
    EXPECT_EQ(squares[lane], squared[lane]);
  }
}

TEST(FloatLoopsTest, CountsInfinitiesAndNans) {
  std::vector<float> xs(10001, 1.0f);
  xs[0] = kInf;
  xs[77] = -kInf;
  xs[10000] = kNan;
  xs[5] = std::numeric_limits<float>::max();
  EXPECT_EQ(GetFloatLoops().count_nonfinite(xs.data(), 10001), 3);
  EXPECT_EQ(GetFloatLoops().count_nonfinite(xs.data() + 1, 76), 0);
}

}  // namespace
}  // namespace plo
