// Optimizer states that stream through the device: the same bits as anywhere
// else, in bounded memory.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "operators/register_ops.h"
#include "paddle_lite_offload/models.h"
#include "passes/pipeline.h"
#include "tests/passes/rank_runner.h"

namespace plo {
namespace {

Program SmallGpt() {
  return BuildGpt({.layers = 3,
                   .hidden = 36,
                   .heads = 3,
                   .seq_len = 33,
                   .vocab_size = 257,
                   .micro_batch = 1,
                   .dropout = 0.1,
                   .seed = 3});
}
Program Mlp() {
  return BuildMlp({.layers = 3, .hidden = 24, .micro_batch = 4, .seed = 1});
}

class StreamRunTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    RegisterBuiltinOps();
    RegisterBuiltinPasses();
  }
};

// --- N1 ---

struct Result {
  Outcome outcome;
  std::vector<States> states;  // by rank, after the last step
};

Result RunRanks(Job job) {
  Result result;
  result.states.resize(job.pipeline.sharding_degree);
  job.inspect = [&](int step, int rank, Engine& engine) {
    if (step + 1 == job.steps) result.states[rank] = Snapshot(engine);
  };
  result.outcome = RunAgreeing(job);
  return result;
}

void ExpectSame(const Result& a, const Result& b, const std::string& what) {
  ExpectSameBits(a.outcome, b.outcome, what);
  EXPECT_TRUE(a.states == b.states) << what;
}

struct Model {
  const char* name;
  Program (*build)();
  DType dtype;
  int64_t ranks;
  int64_t stage;
  int64_t accumulate_steps;
};
void PrintTo(const Model& m, std::ostream* out) { *out << m.name; }

Job MakeJob(const Model& model) {
  Job job{.build = model.build, .pipeline = Sharded(model.ranks, model.dtype)};
  job.pipeline.sharding_stage = model.stage;
  job.pipeline.accumulate_steps = model.accumulate_steps;
  if (model.dtype == DType::kFp16) job.pipeline.loss_scale = "dynamic";
  // Several chunks a bucket.
  job.pipeline.offload_streamed_chunk = 1024;
  return job;
}

class SameStates : public StreamRunTest,
                   public ::testing::WithParamInterface<Model> {};

TEST_P(SameStates, WhateverShareIsStreamed) {
  Job job = MakeJob(GetParam());
  const Result resident = RunRanks(job);
  job.pipeline.offload_optimizer = true;
  for (double share : {0.0, 0.3, 1.0}) {
    job.pipeline.offload_streamed_fraction = share;
    const Result result = RunRanks(job);
    const std::string what = StrCat("streamed share ", share);
    // fp32: the masters of resident and streamed states are slices of params,
    // which the host's are not, but the bytes are the same.
    ExpectSame(result, resident, what);
  }
  job.pipeline.offload_mode = "sync";
  ExpectSame(RunRanks(job), resident, "sync");
  job.pipeline.offload_mode = "overlap";
  job.pipeline.offload_fraction = 0.6;
  job.pipeline.offload_streamed_fraction = 0.5;
  ExpectSame(RunRanks(job), resident, "three placements");
}

INSTANTIATE_TEST_SUITE_P(
    Models, SameStates,
    ::testing::Values(
        Model{"mlp_fp32_1rank", Mlp, DType::kFp32, 1, 2, 1},
        Model{"mlp_bf16_1rank_A2", Mlp, DType::kBf16, 1, 2, 2},
        Model{"mlp_fp16_2ranks_A3", Mlp, DType::kFp16, 2, 2, 3},
        Model{"gpt_fp32_3ranks_A2", SmallGpt, DType::kFp32, 3, 2, 2},
        Model{"gpt_bf16_2ranks", SmallGpt, DType::kBf16, 2, 2, 1},
        Model{"gpt_bf16_stage1_A2", SmallGpt, DType::kBf16, 2, 1, 2},
        Model{"gpt_fp16_stage0", SmallGpt, DType::kFp16, 2, 0, 1}),
    [](const auto& test_case) { return std::string(test_case.param.name); });

TEST_F(StreamRunTest, OtherOptimizersAndClipModesKeepTheBitsToo) {
  for (const char* mode : {"norm", "value"}) {
    for (const Optimizer& optimizer :
         {Adam({.lr = 1e-2, .schedule = {}}),
          Sgd({.lr = 1e-2, .weight_decay = 0.1, .schedule = {}})}) {
      Job job = MakeJob({"", Mlp, DType::kBf16, 2, 2, 1});
      job.optimizer = optimizer;
      job.pipeline.clip_mode = mode;
      job.pipeline.clip_norm = 0.01;
      const Result base = RunRanks(job);
      job.pipeline.offload_optimizer = true;
      job.pipeline.offload_streamed_fraction = 1;
      ExpectSame(RunRanks(job), base, StrCat(mode, optimizer.type));
    }
  }
}

// --- N2 ---

TEST_F(StreamRunTest, DepthAndDelaysChangeNoBit) {
  for (int64_t accumulate_steps : {1, 2}) {
    Job job = MakeJob({"", SmallGpt, DType::kBf16, 2, 2, accumulate_steps});
    job.pipeline.offload_optimizer = true;
    job.pipeline.offload_streamed_fraction = 0.6;
    const Result base = RunRanks(job);
    for (const auto& [pace, other] : OtherPaces(job, {1, 5})) {
      ExpectSame(RunRanks(other), base, pace);
    }
  }
}

// --- N3 ---

TEST_F(StreamRunTest, SkippedStepsLeaveTheStates) {
  const std::set<int> bad = {0, 2, 4};
  for (const DType dtype : {DType::kFp32, DType::kBf16}) {
    for (const int64_t accumulate_steps : {1, 3}) {
      std::vector<std::vector<States>> snapshots(2);
      Job job{.build = OddParams, .pipeline = Sharded(2, dtype), .steps = 5};
      job.pipeline.accumulate_steps = accumulate_steps;
      job.pipeline.offload_optimizer = true;
      job.pipeline.offload_streamed_fraction = 1;
      job.pipeline.offload_streamed_chunk = 128;
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
        for (int step = 0; step < 5; ++step) {
          const bool skipped = outcomes[rank].steps[step].skipped;
          EXPECT_EQ(skipped, bad.count(step) > 0) << "step " << step;
          EXPECT_EQ(snapshots[rank][step] == snapshots[rank][step + 1], skipped)
              << "rank " << rank << ", step " << step;
        }
      }
    }
  }
}

}  // namespace
}  // namespace plo
