// Skipped steps change nothing, and the loss scale follows its rule.
#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <string>
#include <vector>

#include "operators/register_ops.h"
#include "passes/pipeline.h"
#include "tests/passes/rank_runner.h"

namespace plo {
namespace {

class SkipRunTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    RegisterBuiltinOps();
    RegisterBuiltinPasses();
  }
};

// --- N3: a skipped step changes nothing ---

struct SkipCase {
  const char* name;
  DType dtype;
  int64_t stage;
  int64_t accumulate_steps;
  double fraction;
};
void PrintTo(const SkipCase& c, std::ostream* out) { *out << c.name; }

class Skip : public SkipRunTest,
             public ::testing::WithParamInterface<SkipCase> {};

// The first, a middle and the last step are spoilt on rank 1, in the last
// element of the last micro-step; the gradients of `probe` alone overflow.
TEST_P(Skip, LeavesEveryRankAsItWas) {
  const SkipCase& c = GetParam();
  const std::set<int> bad = {0, 2, 4};
  std::vector<std::vector<States>> snapshots(2);
  Job job{.build = OddParams, .pipeline = Sharded(2, c.dtype), .steps = 5};
  job.pipeline.sharding_stage = c.stage;
  job.pipeline.accumulate_steps = c.accumulate_steps;
  job.pipeline.offload_optimizer = c.fraction > 0;
  job.pipeline.offload_fraction = c.fraction;
  job.poison = [&](int step, int rank, const std::string& feed,
                   std::vector<double>& values) {
    if (feed != "y" && feed != "loud") return;
    if (bad.count(step) == 0 || rank != 1) return;
    values.back() = feed == "y" ? -1e4 : 3e38;
  };
  job.inspect = [&](int, int rank, Engine& engine) {
    snapshots[rank].push_back(Snapshot(engine));
  };
  const std::vector<Outcome> outcomes = RunJob(job);
  for (int rank = 0; rank < 2; ++rank) {
    int64_t applied = 0;
    for (int step = 0; step < 5; ++step) {
      const StepResult& result = outcomes[rank].steps[step];
      EXPECT_EQ(result.skipped, bad.count(step) > 0) << "step " << step;
      applied += result.skipped ? 0 : 1;
      EXPECT_EQ(result.applied_steps, applied);
      const States& before = snapshots[rank][step];
      const States& after = snapshots[rank][step + 1];
      if (bad.count(step) > 0) {
        EXPECT_EQ(before, after) << "rank " << rank << ", step " << step;
      } else {
        EXPECT_NE(before, after) << "rank " << rank << ", step " << step;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Skip,
    ::testing::Values(SkipCase{"fp32", DType::kFp32, 2, 1, 0},
                      SkipCase{"fp32_A3", DType::kFp32, 2, 3, 0},
                      SkipCase{"fp32_offload", DType::kFp32, 2, 1, 1},
                      SkipCase{"bf16_half", DType::kBf16, 2, 2, 0.5},
                      SkipCase{"bf16_offload", DType::kBf16, 2, 1, 1},
                      SkipCase{"bf16_stage0", DType::kBf16, 0, 2, 0},
                      SkipCase{"bf16_stage0_offload", DType::kBf16, 0, 1, 1},
                      SkipCase{"bf16_stage1_offload", DType::kBf16, 1, 2, 1}),
    [](const auto& test_case) { return std::string(test_case.param.name); });

// --- N5: the loss scale ---

TEST_F(SkipRunTest, LossScaleFollowsItsRule) {
  const std::set<int> bad = {2, 3, 4, 8};
  Job job{.build = OddParams, .pipeline = Sharded(2), .steps = 13};
  job.pipeline.loss_scale = "dynamic";
  job.pipeline.init_loss_scale = 8;
  job.pipeline.loss_scale_incr_every_n = 2;
  job.pipeline.loss_scale_decr_every_n = 2;
  job.pipeline.min_loss_scale = 4;
  job.pipeline.loss_scale_decr_ratio = 0.25;
  job.poison = [&](int step, int rank, const std::string& feed,
                   std::vector<double>& values) {
    if (feed == "y" && rank == 1 && bad.count(step) > 0) {
      values[0] = std::numeric_limits<double>::infinity();
    }
  };
  // Steps 0 and 1 are good: 16. Steps 2 and 3 are bad: 16 / 4. Step 4 is the
  // first bad one of a new pair. Steps 5 and 6 are good: 8. Step 7 is good, 8
  // bad: both counts start over. Steps 9 to 12 are good: 16, then 32.
  const std::vector<double> used = {8, 8, 16, 16, 4, 4, 4, 8, 8, 8, 8, 16, 16};
  for (bool offload : {false, true}) {
    job.pipeline.offload_optimizer = offload;
    for (const Outcome& outcome : RunJob(job)) {
      for (int step = 0; step < job.steps; ++step) {
        EXPECT_EQ(outcome.steps[step].skipped, bad.count(step) > 0) << step;
        EXPECT_EQ(outcome.steps[step].loss_scale, used[step]) << step;
      }
    }
  }
}

// Statistics, clipping and updates are of the gradients without the scale: a
// power of two, as large as it may be, leaves no trace.
TEST_F(SkipRunTest, AStaticScaleOfAnySizeChangesNoBit) {
  for (const char* mode : {"global_norm", "norm"}) {
    Job job{.build = OddParams, .pipeline = Sharded(2), .steps = 4};
    job.pipeline.clip_mode = mode;
    const Outcome plain = RunAgreeing(job);
    job.pipeline.loss_scale = "static";
    for (const double scale : {0x1p100, 0x1p-60}) {
      job.pipeline.init_loss_scale = scale;
      const Outcome scaled = RunAgreeing(job);
      EXPECT_EQ(scaled.digest, plain.digest) << mode << ", scale " << scale;
      for (int step = 0; step < job.steps; ++step) {
        EXPECT_FALSE(scaled.steps[step].skipped);
        EXPECT_EQ(scaled.steps[step].loss, plain.steps[step].loss);
        EXPECT_EQ(scaled.steps[step].grad_norm, plain.steps[step].grad_norm);
      }
    }
  }
}

}  // namespace
}  // namespace plo
