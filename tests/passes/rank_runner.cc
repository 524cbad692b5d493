#include "tests/passes/rank_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include "framework/runtime/comm.h"
#include "paddle_lite_offload/graph_builder.h"
#include "paddle_lite_offload/param_digest.h"

namespace plo {
namespace {

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
  if (job.inspect) job.inspect(-1, rank, engine);
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

}  // namespace

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

States Snapshot(Engine& engine) {
  const Program& program = engine.program();
  States states;
  const auto read = [&](const std::string& key, VarId v) {
    if (v != kNoId) states[key] = engine.Read(program.var(v).name).data;
  };
  for (const Bucket& bucket : program.buckets) {
    read(bucket.name + "/param", bucket.param);
    read(bucket.name + "/master", bucket.master);
    read(bucket.name + "/moment1", bucket.moment1);
    read(bucket.name + "/moment2", bucket.moment2);
  }
  read("applied_step", program.GetVar("applied_step"));
  return states;
}

std::vector<std::pair<std::string, Job>> OtherPaces(
    const Job& job, const std::vector<int64_t>& depths) {
  std::vector<std::pair<std::string, Job>> paces;
  Job other = job;
  for (const int64_t depth : depths) {
    other.pipeline.prefetch_depth = depth;
    paces.emplace_back(StrCat("depth ", depth), other);
  }
  for (int slow = 0; slow < kStreamCount; ++slow) {
    other.delay_us = [slow](StreamKind stream, OpId op) {
      return static_cast<int>(stream) == slow ? 200 + op % 7 * 50 : 0;
    };
    paces.emplace_back(StrCat("slow stream ", slow), other);
  }
  return paces;
}

DefaultPipelineOptions Sharded(int64_t degree, DType dtype) {
  DefaultPipelineOptions o;
  o.dtype = dtype;
  o.sharding_degree = degree;
  o.bucket_mb = 0.01;
  o.clip_norm = 0.5;
  return o;
}

Program OddParams() {
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

}  // namespace plo
