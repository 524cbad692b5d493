#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>

#include "operators/linear_cross_entropy_plan.h"
#include "operators/onednn_matmul.h"
#include "operators/register_ops.h"
#include "tests/operators/gradient_check.h"
#include "tests/operators/op_harness.h"
#include "tests/operators/reference.h"

namespace plo::testing {
namespace {

using ::testing::HasSubstr;

// One OpenMP thread while it lives.
struct OmpOneThread {
  OmpOneThread() : kept(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OmpOneThread() { omp_set_num_threads(kept); }
  int kept;
};

// Random labels of which every third is ignored.
Array Labels(Shape shape, int64_t classes, double ignored = -100) {
  Array labels = RandomInts(DType::kInt32, std::move(shape), 7, 0, classes);
  for (size_t i = 2; i < labels.values.size(); i += 3) {
    labels.values[i] = ignored;
  }
  return labels;
}

class CrossEntropyTest : public ::testing::TestWithParam<DType> {};

TEST_P(CrossEntropyTest, MatchesPlainLoops) {
  const DType t = GetParam();
  for (int64_t classes : {1, 7, 257, 2500}) {
    const Array logits = RandomArray(t, {2, 5, classes}, 1, -6, 6);
    const Array labels = Labels({2, 5}, classes);
    SlotArrays got =
        RunOp({.type = "cross_entropy",
               .inputs = {{"logits", {logits}}, {"labels", {labels}}},
               .outputs = {"loss_sum", "lse"}});
    const CrossEntropyResult want =
        ReferenceCrossEntropy(logits.values, labels.values, classes, -100);
    ExpectNear(got["loss_sum"][0], {want.loss}, 1e-6, 1e-5, "loss_sum");
    ExpectNear(got["lse"][0], want.lse, 1e-6, 1e-6, "lse");

    const Array lse = MakeArray(DType::kFp32, {2, 5}, want.lse);
    Doubles dlogits = ReferenceSoftmax(logits.values, classes).out;
    for (size_t i = 0; i < labels.values.size(); ++i) {
      for (int64_t j = 0; j < classes; ++j) {
        double& d =
            dlogits[i * static_cast<size_t>(classes) + static_cast<size_t>(j)];
        if (labels.values[i] == static_cast<double>(j)) d -= 1;
        d = labels.values[i] < 0 ? 0 : d * 0.25;
      }
    }
    for (bool inplace : {false, true}) {
      const Array got_grad =
          RunOp({.type = "cross_entropy_grad",
                 .inputs = {{"logits", {logits}},
                            {"labels", {labels}},
                            {"lse", {lse}},
                            {"dloss", {ScalarArray(DType::kFp32, 0.25)}}},
                 .outputs = {"dlogits"},
                 .inplace = inplace})["dlogits"][0];
      ExpectNear(got_grad, dlogits, UnitRoundoff(t) + 2e-6, 1e-7, "dlogits");
    }
  }
}

TEST(CrossEntropy, GradientMatchesFiniteDifferences) {
  CheckGradient(
      {.type = "cross_entropy",
       .inputs = {{"logits", {RandomArray(DType::kFp32, {6, 5}, 1, -2, 2)}},
                  {"labels", {Labels({6}, 5, 3)}}},
       .outputs = {"loss_sum", "lse"},
       .attrs = Attrs({{"ignore_index", int64_t{3}}})},
      {"logits"}, {"loss_sum"});
}

TEST(CrossEntropy, IgnoresEveryRowOrNone) {
  const Array logits = RandomArray(DType::kFp32, {2, 3}, 1);
  const Array labels = MakeArray(DType::kInt32, {2}, {-100, -100});
  EXPECT_EQ(RunOp({.type = "cross_entropy",
                   .inputs = {{"logits", {logits}}, {"labels", {labels}}},
                   .outputs = {"loss_sum", "lse"}})["loss_sum"][0]
                .values,
            Doubles{0});
  EXPECT_EQ(
      RunOp({.type = "cross_entropy",
             .inputs = {{"logits", {RandomArray(DType::kFp32, {0, 3}, 1)}},
                        {"labels", {MakeArray(DType::kInt32, {0}, {})}}},
             .outputs = {"loss_sum", "lse"}})["loss_sum"][0]
          .values,
      Doubles{0});
}

TEST(CrossEntropy, Errors) {
  const Array logits = RandomArray(DType::kFp32, {6, 256}, 1);
  Array labels = RandomInts(DType::kInt32, {6}, 2, 0, 256);
  labels.values[5] = 300;
  const OpCase c{.type = "cross_entropy",
                 .inputs = {{"logits", {logits}}, {"labels", {labels}}},
                 .outputs = {"loss_sum", "lse"}};
  EXPECT_THAT(
      RunErrorOf(c),
      HasSubstr("InvalidArgument: label 300 at position 5 is out of range "
                "[0, 256)"));
  EXPECT_THAT(ErrorOf({.type = "cross_entropy",
                       .inputs = {{"logits", {logits}},
                                  {"labels",
                                   {RandomInts(DType::kInt32, {5}, 2, 0, 9)}}},
                       .outputs = {"loss_sum", "lse"}}),
              HasSubstr("labels has shape [5], expected [6]"));
  EXPECT_THAT(
      ErrorOf({.type = "cross_entropy",
               .inputs = {{"logits", {logits}},
                          {"labels", {RandomArray(DType::kFp32, {6}, 2)}}},
               .outputs = {"loss_sum", "lse"}}),
      HasSubstr("labels must be int32, not fp32"));
}

// --- linear_cross_entropy ---

struct Linear {
  Array x, weight, labels;
};
Linear MakeLinear(DType t, int64_t tokens, int64_t classes, int64_t hidden) {
  return {RandomArray(t, {tokens, hidden}, 1),
          RandomArray(t, {classes, hidden}, 2), Labels({tokens}, classes)};
}
OpCase LinearCase(const Linear& o, int64_t chunk_tokens = 0) {
  return {
      .type = "linear_cross_entropy",
      .inputs = {{"x", {o.x}}, {"weight", {o.weight}}, {"labels", {o.labels}}},
      .outputs = {"loss_sum", "lse"},
      .attrs = Attrs({{"chunk_tokens", chunk_tokens}})};
}

TEST_P(CrossEntropyTest, LinearFormHasTheBitsOfItsParts) {
  const DType t = GetParam();
  OmpOneThread one_thread;  // the split of a product's depth is its own
  // oneDNN's primitive and cuBLASLt may sum logits in another order.
  const bool exact = TestDevice() == DeviceKind::kCpu && !UsesOnednnMatmul(t);
  const double u = exact ? 0 : UnitRoundoff(t);
  const int64_t sizes[][3] = {{1, 1, 1}, {5, 257, 12}, {70, 1300, 33}};
  for (const auto& [tokens, classes, hidden] : sizes) {
    const Linear o = MakeLinear(t, tokens, classes, hidden);
    const Array logits = RunOp({.type = "matmul",
                                .inputs = {{"x", {o.x}}, {"y", {o.weight}}},
                                .outputs = {"out"},
                                .attrs = Attrs({{"trans_y", true}})})["out"][0];
    const OpCase unfused{
        .type = "cross_entropy",
        .inputs = {{"logits", {logits}}, {"labels", {o.labels}}},
        .outputs = {"loss_sum", "lse"}};
    SlotArrays want = RunOp(unfused);
    const Array dloss = ScalarArray(DType::kFp32, 0.25);
    const Array dlogits =
        RunGrad(unfused, {{"loss_sum", dloss}}, {"logits"})["logits"];
    const Array dx = RunOp({.type = "matmul",
                            .inputs = {{"x", {dlogits}}, {"y", {o.weight}}},
                            .outputs = {"out"}})["out"][0];
    const Array dweight =
        RunOp({.type = "matmul",
               .inputs = {{"x", {dlogits}}, {"y", {o.x}}},
               .outputs = {"out"},
               .attrs = Attrs({{"trans_x", true}})})["out"][0];
    for (int64_t chunk : {0, 16}) {
      SlotArrays got = RunOp(LinearCase(o, chunk));
      if (exact) {
        ExpectSame(got["lse"][0], want["lse"][0], "lse");
        ExpectSame(got["loss_sum"][0], want["loss_sum"][0], "loss_sum");
      }
      ExpectNear(got["lse"][0], want["lse"][0].values, 2e-6, u / 64 + 1e-6,
                 "lse");
      ExpectNear(got["loss_sum"][0], want["loss_sum"][0].values, 2e-6 + u / 64,
                 1e-5, "loss_sum");
      auto grads =
          RunGrad(LinearCase(o, chunk), {{"loss_sum", dloss}}, {"x", "weight"});
      // Sums over blocks of classes or tokens associate otherwise.
      ExpectNear(grads["x"], dx.values, 2 * UnitRoundoff(t), u / 16 + 1e-6,
                 "dx");
      ExpectNear(grads["weight"], dweight.values, 2 * UnitRoundoff(t),
                 u / 16 + 1e-6, "dweight");
    }
  }
}

// Many blocks of classes or tokens against plain loops on whole logits.
TEST_P(CrossEntropyTest, CutLinearFormMatchesPlainLoops) {
  const DType t = GetParam();
  const int64_t tokens = 30, classes = 1000, hidden = 24;
  const Linear o = MakeLinear(t, tokens, classes, hidden);
  Doubles logits = ReferenceMatmul(o.x.values.data(), o.weight.values.data(),
                                   false, true, tokens, classes, hidden);
  for (double& v : logits) v = RoundTo(t, v);
  const CrossEntropyResult want =
      ReferenceCrossEntropy(logits, o.labels.values, classes, -100);
  Doubles dlogits = ReferenceSoftmax(logits, classes).out;
  for (size_t i = 0; i < dlogits.size(); ++i) {
    const double label = o.labels.values[i / static_cast<size_t>(classes)];
    if (label == static_cast<double>(i % static_cast<size_t>(classes))) {
      dlogits[i] -= 1;
    }
    dlogits[i] = label < 0 ? 0 : RoundTo(t, dlogits[i] * 0.5);
  }
  const Doubles dx = ReferenceMatmul(dlogits.data(), o.weight.values.data(),
                                     false, false, tokens, hidden, classes);
  const Doubles dweight = ReferenceMatmul(dlogits.data(), o.x.values.data(),
                                          true, false, classes, hidden, tokens);
  // A logit may fall on the other side of a rounding boundary.
  const double u = UnitRoundoff(t);
  for (int64_t chunk : {0, 4, 7}) {
    const OpCase c = LinearCase(o, chunk);
    SlotArrays got = RunOp(c);
    ExpectNear(got["loss_sum"][0], {want.loss}, 2e-6 + u / 64, 1e-4, "loss");
    ExpectNear(got["lse"][0], want.lse, 2e-6 + u / 64, 1e-5, "lse");
    auto grads = RunGrad(c, {{"loss_sum", ScalarArray(DType::kFp32, 0.5)}},
                         {"x", "weight"});
    ExpectNear(grads["x"], dx, 2 * u, u / 16 + 1e-5, "dx");
    ExpectNear(grads["weight"], dweight, 2 * u, u / 16 + 1e-5, "dweight");
  }
}

TEST(LinearCrossEntropy, CudaPlanIsSmallBesideAModel) {
  for (int64_t tokens : {4096, 8192}) {
    LinearCrossEntropyBlocks blocks(DType::kBf16, tokens, 50304, 2048, 0);
    EXPECT_LE(tokens * blocks.pitch * 2, int64_t{160} << 20);
    // The last block is not a sliver.
    const int64_t tail = 50304 % blocks.class_block;
    EXPECT_TRUE(tail == 0 || tail > blocks.class_block / 2) << tail;
    blocks.LayOutBackward(true);
    EXPECT_LE(blocks.total_bytes, int64_t{260} << 20);
  }
  // chunk_tokens bounds the logits; one block needs no sums of dx.
  const LinearCrossEntropyBlocks cut(DType::kBf16, 64, 1000, 16, 16);
  EXPECT_EQ(cut.class_block, 128);
  EXPECT_TRUE(cut.sums_dx());
  LinearCrossEntropyBlocks whole(DType::kBf16, 64, 1000, 16, 0);
  EXPECT_EQ(whole.class_block, 1000);
  whole.LayOutBackward(true);
  EXPECT_EQ(whole.total_bytes, 64 * 1000 * 2);
}

TEST_P(CrossEntropyTest, LinearFormAccumulatesTheWeightGrad) {
  const DType t = GetParam();
  const Linear o = MakeLinear(t, 9, 300, 12);
  const Array dloss = ScalarArray(DType::kFp32, 1.0);
  const Array lse = RunOp(LinearCase(o))["lse"][0];
  const Array acc = RandomArray(t, o.weight.shape, 5);
  OpCase c{.type = "linear_cross_entropy_grad",
           .inputs = {{"x", {o.x}},
                      {"weight", {o.weight}},
                      {"labels", {o.labels}},
                      {"lse", {lse}},
                      {"dloss", {dloss}}},
           .outputs = {"dweight"},
           .attrs = Attrs({{"chunk_tokens", int64_t{4}}})};
  const Array plain = RunOp(c)["dweight"][0];
  c.inputs.push_back({"acc", {acc}});
  c.attrs.Set("accumulate", true);
  c.same_var = {{"dweight", "acc"}};
  const Array sum = RunOp(c)["dweight"][0];
  Doubles want(acc.values.size());
  for (size_t i = 0; i < want.size(); ++i) {
    want[i] = acc.values[i] + plain.values[i];
  }
  // `plain` was rounded once itself.
  double largest = 0;
  for (double v : plain.values) largest = std::max(largest, std::abs(v));
  ExpectNear(sum, want, UnitRoundoff(t), UnitRoundoff(t) * largest + 1e-6,
             "accumulated dweight");
}

// dx beyond what one sweep keeps: two sweeps over the classes.
TEST(LinearCrossEntropy, SweepsTwiceForManyTokens) {
  const DType t = DType::kBf16;
  const int64_t tokens = 40, classes = 5, hidden = 300000;
  const Linear o{RandomArray(t, {tokens, hidden}, 1, -0.01, 0.01),
                 RandomArray(t, {classes, hidden}, 2, -0.01, 0.01),
                 Labels({tokens}, classes)};
  const OpCase c = LinearCase(o, 16);
  const Array dloss = ScalarArray(DType::kFp32, 1.0);
  auto both = RunGrad(c, {{"loss_sum", dloss}}, {"x", "weight"});
  ExpectSame(both["x"], RunGrad(c, {{"loss_sum", dloss}}, {"x"})["x"], "dx");
  ExpectSame(both["weight"],
             RunGrad(c, {{"loss_sum", dloss}}, {"weight"})["weight"],
             "dweight");
}

TEST(LinearCrossEntropy, GradientMatchesFiniteDifferences) {
  const OpCase c = LinearCase(MakeLinear(DType::kFp32, 5, 4, 3), 2);
  CheckGradient(c, {"x", "weight"}, {"loss_sum"});
}

TEST(LinearCrossEntropy, WorkspaceIsBounded) {
  RegisterBuiltinOps();
  for (DType t : {DType::kFp32, DType::kBf16, DType::kFp16}) {
    Program program;
    const auto add = [&](const char* name, DType dtype, Shape shape) {
      Var var;
      var.name = name;
      var.dtype = dtype;
      var.shape = std::move(shape);
      return program.AddVar(std::move(var));
    };
    const VarId x = add("x", t, {4, 1024, 2048});
    const VarId weight = add("weight", t, {50304, 2048});
    const VarId labels = add("labels", DType::kInt32, {4, 1024});
    const VarId lse = add("lse", DType::kFp32, {4, 1024});
    const VarId loss = add("loss", DType::kFp32, {1});
    const VarId dx = add("dx", t, {4, 1024, 2048});
    const VarId dweight = add("dweight", t, {50304, 2048});
    const auto bytes = [&](OpSpec spec) {
      const OpRegistry& registry = OpRegistry::Global();
      Op& op = program.Append(Section::kMicro, std::move(spec));
      NormalizeOp(registry, program, op);
      CheckInferred(registry, program, op);
      return registry.Get(op.type).workspace_bytes(OpView(program, op));
    };
    OpSpec forward;
    forward.type = "linear_cross_entropy";
    forward.inputs = {{"x", {x}}, {"weight", {weight}}, {"labels", {labels}}};
    forward.outputs = {{"loss_sum", {loss}}, {"lse", {lse}}};
    OpSpec backward = forward;
    backward.type = "linear_cross_entropy_grad";
    backward.inputs.push_back({"lse", {lse}});
    backward.inputs.push_back({"dloss", {loss}});
    backward.outputs = {{"dx", {dx}}, {"dweight", {dweight}}};
    EXPECT_LE(bytes(forward), int64_t{16} << 20);
    EXPECT_LE(bytes(backward), int64_t{48} << 20);
  }
}

TEST(LinearCrossEntropy, TakesNoTokensAndNoValidTokens) {
  Linear o = MakeLinear(DType::kFp32, 0, 5, 3);
  const Array dloss = ScalarArray(DType::kFp32, 1.0);
  EXPECT_EQ(RunOp(LinearCase(o))["loss_sum"][0].values, Doubles{0});
  EXPECT_EQ(
      RunGrad(LinearCase(o), {{"loss_sum", dloss}}, {"x", "weight"})["weight"]
          .values,
      Doubles(15, 0.0));
  o = MakeLinear(DType::kBf16, 2, 5, 3);
  o.labels.values = {-100, -100};
  EXPECT_EQ(RunOp(LinearCase(o))["loss_sum"][0].values, Doubles{0});
  EXPECT_EQ(RunGrad(LinearCase(o), {{"loss_sum", dloss}}, {"x"})["x"].values,
            Doubles(6, 0.0));
}

TEST(LinearCrossEntropy, Errors) {
  Linear o = MakeLinear(DType::kFp32, 6, 256, 4);
  o.labels.values[5] = 300;
  EXPECT_THAT(RunErrorOf(LinearCase(o)),
              HasSubstr("label 300 at position 5 is out of range [0, 256)"));
  o.weight = RandomArray(DType::kFp32, {256, 5}, 1);
  EXPECT_THAT(ErrorOf(LinearCase(o)), HasSubstr("hidden sizes 4 and 5"));
}

INSTANTIATE_TEST_SUITE_P(DTypes, CrossEntropyTest,
                         ::testing::Values(DType::kFp32, DType::kBf16,
                                           DType::kFp16),
                         [](const auto& test) {
                           return std::string(DTypeName(test.param));
                         });

}  // namespace
}  // namespace plo::testing
