#include <gmock/gmock.h>

#include <set>

#include "tests/passes/pass_test_util.h"

namespace plo {
namespace {

TEST(AppendBackward, EveryTrainableParamHasOneGrad) {
  for (bool tied : {true, false}) {
    Program program = SmallGpt({.layers = 2,
                                .hidden = 8,
                                .heads = 2,
                                .seq_len = 4,
                                .vocab_size = 16,
                                .micro_batch = 2,
                                .tied_head = tied,
                                .dropout = 0.1});
    Apply(program, "append_backward");
    for (VarId param : program.Params()) {
      const VarId grad = program.Related(param, Relation::kGradOf);
      ASSERT_NE(grad, kNoId) << program.var(param).name;
      EXPECT_EQ(program.var(grad).name, program.var(param).name + "@grad");
      EXPECT_EQ(program.var(grad).shape, program.var(param).shape);
      EXPECT_EQ(program.var(grad).category, MemoryCategory::kGrads);
      EXPECT_FALSE(program.Writers(grad).empty());
    }
  }
}

TEST(AppendBackward, TiedHeadAccumulatesInPlace) {
  Program program = SmallGpt();
  Apply(program, "append_backward");
  const VarId grad = program.GetVar("embedding/token/weight@grad");
  const auto& writers = program.Writers(grad);
  ASSERT_EQ(writers.size(), 2u);
  EXPECT_EQ(program.op(writers[0]).type, "linear_cross_entropy_grad");
  EXPECT_EQ(program.op(writers[1]).type, "embedding_grad");
  EXPECT_EQ(program.op(writers[1]).In1("acc"), grad);
  EXPECT_TRUE(program.op(writers[1]).attrs.GetBool("accumulate"));
}

TEST(AppendBackward, ResidualGradsAreNotCopied) {
  Program program = SmallGpt();
  Apply(program, "append_backward");
  EXPECT_EQ(CountOps(program, "reshape", Role::kBackward), 0);
  // Broadcasting over the batch: the position table only.
  EXPECT_EQ(CountOps(program, "reduce_to_shape", Role::kBackward), 1);
  // One sum for each of the two residual connections of three layers.
  EXPECT_EQ(CountOps(program, "add", Role::kBackward), 6);
}

TEST(AppendBackward, WeightGradsComeBeforeInputGrads) {
  Program program = SmallGpt();
  Apply(program, "append_backward");
  const auto index = [&](const std::string& var) {
    return program.IndexOf(program.Writers(program.GetVar(var))[0]);
  };
  // So that a clone of the input dies before the input's grad is born.
  EXPECT_LT(index("layer1/fc2/weight@grad"), index("layer1/gelu@grad"));
}

TEST(AppendBackward, FrozenParamsCutBackwardShort) {
  Program program = SmallGpt();
  for (VarId id : program.Params()) {
    Var& var = program.mutable_var(id);
    var.param.trainable = var.name.rfind("layer2/", 0) == 0;
  }
  Apply(program, "append_backward");
  for (VarId id : program.vars()) {
    const Var& var = program.var(id);
    if (var.relation != Relation::kGradOf) continue;
    EXPECT_TRUE(var.name.rfind("layer2/", 0) == 0 ||
                var.name.rfind("head/", 0) == 0)
        << var.name;
  }
}

}  // namespace
}  // namespace plo
