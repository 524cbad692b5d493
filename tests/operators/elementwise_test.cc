#include <cmath>

#include "tests/operators/gradient_check.h"
#include "tests/operators/test_util.h"

namespace plo::testing {
namespace {

OpCase Binary(const std::string& type, Array x, Array y) {
  OpCase c;
  c.type = type;
  c.inputs = {{"x", {std::move(x)}}, {"y", {std::move(y)}}};
  c.outputs = {"out"};
  return c;
}

double Reference(const std::string& type, double x, double y) {
  if (type == "add") return x + y;
  if (type == "sub") return x - y;
  if (type == "mul") return x * y;
  return x / y;
}

const char* const kBinaryOps[] = {"add", "sub", "mul", "div"};

// Index into a tensor of `shape` of the element that broadcasts to `index` of
// `out`.
int64_t BroadcastIndex(const Shape& shape, const Shape& out, int64_t index) {
  int64_t result = 0, stride = 1;
  for (int i = 1; i <= out.rank(); ++i) {
    const int64_t at = index % out.dim(-i);
    index /= out.dim(-i);
    if (i > shape.rank()) continue;
    if (shape.dim(-i) != 1) result += at * stride;
    stride *= shape.dim(-i);
  }
  return result;
}

struct Shapes {
  Shape x, y;
};

class BinaryTest : public ::testing::TestWithParam<Shapes> {};

TEST_P(BinaryTest, MatchesTheReference) {
  const auto& [xs, ys] = GetParam();
  const Shape shape = BroadcastShapes(xs, ys);
  for (const DType dtype : kFloatTypes) {
    for (const std::string type : kBinaryOps) {
      const Array x = RandomArray(dtype, xs, 1);
      const Array y = RandomArray(dtype, ys, 2, 0.5, 2);
      const Array out = RunOp(Binary(type, x, y))["out"][0];
      EXPECT_EQ(out.shape, shape);
      std::vector<double> want(static_cast<size_t>(shape.numel()));
      for (int64_t i = 0; i < shape.numel(); ++i) {
        want[static_cast<size_t>(i)] =
            Reference(type, x[BroadcastIndex(xs, shape, i)],
                      y[BroadcastIndex(ys, shape, i)]);
      }
      ExpectNear(out, want, RelativeBound(dtype), kAbsoluteBound, type);
    }
  }
}

TEST_P(BinaryTest, GradientsMatchDifferences) {
  const auto& [xs, ys] = GetParam();
  if (xs.numel() > 1000 || xs.numel() == 0) return;
  for (const std::string type : kBinaryOps) {
    CheckGradient(Binary(type, RandomArray(DType::kFp32, xs, 3),
                         RandomArray(DType::kFp32, ys, 4, 0.8, 2)),
                  {"x", "y"}, {"out"});
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, BinaryTest,
    ::testing::Values(Shapes{{3, 5}, {3, 5}}, Shapes{{7, 33}, {33}},
                      Shapes{{7, 33}, {7, 1}}, Shapes{{1}, {4, 3}},
                      Shapes{{2, 1, 5}, {3, 1}}, Shapes{{4, 1}, {1, 5}},
                      Shapes{{}, {2, 2}}, Shapes{{0, 3}, {3}},
                      Shapes{{2, 3, 1, 5}, {3, 4, 1}},
                      Shapes{{70, 1001}, {1001}}));

TEST(ElementwiseTest, OutputMayTakeAnInputsBytes) {
  for (const std::string type : kBinaryOps) {
    OpCase c = Binary(type, RandomArray(DType::kBf16, {9, 130}, 1),
                      RandomArray(DType::kBf16, {9, 130}, 2, 1, 2));
    const Array apart = RunOp(c)["out"][0];
    c.inplace = true;
    ExpectSame(RunOp(c)["out"][0], apart, type);
  }
}

TEST(ElementwiseTest, ThreadsDoNotMatter) {
  ExpectSameForAnyThreads(Binary("add",
                                 RandomArray(DType::kBf16, {257, 301}, 1),
                                 RandomArray(DType::kBf16, {301}, 2)));
}

TEST(ElementwiseTest, BadOperandsAreNamed) {
  const Array x = RandomArray(DType::kFp32, {2, 3}, 1);
  EXPECT_THAT(ErrorOf(Binary("add", x, RandomArray(DType::kFp32, {4}, 1))),
              ::testing::HasSubstr("[2, 3]"));
  EXPECT_THAT(ErrorOf(Binary("mul", x, RandomArray(DType::kBf16, {3}, 1))),
              ::testing::HasSubstr("bf16"));
  EXPECT_THAT(ErrorOf(Binary("mul", RandomInts(DType::kInt32, {3}, 1, 0, 5),
                             RandomInts(DType::kInt32, {3}, 1, 0, 5))),
              ::testing::HasSubstr("float"));
}

TEST(ScaleTest, MultipliesAndAdds) {
  for (const DType dtype : kFloatTypes) {
    OpCase c;
    c.type = "scale";
    c.inputs = {{"x", {RandomArray(dtype, {5, 7}, 1)}}};
    c.outputs = {"out"};
    c.attrs = Attrs({{"factor", 0.75}, {"bias", -0.5}});
    const Array out = RunOp(c)["out"][0];
    std::vector<double> want;
    for (double v : c.inputs[0].second[0].values)
      want.push_back(v * 0.75 - 0.5);
    ExpectNear(out, want, RelativeBound(dtype), kAbsoluteBound, "scale");
    if (dtype == DType::kFp32) CheckGradient(c, {"x"}, {"out"});
  }
}

// --- Activations ---

OpCase Activation(const std::string& type, Array x) {
  OpCase c;
  c.type = type;
  if (type == "gelu_erf") {
    c.type = "gelu";
    c.attrs = Attrs({{"approximate", Str("erf")}});
  }
  c.inputs = {{"x", {std::move(x)}}};
  c.outputs = {"out"};
  return c;
}

double ActivationReference(const std::string& type, double x) {
  if (type == "relu") return x > 0 ? x : 0;
  if (type == "silu") return x / (1 + std::exp(-x));
  if (type == "tanh") return std::tanh(x);
  if (type == "gelu_erf") return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
  const double inner = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1 + std::tanh(inner));
}

class ActivationTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ActivationTest, MatchesTheReference) {
  const std::string type = GetParam();
  for (const DType dtype : kFloatTypes) {
    for (const Shape& shape :
         {Shape{0}, Shape{1}, Shape{3, 67}, Shape{40000}}) {
      const Array x = RandomArray(dtype, shape, 1, -6, 6);
      std::vector<double> want;
      for (double v : x.values) want.push_back(ActivationReference(type, v));
      ExpectNear(RunOp(Activation(type, x))["out"][0], want,
                 RelativeBound(dtype, 4), 1e-6, type);
    }
  }
}

TEST_P(ActivationTest, GradientsMatchDifferences) {
  // Away from the kink of relu.
  Array x = RandomArray(DType::kFp32, {4, 33}, 2, 0.1, 4);
  for (size_t i = 0; i < x.values.size(); i += 2) x.values[i] = -x.values[i];
  x = MakeArray(DType::kFp32, x.shape, x.values);
  CheckGradient(Activation(GetParam(), x), {"x"}, {"out"});
}

// dx in 16 bits is the fp32 gradient at the rounded input, rounded once.
TEST_P(ActivationTest, GradientRoundsOnce) {
  const std::string type = GetParam();
  const Array x = RandomArray(DType::kBf16, {501}, 3, -5, 5);
  const Array dout = RandomArray(DType::kBf16, {501}, 4);
  const Array dx = RunGrad(Activation(type, x), {{"out", dout}}, {"x"})["x"];
  std::vector<double> want;
  for (int64_t i = 0; i < 501; ++i) {
    constexpr double h = 1e-5;
    const double slope = (ActivationReference(type, x[i] + h) -
                          ActivationReference(type, x[i] - h)) /
                         (2 * h);
    want.push_back(slope * dout[i]);
  }
  ExpectNear(dx, want, RelativeBound(DType::kBf16, 64), 1e-6, type);
}

// The gradient op's own forward output has the bits of the forward op, whatever
// bytes the two outputs take.
TEST_P(ActivationTest, GradientGivesTheOutputToo) {
  for (const DType dtype : kFloatTypes) {
    for (const Shape& shape :
         {Shape{0}, Shape{1}, Shape{3, 67}, Shape{40000}}) {
      SCOPED_TRACE(StrCat(dtype, " ", shape));
      OpCase c = Activation(GetParam(), RandomArray(dtype, shape, 1, -6, 6));
      const Array want = RunOp(c)["out"][0];
      c.type += "_grad";
      c.inputs.push_back({"dout", {RandomArray(dtype, shape, 2)}});
      c.outputs = {"dx"};
      const Array dx = RunOp(c)["dx"][0];
      c.outputs = {"dx", "out"};
      const auto expect_both = [&] {
        SlotArrays got = RunOp(c);
        ExpectSame(got["dx"][0], dx, "dx");
        ExpectSame(got["out"][0], want, "out");
      };
      expect_both();
      c.misalign = 1;
      expect_both();
      c.inplace = true;  // dx in dout, out in x
      expect_both();
      c.misalign = 0;
      expect_both();
      c.inplace = false;
      c.same_var = {{"dx", "x"}};
      expect_both();
    }
  }
}

TEST_P(ActivationTest, ExtremesAreFiniteAndNanStays) {
  const double kNan = std::nan("");
  const Array x = MakeArray(DType::kFp32, {6}, {-1e4, 1e4, 0, -60, 60, kNan});
  const Array dout = MakeArray(DType::kFp32, {6}, {1, 1, 1, 1, 1, 1});
  const OpCase c = Activation(GetParam(), x);
  const Array out = RunOp(c)["out"][0];
  const Array dx = RunGrad(c, {{"out", dout}}, {"x"})["x"];
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(out[i], ActivationReference(GetParam(), x[i]), 1e-6);
    EXPECT_TRUE(std::isfinite(dx[i])) << i;
  }
  EXPECT_TRUE(std::isnan(out[5]));
}

INSTANTIATE_TEST_SUITE_P(All, ActivationTest,
                         ::testing::Values("gelu", "gelu_erf", "relu", "silu",
                                           "tanh"));

TEST(ActivationErrorTest, UnknownApproximation) {
  OpCase c = Activation("gelu", RandomArray(DType::kFp32, {3}, 1));
  c.attrs = Attrs({{"approximate", Str("sigmoid")}});
  EXPECT_THAT(ErrorOf(c), ::testing::HasSubstr("sigmoid"));
}

}  // namespace
}  // namespace plo::testing
