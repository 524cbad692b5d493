#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/operators/gradient_check.h"
#include "tests/operators/op_harness.h"
#include "tests/operators/reference.h"

namespace plo::testing {
namespace {

using ::testing::HasSubstr;

class NormTest : public ::testing::TestWithParam<DType> {};

TEST_P(NormTest, SoftmaxMatchesPlainLoops) {
  const DType t = GetParam();
  for (const Shape& shape :
       {Shape{3, 1}, Shape{2, 3, 33}, Shape{2, 2500}, Shape{0, 4}, Shape{5}}) {
    const Array x = RandomArray(t, shape, 1, -8, 8);
    for (bool inplace : {false, true}) {
      const Array out = RunOp({.type = "softmax",
                               .inputs = {{"x", {x}}},
                               .outputs = {"out"},
                               .inplace = inplace})["out"][0];
      ExpectNear(out, ReferenceSoftmax(x.values, shape.dim(-1)).out,
                 UnitRoundoff(t) + 2e-6, t == DType::kFp16 ? 0x1p-25 : 1e-30,
                 "softmax");
    }
  }
}

TEST_P(NormTest, SoftmaxGradMatchesPlainLoops) {
  const DType t = GetParam();
  for (int64_t n : {1, 12, 33, 2500}) {
    const Array out =
        RandomArray(t, {3, n}, 1, 0, 2.0 / static_cast<double>(n));
    const Array dout = RandomArray(t, {3, n}, 2);
    Doubles want(out.values.size());
    for (int64_t r = 0; r < 3; ++r) {
      double delta = 0;
      for (int64_t j = r * n; j < (r + 1) * n; ++j) delta += out[j] * dout[j];
      for (int64_t j = r * n; j < (r + 1) * n; ++j) {
        want[static_cast<size_t>(j)] = out[j] * (dout[j] - delta);
      }
    }
    for (bool inplace : {false, true}) {
      const Array dx = RunOp({.type = "softmax_grad",
                              .inputs = {{"out", {out}}, {"dout", {dout}}},
                              .outputs = {"dx"},
                              .inplace = inplace})["dx"][0];
      ExpectNear(dx, want, UnitRoundoff(t),
                 2e-6 / static_cast<double>(n) + 0x1p-25, "softmax_grad");
    }
  }
}

TEST(Softmax, IsExactAtInfinities) {
  const double inf = std::numeric_limits<double>::infinity();
  const Array x = MakeArray(DType::kFp32, {2, 3}, {-inf, 0, -inf, 1, -inf, 1});
  const Array out = RunOp({.type = "softmax",
                           .inputs = {{"x", {x}}},
                           .outputs = {"out"}})["out"][0];
  EXPECT_EQ(out.values, (Doubles{0, 1, 0, 0.5, 0, 0.5}));
}

TEST(Softmax, GradientMatchesFiniteDifferences) {
  CheckGradient({.type = "softmax",
                 .inputs = {{"x", {RandomArray(DType::kFp32, {3, 7}, 1)}}},
                 .outputs = {"out"}},
                {"x"}, {"out"});
}

TEST_P(NormTest, LayerNormMatchesPlainLoops) {
  const DType t = GetParam();
  for (const Shape& shape :
       {Shape{4, 1}, Shape{2, 3, 36}, Shape{2, 2500}, Shape{0, 4}, Shape{5, 33},
        Shape{9, 768}, Shape{3, 8192}, Shape{2, 17000}}) {
    const int64_t n = shape.dim(-1);
    const Array x = RandomArray(t, shape, 1, -2, 4);
    const Array weight = RandomArray(t, {n}, 2, 0.5, 1.5);
    const Array bias = RandomArray(t, {n}, 3);
    for (int form = 0; form < 4; ++form) {
      OpCase c{.type = "layer_norm",
               .inputs = {{"x", {x}}},
               .outputs = {"out", "mean", "rstd"},
               .attrs = Attrs({{"eps", 1e-5}}),
               .inplace = form % 2 == 1};
      const bool has_weight = form >= 1, has_bias = form >= 2;
      if (has_weight) c.inputs.push_back({"weight", {weight}});
      if (has_bias) c.inputs.push_back({"bias", {bias}});
      SlotArrays got = RunOp(c);
      const LayerNormResult want =
          ReferenceLayerNorm(x.values, has_weight ? weight.values : Doubles{},
                             has_bias ? bias.values : Doubles{}, n, 1e-5);
      // A row of one element is all rounding error times a large rstd.
      ExpectNear(got["out"][0], want.out, UnitRoundoff(t), 2e-5, "layer_norm");
      ExpectNear(got["mean"][0], want.mean, 1e-6, 1e-6, "mean");
      ExpectNear(got["rstd"][0], want.rstd, 1e-5, 0, "rstd");
    }
  }
}

TEST_P(NormTest, AddLayerNormHasTheBitsOfItsParts) {
  const DType t = GetParam();
  for (int64_t n : {33, 1500, 2048, 17000}) {
    const Array x = RandomArray(t, {5, n}, 1);
    const Array residual = RandomArray(t, {5, n}, 2);
    const Array weight = RandomArray(t, {n}, 3);
    const Array bias = RandomArray(t, {n}, 4);
    Doubles sum(x.values.size());
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] = static_cast<float>(x.values[i]) +
               static_cast<float>(residual.values[i]);
    }
    const Array rounded = MakeArray(t, {5, n}, sum);
    SlotArrays parts = RunOp(
        {.type = "layer_norm",
         .inputs = {{"x", {rounded}}, {"weight", {weight}}, {"bias", {bias}}},
         .outputs = {"out", "mean", "rstd"}});
    for (bool inplace : {false, true}) {
      SlotArrays fused = RunOp({.type = "add_layer_norm",
                                .inputs = {{"x", {x}},
                                           {"residual", {residual}},
                                           {"weight", {weight}},
                                           {"bias", {bias}}},
                                .outputs = {"sum", "out", "mean", "rstd"},
                                .inplace = inplace});
      ExpectSame(fused["sum"][0], rounded, "sum");
      for (const char* slot : {"out", "mean", "rstd"}) {
        ExpectSame(fused[slot][0], parts[slot][0], slot);
      }
    }
  }
}

TEST(LayerNorm, GradientMatchesFiniteDifferences) {
  for (const Shape& shape : {Shape{4, 5}, Shape{2, 2, 3}}) {
    const int64_t n = shape.dim(-1);
    OpCase c{.type = "layer_norm",
             .inputs = {{"x", {RandomArray(DType::kFp32, shape, 1, -2, 2)}},
                        {"weight", {RandomArray(DType::kFp32, {n}, 2)}},
                        {"bias", {RandomArray(DType::kFp32, {n}, 3)}}},
             .outputs = {"out", "mean", "rstd"}};
    CheckGradient(c, {"x", "weight", "bias"}, {"out"}, 5e-3, 6e-3);
    CheckGradient(c, {"weight"}, {"out"});
    c.inputs.resize(1);
    CheckGradient(c, {"x"}, {"out"}, 5e-3, 6e-3);
  }
}

TEST_P(NormTest, LayerNormGradMatchesPlainLoops) {
  const DType t = GetParam();
  for (int64_t n : {36, 768, 2500, 5120, 8200}) {
    const int64_t rows = 70;
    const Array x = RandomArray(t, {rows, n}, 1, -2, 2);
    const Array weight = RandomArray(t, {n}, 2);
    const Array dout = RandomArray(t, {rows, n}, 3);
    const LayerNormResult norm = ReferenceLayerNorm(x.values, {}, {}, n, 1e-5);
    const Array mean = MakeArray(DType::kFp32, {rows}, norm.mean);
    const Array rstd = MakeArray(DType::kFp32, {rows}, norm.rstd);
    Doubles dx(x.values.size()), dweight(static_cast<size_t>(n)),
        dbias(static_cast<size_t>(n));
    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0, dot = 0;
      for (int64_t j = 0; j < n; ++j) {
        const size_t i = static_cast<size_t>(r * n + j);
        const double g = dout.values[i] * weight[j];
        sum += g;
        dot += g * norm.out[i];
        dweight[static_cast<size_t>(j)] += dout.values[i] * norm.out[i];
        dbias[static_cast<size_t>(j)] += dout.values[i];
      }
      for (int64_t j = 0; j < n; ++j) {
        const size_t i = static_cast<size_t>(r * n + j);
        dx[i] = norm.rstd[static_cast<size_t>(r)] *
                (dout.values[i] * weight[j] - sum / static_cast<double>(n) -
                 norm.out[i] * dot / static_cast<double>(n));
      }
    }
    for (bool inplace : {false, true}) {
      SlotArrays got = RunOp({.type = "layer_norm_grad",
                              .inputs = {{"x", {x}},
                                         {"weight", {weight}},
                                         {"mean", {mean}},
                                         {"rstd", {rstd}},
                                         {"dout", {dout}}},
                              .outputs = {"dx", "dweight", "dbias"},
                              .inplace = inplace});
      ExpectNear(got["dx"][0], dx, UnitRoundoff(t), 1e-5, "dx");
      ExpectNear(got["dweight"][0], dweight, UnitRoundoff(t), 1e-4, "dweight");
      ExpectNear(got["dbias"][0], dbias, UnitRoundoff(t), 1e-4, "dbias");
    }
  }
}

TEST_P(NormTest, LayerNormGradAddsAResidualWithTheBitsOfAnAdd) {
  const DType t = GetParam();
  for (int64_t n : {1, 36, 768, 2048, 2500, 8200}) {
    SCOPED_TRACE(n);
    const Shape shape{70, n};
    const Array weight = RandomArray(t, {n}, 2);
    const Array dresidual = RandomArray(t, shape, 4);
    OpCase c{.type = "layer_norm_grad",
             .inputs = {{"x", {RandomArray(t, shape, 1, -2, 2)}},
                        {"weight", {weight}},
                        {"mean", {RandomArray(DType::kFp32, {70}, 5)}},
                        {"rstd", {RandomArray(DType::kFp32, {70}, 6, 0.5, 2)}},
                        {"dout", {RandomArray(t, shape, 3)}}},
             .outputs = {"dx", "dweight", "dbias"}};
    for (const bool columns : {true, false}) {
      if (!columns) c.outputs = {"dx"};
      c.inplace = false;
      c.same_var.clear();
      SlotArrays want = RunOp(c);
      want["dx"] = RunOp({.type = "add",
                          .inputs = {{"x", {dresidual}}, {"y", want["dx"]}},
                          .outputs = {"out"}})["out"];
      OpCase fused = c;
      fused.inputs.push_back({"dresidual", {dresidual}});
      for (const char* shared : {"", "dout", "dresidual"}) {
        SCOPED_TRACE(shared);
        fused.inplace = shared == std::string("dout");
        fused.same_var.clear();
        if (shared == std::string("dresidual")) {
          fused.same_var = {{"dx", "dresidual"}};
        }
        SlotArrays got = RunOp(fused);
        for (const std::string& slot : c.outputs) {
          ExpectSame(got[slot][0], want[slot][0], slot);
        }
      }
    }
  }
}

TEST(LayerNorm, AResidualGradNeedsADx) {
  const Array x = RandomArray(DType::kFp32, {4, 8}, 1);
  const Array row = RandomArray(DType::kFp32, {4}, 2);
  OpCase c{.type = "layer_norm_grad",
           .inputs = {{"x", {x}},
                      {"mean", {row}},
                      {"rstd", {row}},
                      {"dout", {x}},
                      {"dresidual", {x}}},
           .outputs = {"dbias"}};
  EXPECT_THAT(ErrorOf(c), HasSubstr("dresidual is given, but no dx"));
  c.outputs = {"dx"};
  c.inputs.back().second = {RandomArray(DType::kFp32, {8}, 1)};
  EXPECT_THAT(ErrorOf(c),
              HasSubstr("dresidual has shape [8], expected [4, 8]"));
}

// On a GPU: widths on both sides of those that a block takes at once, by packs
// and value by value.
TEST_P(NormTest, LayerNormHasTheSameBitsAtAnyAddress) {
  if (TestDevice() != DeviceKind::kCuda) {
    GTEST_SKIP() << "about kernels of a GPU: set PLO_TEST_DEVICE=cuda";
  }
  const DType t = GetParam();
  for (const int64_t n :
       {1, 7, 256, 520, 768, 1000, 2048, 4096, 5120, 8192, 8200, 17000}) {
    SCOPED_TRACE(n);
    // More than the groups of all blocks.
    const int64_t rows = n <= 2048 ? 1100 : 140;
    const Shape shape{rows, n};
    const Array x = RandomArray(t, shape, 1, -2, 4);
    const Array other = RandomArray(t, shape, 2);
    const Array weight = RandomArray(t, {n}, 3, 0.5, 1.5);
    const Array bias = RandomArray(t, {n}, 4);
    const Array mean = RandomArray(DType::kFp32, {rows}, 5);
    const Array rstd = RandomArray(DType::kFp32, {rows}, 6, 0.5, 1.5);
    const std::vector<std::pair<std::string, Arrays>> grad = {
        {"x", {x}}, {"mean", {mean}}, {"rstd", {rstd}}, {"dout", {other}}};
    auto weighted = grad;
    weighted.push_back({"weight", {weight}});
    auto residual = weighted;
    residual.push_back({"dresidual", {x}});
    for (OpCase c : {OpCase{.type = "layer_norm",
                    .inputs = {{"x", {x}}, {"bias", {bias}}},
                    .outputs = {"out", "mean", "rstd"}},
                     OpCase{.type = "add_layer_norm",
                     .inputs = {{"x", {x}},
                                {"residual", {other}},
                                {"weight", {weight}},
                                {"bias", {bias}}},
                     .outputs = {"sum", "out", "mean", "rstd"},
                     .inplace = true},
                     OpCase{.type = "layer_norm_grad",
                     .inputs = weighted,
                     .outputs = {"dx", "dweight", "dbias"},
                     .inplace = true},
                     OpCase{.type = "layer_norm_grad",
                     .inputs = residual,
                     .outputs = {"dx", "dweight", "dbias"},
                     .inplace = true},
                     OpCase{.type = "layer_norm_grad",
                     .inputs = grad,
                     .outputs = {"dx", "dbias"}},
                     OpCase{.type = "layer_norm_grad",
                     .inputs = grad,
                     .outputs = {"dweight", "dbias"}}}) {
      SlotArrays want = RunOp(c);
      c.misalign = 1;
      SlotArrays got = RunOp(c);
      for (const std::string& slot : c.outputs) {
        ExpectSame(got[slot][0], want[slot][0], c.type + " " + slot);
      }
    }
  }
}

TEST_P(NormTest, LayerNormGradOfNoRowsIsZero) {
  const DType t = GetParam();
  SlotArrays got =
      RunOp({.type = "layer_norm_grad",
             .inputs = {{"x", {RandomArray(t, {0, 40}, 1)}},
                        {"mean", {RandomArray(DType::kFp32, {0}, 2)}},
                        {"rstd", {RandomArray(DType::kFp32, {0}, 3)}},
                        {"dout", {RandomArray(t, {0, 40}, 4)}}},
             .outputs = {"dx", "dweight", "dbias"}});
  EXPECT_EQ(got["dweight"][0].values, Doubles(40, 0.0));
  EXPECT_EQ(got["dbias"][0].values, Doubles(40, 0.0));
}

TEST(LayerNorm, ErrorsNameOpVarsAndShapes) {
  EXPECT_THAT(
      ErrorOf({.type = "layer_norm",
               .inputs = {{"x", {RandomArray(DType::kFp32, {4, 8}, 1)}},
                          {"weight", {RandomArray(DType::kFp32, {4}, 2)}}},
               .outputs = {"out", "mean", "rstd"}}),
      ::testing::AllOf(HasSubstr("op 'layer_norm'"),
                       HasSubstr("weight has shape [4], expected [8]"),
                       HasSubstr("x = fp32 [4, 8] 'x'")));
}

INSTANTIATE_TEST_SUITE_P(DTypes, NormTest,
                         ::testing::Values(DType::kFp32, DType::kBf16,
                                           DType::kFp16),
                         [](const auto& test) {
                           return std::string(DTypeName(test.param));
                         });

}  // namespace
}  // namespace plo::testing
