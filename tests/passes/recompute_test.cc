#include <gmock/gmock.h>

#include <map>
#include <set>

#include "framework/ir/op_registry.h"
#include "tests/passes/pass_test_util.h"

namespace plo {
namespace {

constexpr int64_t kTokens = 2 * 11;
constexpr int64_t kHidden = 36;
constexpr int64_t kUnit = kTokens * kHidden * 2;  // bytes, 16 bit
constexpr int64_t kLse = kTokens * 3 * 4;         // heads, fp32
constexpr int64_t kNormStats = 2 * kTokens * 4;

std::map<std::string, int64_t> Kept(const std::string& recompute,
                                    double dropout = 0) {
  Program program = SmallGpt({.layers = 3,
                              .hidden = kHidden,
                              .heads = 3,
                              .seq_len = 11,
                              .vocab_size = 37,
                              .micro_batch = 2,
                              .dropout = dropout});
  Apply(program, "apply_amp(dtype=bf16),append_backward," + recompute);
  return KeptBytes(program);
}

// docs/memory_model.md. The region of a block's input is that of the block
// before it.
TEST(Recompute, KeepsWhatTheMemoryModelSays) {
  EXPECT_EQ(Kept("recompute(policy=none)")["layer1"],
            16 * kUnit + kLse + 2 * kNormStats);
  EXPECT_EQ(Kept("recompute(policy=cheap)")["layer1"], 10 * kUnit + kLse);
  EXPECT_EQ(Kept("recompute(policy=selective)")["layer1"], 9 * kUnit);
  EXPECT_EQ(Kept("recompute(policy=full)")["layer1"], kUnit);
}

// Dropout of the blocks' branches is read by no gradient.
TEST(Recompute, DropoutKeepsNothingMore) {
  EXPECT_EQ(Kept("recompute(policy=cheap)", 0.1)["layer1"], 10 * kUnit + kLse);
  EXPECT_EQ(Kept("recompute(policy=full)", 0.1)["layer1"], kUnit);
}

class RecomputePolicy : public testing::TestWithParam<const char*> {
 protected:
  static Program Recomputed() {
    Program program = SmallGpt({.layers = 3,
                                .hidden = kHidden,
                                .heads = 3,
                                .seq_len = 11,
                                .vocab_size = 37,
                                .micro_batch = 2,
                                .dropout = 0.1});
    Apply(program,
          StrCat("append_backward,recompute(policy=", GetParam(), ")"));
    return program;
  }
};

TEST_P(RecomputePolicy, SecondRunChangesNothing) {
  Program program = Recomputed();
  EXPECT_EQ(Apply(program, StrCat("recompute(policy=", GetParam(), ")")),
            std::vector<bool>{false});
}

TEST_P(RecomputePolicy, ClonesEachVarOnceRightBeforeItsFirstReader) {
  const Program program = Recomputed();
  std::set<VarId> originals;
  int clones = 0;
  for (VarId id : program.vars()) {
    const Var& var = program.var(id);
    if (var.relation != Relation::kRecomputeOf) continue;
    ++clones;
    EXPECT_TRUE(originals.insert(var.related_to).second) << var.name;
    ASSERT_EQ(program.Writers(id).size(), 1u);
    const Op& clone = program.op(program.Writers(id)[0]);
    const Op& original = program.op(program.Writers(var.related_to)[0]);
    EXPECT_EQ(clone.role, Role::kBackward);
    EXPECT_EQ(clone.type, original.type);
    EXPECT_EQ(clone.random_id, original.random_id);
    EXPECT_EQ(clone.attrs, original.attrs);
  }
  EXPECT_GT(clones, 0);
  // Between a clone and the first op that reads one of its outputs stand other
  // clones only.
  const auto& ops = program.ops(Section::kMicro);
  const auto is_clone = [&](const Op& op) {
    const VarId out = op.outputs[0].vars[0];
    return program.var(out).relation == Relation::kRecomputeOf;
  };
  for (const auto& op : ops) {
    if (!is_clone(*op)) continue;
    size_t first = ops.size();
    for (const Slot& slot : op->outputs) {
      for (VarId id : slot.vars) {
        for (OpId reader : program.Readers(id)) {
          first = std::min(first, program.IndexOf(reader));
        }
      }
    }
    ASSERT_LT(first, ops.size()) << Describe(*op) << " is never read";
    for (size_t i = program.IndexOf(op->id) + 1; i < first; ++i) {
      EXPECT_TRUE(is_clone(*ops[i])) << Describe(*ops[i]);
    }
  }
}

TEST_P(RecomputePolicy, LeavesForwardAlone) {
  Program before = SmallGpt({.layers = 3,
                             .hidden = kHidden,
                             .heads = 3,
                             .seq_len = 11,
                             .vocab_size = 37,
                             .micro_batch = 2,
                             .dropout = 0.1});
  const Program after = Recomputed();
  const auto& ops = before.ops(Section::kMicro);
  for (size_t i = 0; i < ops.size(); ++i) {
    const Op& same = *after.ops(Section::kMicro)[i];
    EXPECT_EQ(same.id, ops[i]->id);
    EXPECT_EQ(same.inputs, ops[i]->inputs);
    EXPECT_EQ(same.outputs, ops[i]->outputs);
  }
}

INSTANTIATE_TEST_SUITE_P(All, RecomputePolicy,
                         testing::Values("cheap", "selective", "full"));

}  // namespace
}  // namespace plo
