// All stages and ways of offloading give the same bits; clipping and averaging
// are what they say.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "operators/register_ops.h"
#include "paddle_lite_offload/models.h"
#include "passes/pipeline.h"
#include "tests/passes/rank_runner.h"

namespace plo {
namespace {

Program Mlp() {
  return BuildMlp({.layers = 2,
                   .hidden = 37,
                   .inputs = 5,
                   .outputs = 3,
                   .micro_batch = 4,
                   .dropout = 0.1,
                   .seed = 7});
}

// Sizes that divide nothing evenly, dropout and ignored labels.
GptConfig OddGpt() {
  return {.layers = 2,
          .hidden = 36,
          .heads = 3,
          .seq_len = 33,
          .vocab_size = 257,
          .micro_batch = 1,
          .dropout = 0.1,
          .seed = 3};
}
Program Gpt() { return BuildGpt(OddGpt()); }

class DistRunTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    RegisterBuiltinOps();
    RegisterBuiltinPasses();
  }
};

// --- N1: one result, however it is computed ---

struct Variant {
  const char* name;
  double fraction;
  const char* mode;
};
constexpr Variant kVariants[] = {{"none", 0, "overlap"},
                                 {"half", 0.5, "overlap"},
                                 {"full", 1, "overlap"},
                                 {"sync", 1, "sync"}};

struct Model {
  const char* name;
  Program (*build)();
  DType dtype;
  int64_t degree;
  int64_t accumulate_steps;
};
void PrintTo(const Model& m, std::ostream* out) { *out << m.name; }

class SameBits : public DistRunTest,
                 public ::testing::WithParamInterface<Model> {};

TEST_P(SameBits, InAllStagesWithAndWithoutOffload) {
  const Model& model = GetParam();
  Job job{.build = model.build, .pipeline = Sharded(model.degree, model.dtype)};
  job.pipeline.accumulate_steps = model.accumulate_steps;
  if (model.dtype == DType::kFp16) job.pipeline.loss_scale = "dynamic";
  const Outcome base = RunAgreeing(job);
  for (const StepResult& step : base.steps) EXPECT_FALSE(step.skipped);
  EXPECT_GT(base.steps[0].grad_norm, 0);
  for (int64_t stage : {2, 1, 0}) {
    for (const Variant& variant : kVariants) {
      if (stage == 2 && variant.fraction == 0) continue;
      job.pipeline.sharding_stage = stage;
      job.pipeline.offload_optimizer = variant.fraction > 0;
      job.pipeline.offload_fraction = variant.fraction;
      job.pipeline.offload_mode = variant.mode;
      ExpectSameBits(RunAgreeing(job), base,
                     StrCat("stage ", stage, ", offload ", variant.name));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, SameBits,
    ::testing::Values(Model{"mlp_fp32_1rank", Mlp, DType::kFp32, 1, 1},
                      Model{"mlp_bf16_1rank_A2", Mlp, DType::kBf16, 1, 2},
                      Model{"mlp_fp32_3ranks_A2", Mlp, DType::kFp32, 3, 2},
                      Model{"mlp_fp16_2ranks_A2", Mlp, DType::kFp16, 2, 2},
                      Model{"gpt_fp32_2ranks", Gpt, DType::kFp32, 2, 1},
                      Model{"gpt_bf16_2ranks_A2", Gpt, DType::kBf16, 2, 2},
                      Model{"gpt_bf16_3ranks", Gpt, DType::kBf16, 3, 1}),
    [](const auto& test_case) { return std::string(test_case.param.name); });

TEST_F(DistRunTest, WiderGradsKeepTheBitsUnderOffload) {
  Job job{.build = Gpt, .pipeline = Sharded(2, DType::kBf16)};
  job.pipeline.grad_dtype = "fp32";
  const Outcome base = RunAgreeing(job);
  job.pipeline.offload_optimizer = true;
  ExpectSameBits(RunAgreeing(job), base, "offload");
  job.pipeline.sharding_stage = 0;
  ExpectSameBits(RunAgreeing(job), base, "offload, stage 0");
}

TEST_F(DistRunTest, OtherOptimizersAndClipModesKeepTheBitsToo) {
  for (const char* mode : {"norm", "value"}) {
    for (const Optimizer& optimizer :
         {Adam({.lr = 1e-2, .schedule = {}}),
          Sgd({.lr = 1e-2, .weight_decay = 0.1, .schedule = {}})}) {
      Job job{.build = Mlp,
              .pipeline = Sharded(2, DType::kBf16),
              .optimizer = optimizer};
      job.pipeline.clip_mode = mode;
      job.pipeline.clip_norm = 0.01;
      const Outcome base = RunAgreeing(job);
      job.pipeline.offload_optimizer = true;
      ExpectSameBits(RunAgreeing(job), base, StrCat(mode, optimizer.type));
    }
  }
}

TEST_F(DistRunTest, DepthAndDelaysChangeNoBit) {
  Job job{.build = Gpt, .pipeline = Sharded(2, DType::kBf16)};
  job.pipeline.accumulate_steps = 2;
  job.pipeline.offload_optimizer = true;
  const Outcome base = RunAgreeing(job);
  for (const auto& [pace, other] : OtherPaces(job, {1, 3, 100})) {
    ExpectSameBits(RunAgreeing(other), base, pace);
  }
}

TEST_F(DistRunTest, MoreRanksThanParams) {
  Job job{.build = Mlp, .pipeline = Sharded(8, DType::kBf16), .steps = 2};
  job.pipeline.bucket_mb = 25;
  const Outcome base = RunAgreeing(job);
  job.pipeline.offload_optimizer = true;
  ExpectSameBits(RunAgreeing(job), base, "offload");
}

// --- N6: averaged once ---

struct Division {
  int64_t ranks, micros, batch;
};

TEST_F(DistRunTest, RanksAndMicroStepsAreOneBatch) {
  // Always 12 samples.
  const std::vector<Division> divisions = {{1, 1, 12}, {2, 1, 6}, {3, 1, 4},
                                           {4, 1, 3},  {1, 3, 4}, {2, 2, 3},
                                           {3, 4, 1}};
  std::vector<Outcome> outcomes;
  for (const Division& division : divisions) {
    Job job{.build =
                [division] {
                  GptConfig config = OddGpt();
                  config.micro_batch = division.batch;
                  return BuildGpt(config);
                },
            .pipeline = Sharded(division.ranks),
            .optimizer = AdamW({.lr = 1e-3, .schedule = {}}),
            .steps = 20};
    job.pipeline.accumulate_steps = division.micros;
    outcomes.push_back(RunAgreeing(job));
    const Outcome& base = outcomes.front();
    for (size_t i = 0; i < base.steps.size(); ++i) {
      EXPECT_NEAR(outcomes.back().steps[i].loss, base.steps[i].loss,
                  1e-5 * base.steps[i].loss)
          << division.ranks << " ranks, step " << i;
      EXPECT_NEAR(outcomes.back().steps[i].grad_norm, base.steps[i].grad_norm,
                  1e-3 * base.steps[i].grad_norm)
          << division.ranks << " ranks, step " << i;
    }
  }
  const Outcome& base = outcomes.front();
  EXPECT_LT(base.steps.back().loss, base.steps.front().loss);
}

// --- N4 and what sets params apart ---

TEST_F(DistRunTest, ClipsToTheNormAndLeavesOthersAlone) {
  Job job{.build = OddParams,
          .pipeline = Sharded(2),
          .optimizer = Sgd({.lr = 1, .momentum = 0, .schedule = {}}),
          .steps = 1};
  job.pipeline.clip_norm = 1e6;  // no effect
  const Outcome plain = RunAgreeing(job);
  job.pipeline.clip_norm = 1e-3;
  for (bool offload : {false, true}) {
    job.pipeline.offload_optimizer = offload;
    const Outcome clipped = RunAgreeing(job);
    job.steps = 0;
    const Outcome start = RunAgreeing(job);
    job.steps = 1;
    const auto moved = [&](const Outcome& to, const std::string& name) {
      double sum = 0;
      for (size_t i = 0; i < start.params.at(name).size(); ++i) {
        sum += std::pow(to.params.at(name)[i] - start.params.at(name)[i], 2);
      }
      return std::sqrt(sum);
    };
    EXPECT_EQ(moved(clipped, "first/frozen"), 0);
    EXPECT_EQ(moved(clipped, "first/unused"), 0);
    EXPECT_EQ(moved(clipped, "second/probe"), 0);
    EXPECT_EQ(clipped.params.at("first/free"), plain.params.at("first/free"));
    // The norm is over w and probe, whose gradient counts though it does not
    // move: both before clipping, as reported.
    EXPECT_EQ(clipped.steps[0].grad_norm, plain.steps[0].grad_norm);
    EXPECT_GT(plain.steps[0].grad_norm, moved(plain, "first/w"));
    EXPECT_NEAR(moved(clipped, "first/w"),
                moved(plain, "first/w") * 1e-3 / plain.steps[0].grad_norm,
                1e-6);
  }
}

TEST_F(DistRunTest, ScalesThatArePowersOfTwoChangeNoBit) {
  Job job{.build = OddParams, .pipeline = Sharded(2)};
  const Outcome base = RunAgreeing(job);
  job.pipeline.loss_scale = "static";
  job.pipeline.init_loss_scale = 1024;
  const Outcome scaled = RunAgreeing(job);
  EXPECT_EQ(scaled.digest, base.digest);
  for (size_t i = 0; i < base.steps.size(); ++i) {
    EXPECT_EQ(scaled.steps[i].grad_norm, base.steps[i].grad_norm);
  }
}

}  // namespace
}  // namespace plo
