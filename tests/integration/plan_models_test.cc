// Plans of the product's models under the default pipeline: free of races,
// tightly packed, quickly made.
#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "framework/plan/plan.h"
#include "operators/register_ops.h"
#include "paddle_lite_offload/models.h"
#include "paddle_lite_offload/optimizer.h"
#include "passes/pass.h"
#include "passes/pipeline.h"

namespace plo {
namespace {

class PlanModelsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    RegisterBuiltinOps();
    RegisterBuiltinPasses();
  }
};

Program Rewritten(Program program, DefaultPipelineOptions options) {
  options.insert_optimizer = AdamW({}).PipelineEntry();
  PassManager::Parse(DefaultPipeline(options)).Run(program);
  return program;
}

PlanOptions Fetching(const Program& program) {
  PlanOptions options;
  options.fetches = {program.mean_loss, program.step_record};
  return options;
}

void ExpectSound(const Plan& plan, const Program& program,
                 const std::string& what) {
  for (const PlacePeak* peak : {&plan.device, &plan.pinned}) {
    EXPECT_EQ(std::accumulate(peak->by_category.begin(),
                              peak->by_category.end(), int64_t{0}),
              peak->live_peak_bytes)
        << what;
  }
  for (int rank = 0; rank < program.world_size; ++rank) {
    ASSERT_NO_THROW(CheckRaces(plan, program, rank)) << what;
  }
}

double Fragmentation(const PlacePeak& peak) {
  return static_cast<double>(peak.fragmentation_bytes()) /
         static_cast<double>(peak.arena_bytes);
}

TEST_F(PlanModelsTest, EveryCombinationIsFreeOfRaces) {
  for (int stage : {0, 1, 2}) {
    for (int ranks : {1, 3}) {
      for (int steps : {1, 2, 4}) {
        for (const char* mode :
             {"none", "overlap", "sync", "half", "streamed", "streamed sync"}) {
          DefaultPipelineOptions options;
          options.dtype = steps == 2 ? DType::kFp32 : DType::kBf16;
          options.recompute = steps == 4 ? "full" : "cheap";
          options.sharding_stage = stage;
          options.sharding_degree = ranks;
          options.accumulate_steps = steps;
          options.loss_scale = "dynamic";
          options.clip_norm = 1;
          options.bucket_mb = 0.01;
          options.prefetch_depth = ranks;
          options.offload_optimizer = std::string(mode) != "none";
          if (std::string(mode) == "half") options.offload_fraction = 0.5;
          const std::string_view text = mode;
          if (text.ends_with("sync")) options.offload_mode = "sync";
          if (text.starts_with("streamed")) {
            options.offload_streamed_fraction = 0.6;
            options.offload_streamed_chunk = 1024;
          }
          const Program program = Rewritten(BuildGpt({.layers = 3,
                                                      .hidden = 36,
                                                      .heads = 3,
                                                      .seq_len = 33,
                                                      .vocab_size = 257,
                                                      .micro_batch = 2,
                                                      .dropout = 0.1}),
                                            options);
          const std::string what =
              StrCat("stage ", stage, ", ", ranks, " ranks, ", steps,
                     " micro-steps, offload ", mode);
          ExpectSound(BuildPlan(program, Fetching(program)), program, what);
        }
      }
    }
  }
}

TEST_F(PlanModelsTest, GptPacksWithinTwoPercent) {
  for (const char* recompute : {"none", "cheap", "full"}) {
    for (bool offload : {false, true}) {
      for (int steps : {1, 4}) {
        DefaultPipelineOptions options;
        options.dtype = DType::kBf16;
        options.recompute = recompute;
        options.sharding_degree = 2;
        options.accumulate_steps = steps;
        options.clip_norm = 1;
        options.offload_optimizer = offload;
        const Program program = Rewritten(BuildGpt({.layers = 6,
                                                    .hidden = 1024,
                                                    .heads = 16,
                                                    .seq_len = 1024,
                                                    .vocab_size = 50304,
                                                    .micro_batch = 4}),
                                          options);
        const std::string what = StrCat("recompute ", recompute, ", offload ",
                                        offload, ", ", steps, " micro-steps");
        const Plan plan = BuildPlan(program, Fetching(program));
        EXPECT_LE(Fragmentation(plan.device), 0.02) << what;
        EXPECT_LE(Fragmentation(plan.pinned), 0.02) << what;
        ExpectSound(plan, program, what);
      }
    }
  }
}

// Anything quadratic takes minutes here: the test would time out.
TEST_F(PlanModelsTest, NinetySixLayersOnAThousandRanks) {
  DefaultPipelineOptions options;
  options.dtype = DType::kBf16;
  options.sharding_degree = 1024;
  options.accumulate_steps = 8;
  options.clip_norm = 1;
  options.offload_optimizer = true;
  const Program program = Rewritten(BuildGpt({.layers = 96,
                                              .hidden = 12288,
                                              .heads = 96,
                                              .seq_len = 2048,
                                              .vocab_size = 50304,
                                              .micro_batch = 1}),
                                    options);
  const Plan plan = BuildPlan(program, Fetching(program));
  EXPECT_LE(Fragmentation(plan.device), 0.02);
  CheckRaces(plan, program, 1023);
}

}  // namespace
}  // namespace plo
