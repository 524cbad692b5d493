// Runs training programs on thread comms: all stages and ways of offloading
// give the same bits, skipped steps change nothing, the loss scale follows its
// rule, clipping and averaging are what they say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "framework/runtime/comm.h"
#include "operators/register_ops.h"
#include "paddle_lite_offload/engine.h"
#include "paddle_lite_offload/graph_builder.h"
#include "paddle_lite_offload/models.h"
#include "paddle_lite_offload/optimizer.h"
#include "paddle_lite_offload/param_digest.h"
#include "passes/pipeline.h"

namespace plo {
namespace {

using Poison = std::function<void(int step, int rank, const std::string& feed,
                                  std::vector<double>& values)>;

struct Job {
  std::function<Program()> build;
  DefaultPipelineOptions pipeline;
  Optimizer optimizer = AdamW({.lr = 1e-2, .schedule = {}});
  int steps = 3;
  Poison poison = {};
  // Called after every step with the rank's engine.
  std::function<void(int step, int rank, Engine&)> inspect = {};
  std::function<int(StreamKind, OpId)> delay_us = {};
};

struct Outcome {
  std::vector<StepResult> steps;
  MemoryMeasurement memory;
  PlacePeak planned;
  uint64_t digest = 0;
  std::map<std::string, std::vector<double>> params;
};

// What a rank is fed: sample i of the global batch has the same values however
// the batch is divided.
HostTensor MakeFeed(const Program& program, VarId id, int step, int rank,
                    const Poison& poison) {
  const Var& var = program.var(id);
  const int64_t micros = program.accumulate_steps;
  const int64_t batch = var.shape[micros > 1 ? 1 : 0];
  const int64_t numel = var.shape.numel() / (micros * batch);  // of a sample
  std::vector<double> values;
  for (int64_t row = 0; row < micros * batch; ++row) {
    const int64_t micro = row / batch;
    const int64_t sample =
        ((step * micros + micro) * program.world_size + rank) * batch +
        row % batch;
    std::mt19937 random(static_cast<uint32_t>(97 * sample + var.name[0]));
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < numel; ++i) {
      values.push_back(var.dtype == DType::kFp32 ? normal(random)
                                                 : random() % 37);
    }
    // A different number of ignored labels in each sample.
    if (var.name == "labels") {
      std::fill(values.end() - sample % 7, values.end(), -100);
    }
  }
  if (poison) poison(step, rank, var.name, values);
  return HostTensor::Of(var.dtype, var.shape, values);
}

Outcome RunOneRank(const Job& job, Comm* comm, int rank) {
  Program program = job.build();
  job.optimizer.ApplyGroups(program);
  DefaultPipelineOptions pipeline = job.pipeline;
  pipeline.insert_optimizer = job.optimizer.PipelineEntry();
  EngineOptions options;
  options.executor.check_races = rank == 0;
  options.executor.delay_us = job.delay_us;
  options.cpu.compute_threads = 1;
  Engine engine(
      Prepare(std::move(program), {.pipeline = DefaultPipeline(pipeline)}),
      comm, options);
  Outcome outcome;
  for (int step = 0; step < job.steps; ++step) {
    Feeds feeds;
    for (VarId id : engine.program().vars()) {
      const Var& var = engine.program().var(id);
      if (var.kind != VarKind::kFeed) continue;
      feeds.emplace(var.name,
                    MakeFeed(engine.program(), id, step, rank, job.poison));
    }
    outcome.steps.push_back(engine.Step(feeds));
    if (job.inspect) job.inspect(step, rank, engine);
  }
  outcome.digest = ParamDigest(engine.executor());
  outcome.memory = engine.executor().MeasureMemory();
  outcome.planned = engine.executor().plan().device;
  for (VarId id : engine.program().Params()) {
    const std::string& name = engine.program().var(id).name;
    outcome.params[name] = engine.Read(name).ToDoubles();
  }
  return outcome;
}

// All ranks, as threads; rethrows the first error.
std::vector<Outcome> RunJob(const Job& job) {
  const int world = static_cast<int>(job.pipeline.sharding_degree);
  std::vector<std::unique_ptr<Comm>> comms = CreateThreadComms(world);
  std::vector<Outcome> outcomes(world);
  std::vector<std::exception_ptr> errors(world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        outcomes[rank] = RunOneRank(job, comms[rank].get(), rank);
      } catch (...) {
        errors[rank] = std::current_exception();
        comms[rank]->Abort("a rank of the test failed");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return outcomes;
}

// The outcome of rank 0, after checking that the ranks agree, and each with
// its plan.
Outcome RunAgreeing(const Job& job) {
  const std::vector<Outcome> outcomes = RunJob(job);
  for (const Outcome& outcome : outcomes) {
    if (job.steps > 0) {
      const MemoryMeasurement& memory = outcome.memory;
      EXPECT_EQ(memory.measured_peak_bytes, outcome.planned.arena_bytes);
      EXPECT_LE(memory.live_peak_bytes, outcome.planned.live_peak_bytes);
      // The plan folds all micro-steps into one; feeds die in the last.
      if (job.pipeline.accumulate_steps == 1) {
        EXPECT_EQ(memory.live_peak_bytes, outcome.planned.live_peak_bytes);
      }
    }
    EXPECT_EQ(outcome.digest, outcomes[0].digest);
    for (size_t i = 0; i < outcome.steps.size(); ++i) {
      EXPECT_EQ(outcome.steps[i].loss, outcomes[0].steps[i].loss);
      EXPECT_EQ(outcome.steps[i].grad_norm, outcomes[0].steps[i].grad_norm);
    }
  }
  return outcomes[0];
}

void ExpectSameBits(const Outcome& a, const Outcome& b,
                    const std::string& what) {
  EXPECT_EQ(a.digest, b.digest) << what;
  ASSERT_EQ(a.steps.size(), b.steps.size());
  for (size_t i = 0; i < a.steps.size(); ++i) {
    EXPECT_EQ(a.steps[i].loss, b.steps[i].loss) << what << ", step " << i;
    EXPECT_EQ(a.steps[i].grad_norm, b.steps[i].grad_norm)
        << what << ", step " << i;
    EXPECT_EQ(a.steps[i].loss_scale, b.steps[i].loss_scale)
        << what << ", step " << i;
  }
}

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

DefaultPipelineOptions Sharded(int64_t degree, DType dtype = DType::kFp32) {
  DefaultPipelineOptions o;
  o.dtype = dtype;
  o.sharding_degree = degree;
  o.bucket_mb = 0.01;
  o.clip_norm = 0.5;
  return o;
}

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
  for (int64_t depth : {1, 3, 100}) {
    job.pipeline.prefetch_depth = depth;
    ExpectSameBits(RunAgreeing(job), base, StrCat("depth ", depth));
  }
  for (int slow = 0; slow < kStreamCount; ++slow) {
    job.delay_us = [slow](StreamKind stream, OpId op) {
      return static_cast<int>(stream) == slow ? 200 + op % 7 * 50 : 0;
    };
    ExpectSameBits(RunAgreeing(job), base, StrCat("slow stream ", slow));
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

// Regions "first" and "second"; `probe` multiplies a feed and never moves.
Program Odd() {
  GraphBuilder g("odd", 5);
  const Value x = g.Feed("x", DType::kFp32, {4, 3});
  const Value y = g.Feed("y", DType::kFp32, {4, 7});
  const Value loud = g.Feed("loud", DType::kFp32, {4, 7});
  Value out;
  {
    const auto region = g.Region("first");
    const Value w = g.Param("w", {3, 7}, Init::Normal(0.5));
    const Value frozen =
        g.Param("frozen", {7}, Init::Constant(1), {.trainable = false});
    const Value free = g.Param("free", {7}, Init::Constant(1),
                               {.need_clip = false, .weight_decay = false});
    g.Param("unused", {9}, Init::Constant(1), {.weight_decay = false});
    out = g.Add(g.Add(g.Matmul(x, w), frozen), free);
  }
  {
    const auto region = g.Region("second");
    const Value probe =
        g.Param("probe", {7}, Init::Constant(0), {.lr_scale = 0});
    out = g.Add(out, g.Mul(loud, probe));
  }
  g.SetLoss(g.SumSquaredError(out, y), g.CountElements(y));
  return g.Build();
}

TEST_F(DistRunTest, ClipsToTheNormAndLeavesOthersAlone) {
  Job job{.build = Odd,
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

// --- N3: a skipped step changes nothing ---

using Bytes = std::map<std::string, std::vector<std::byte>>;

// Params, masters, moments and the count of updates.
Bytes Snapshot(Engine& engine) {
  const Program& program = engine.program();
  std::set<VarId> vars;
  for (const Bucket& bucket : program.buckets) {
    for (VarId v :
         {bucket.param, bucket.master, bucket.moment1, bucket.moment2}) {
      if (v != kNoId) vars.insert(v);
    }
  }
  vars.insert(program.GetVar("applied_step"));
  Bytes bytes;
  for (VarId v : vars) {
    const std::string& name = program.var(v).name;
    bytes[name] = engine.Read(name).data;
  }
  return bytes;
}

struct SkipCase {
  const char* name;
  DType dtype;
  int64_t stage;
  int64_t accumulate_steps;
  double fraction;
};
void PrintTo(const SkipCase& c, std::ostream* out) { *out << c.name; }

class Skip : public DistRunTest,
             public ::testing::WithParamInterface<SkipCase> {};

// The first, a middle and the last step are spoilt on rank 1, in the last
// element of the last micro-step; the gradients of `probe` alone overflow.
TEST_P(Skip, LeavesEveryRankAsItWas) {
  const SkipCase& c = GetParam();
  const std::set<int> bad = {0, 2, 4};
  std::vector<std::vector<Bytes>> snapshots(2);
  Job job{.build = Odd, .pipeline = Sharded(2, c.dtype), .steps = 5};
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
      if (step == 0) continue;
      const Bytes& before = snapshots[rank][step - 1];
      const Bytes& after = snapshots[rank][step];
      if (bad.count(step) > 0) {
        EXPECT_EQ(before, after) << "rank " << rank << ", step " << step;
      } else {
        EXPECT_NE(before, after) << "rank " << rank << ", step " << step;
      }
    }
    // Nothing moved in step 0 either.
    for (const auto& [name, bytes] : snapshots[rank][0]) {
      if (name.find("moment") == std::string::npos) continue;
      for (std::byte byte : bytes) ASSERT_EQ(byte, std::byte{0}) << name;
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

TEST_F(DistRunTest, LossScaleFollowsItsRule) {
  const std::set<int> bad = {2, 3, 4, 8};
  Job job{.build = Odd, .pipeline = Sharded(2), .steps = 13};
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

TEST_F(DistRunTest, ScalesThatArePowersOfTwoChangeNoBit) {
  Job job{.build = Odd, .pipeline = Sharded(2)};
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
