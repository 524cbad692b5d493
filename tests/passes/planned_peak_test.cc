// What the planner makes of offload, on the models of the published peaks.
#include <gtest/gtest.h>

#include <string>

#include "framework/plan/plan.h"
#include "operators/register_ops.h"
#include "paddle_lite_offload/models.h"
#include "passes/pass.h"
#include "passes/pipeline.h"

namespace plo {
namespace {

Program Train(const DefaultPipelineOptions& options, const GptConfig& config) {
  Program program = BuildGpt(config);
  PassManager::Parse(DefaultPipeline(options)).Run(program);
  return program;
}

constexpr double kMiB = 1 << 20;

struct PeakCase {
  const char* name;
  int64_t layers;
  int64_t hidden;
  double peak_mib;      // what has to be beaten
  double streamed_mib;  // not to be passed by streamed states
};
void PrintTo(const PeakCase& c, std::ostream* out) { *out << c.name; }

class PlannedPeakTest : public ::testing::TestWithParam<PeakCase> {
 protected:
  static void SetUpTestSuite() {
    RegisterBuiltinOps();
    RegisterBuiltinPasses();
  }
};

TEST_P(PlannedPeakTest, OffloadSavesAllOptimizerState) {
  const PeakCase& c = GetParam();
  const GptConfig config = {.layers = c.layers,
                            .hidden = c.hidden,
                            .heads = 16,
                            .seq_len = 1024,
                            .vocab_size = 50304,
                            .micro_batch = 4};
  DefaultPipelineOptions options;
  options.dtype = DType::kBf16;
  options.sharding_degree = 2;
  options.clip_norm = 1;
  const Program base = Train(options, config);
  options.offload_optimizer = true;
  const Program offload = Train(options, config);
  const auto peak = [](const Program& program) {
    PlanOptions plan_options;
    plan_options.fetches = {program.mean_loss, program.step_record};
    return BuildPlan(program, plan_options).device;
  };
  const int64_t resident = peak(base).arena_bytes;
  const double owned = ParameterCount(base) / 2.0;
  const PlacePeak with = peak(offload);
  EXPECT_LT(with.arena_bytes / kMiB, c.peak_mib) << with.peak_op;
  EXPECT_GE(resident - with.arena_bytes, 0.98 * 12 * owned);

  // Streamed states find room where activations are not.
  for (double share : {0.4, 1.0}) {
    options.offload_streamed_fraction = share;
    const PlacePeak streamed = peak(Train(options, config));
    EXPECT_LE(streamed.arena_bytes / kMiB, c.streamed_mib)
        << share << " " << streamed.peak_op;
    EXPECT_EQ(streamed.live_peak_bytes, with.live_peak_bytes) << share;
    EXPECT_GE(resident - streamed.arena_bytes, 0.98 * 12 * owned) << share;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Gpt, PlannedPeakTest,
    ::testing::Values(PeakCase{"1b", 18, 2048, 5369, 5196},
                      PeakCase{"300m", 20, 1024, 3137, 2367}),
    [](const auto& test_case) { return std::string(test_case.param.name); });

}  // namespace
}  // namespace plo
