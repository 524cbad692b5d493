#include <gmock/gmock.h>

#include "tests/passes/pass_test_util.h"

namespace plo {
namespace {

TEST(FuseOps, FusesEachResidualWithTheNormAfterIt) {
  Program program = SmallGpt();
  Apply(program, "apply_amp(dtype=bf16),append_backward,recompute");
  EXPECT_EQ(Apply(program, "fuse_ops,fuse_ops"),
            (std::vector<bool>{true, false}));
  // Two residuals in each of three layers; the norm that follows the
  // embedding adds a broadcast table.
  EXPECT_EQ(CountOps(program, "add_layer_norm", Role::kForward), 6);
  EXPECT_EQ(CountOps(program, "layer_norm", Role::kForward), 1);
  EXPECT_EQ(CountOps(program, "add", Role::kForward), 1);
}

TEST(FuseOps, RecomputedNormsReadTheKeptSum) {
  Program program = SmallGpt();
  Apply(program, "append_backward,recompute(policy=cheap)");
  const int norms = CountOps(program, "layer_norm", Role::kBackward);
  Apply(program, "fuse_ops");
  EXPECT_EQ(CountOps(program, "layer_norm", Role::kBackward), norms);
}

TEST(FuseOps, NormsTakeOnTheGradOfTheResidualAroundThem) {
  for (const char* recompute : {"none", "cheap", "full"}) {
    Program program = SmallGpt();
    Apply(program, StrCat("apply_amp(dtype=bf16),append_backward,recompute("
                          "policy=",
                          recompute, "),shard_optimizer(degree=2)"));
    // Two in each of three layers, besides those that are recomputed.
    EXPECT_GE(CountOps(program, "add", Role::kBackward), 6) << recompute;
    Apply(program, "fuse_ops");
    EXPECT_EQ(CountOps(program, "add", Role::kBackward), 0) << recompute;
    int with_residual = 0;
    for (const auto& op : program.ops(Section::kMicro)) {
      with_residual += op->type == "layer_norm_grad" && op->HasIn("dresidual");
    }
    EXPECT_EQ(with_residual, 6) << recompute;
  }
}

TEST(FuseOps, GradientsGiveWhatIsRecomputed) {
  for (const char* sharding : {"", ",shard_optimizer(degree=2)"}) {
    for (const double dropout : {0.0, 0.1}) {
      Program program = SmallGpt({.layers = 3,
                                  .hidden = 36,
                                  .heads = 3,
                                  .seq_len = 11,
                                  .vocab_size = 37,
                                  .micro_batch = 2,
                                  .dropout = dropout});
      Apply(program, StrCat("apply_amp(dtype=bf16),append_backward,recompute",
                            sharding));
      EXPECT_EQ(CountOps(program, "gelu", Role::kBackward), 3);
      EXPECT_EQ(Apply(program, "fuse_ops,fuse_ops"),
                (std::vector<bool>{true, false}));
      EXPECT_EQ(CountOps(program, "gelu", Role::kBackward), 0);
      for (const auto& op : program.ops(Section::kMicro)) {
        if (op->type != "gelu_grad") continue;
        EXPECT_NE(op->Out1("out"), kNoId);
      }
    }
  }
}

// There the peak is where a block's activations are back.
TEST(FuseOps, FullRecomputeKeepsItsOrder) {
  Program program = SmallGpt();
  Apply(program, "append_backward,recompute(policy=full)");
  const int recomputed = CountOps(program, "gelu", Role::kBackward);
  EXPECT_EQ(recomputed, 3);
  Apply(program, "fuse_ops");
  EXPECT_EQ(CountOps(program, "gelu", Role::kBackward), recomputed);
}

TEST(FuseOps, LeavesAnMlpAlone) {
  Program program = SmallMlp({});
  EXPECT_EQ(Apply(program, "append_backward,fuse_ops"),
            (std::vector<bool>{true, false}));
}

}  // namespace
}  // namespace plo
