#include "paddle_lite_offload/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <thread>

namespace plo {
namespace {

TrainConfig SmallMlp() {
  TrainConfig config;
  config.model = "mlp";
  config.device = "cpu";  // ranks are threads
  config.layers = 2;
  config.hidden = 24;
  config.steps = 6;
  config.micro_batch = 4;
  config.bucket_mb = 0.002;
  config.clip_norm = 1;
  return config;
}

TrainConfig SmallGpt() {
  TrainConfig config = SmallMlp();
  config.model = "gpt";
  config.heads = 2;
  config.seq_len = 12;
  config.vocab_size = 31;
  config.dropout = 0.1;
  config.steps = 4;
  return config;
}

TrainReport TrainOn(const TrainConfig& config, int ranks) {
  if (ranks == 1) {
    Trainer trainer(config);
    trainer.Run();
    return trainer.Report();
  }
  auto comms = CreateThreadComms(ranks);
  std::vector<TrainReport> reports(ranks);
  std::vector<std::string> errors(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        TrainerOptions options;
        options.comm = comms[rank].get();
        options.local_rank = rank;
        options.local_world_size = ranks;
        Trainer trainer(config, options);
        trainer.Run();
        reports[rank] = trainer.Report();
      } catch (const std::exception& error) {
        errors[rank] = error.what();
        comms[rank]->Abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  return reports[0];
}

void ExpectSameBits(const TrainReport& a, const TrainReport& b) {
  ASSERT_TRUE(a.outcome && b.outcome);
  EXPECT_EQ(a.outcome->losses, b.outcome->losses);
  EXPECT_EQ(a.outcome->grad_norms, b.outcome->grad_norms);
  EXPECT_EQ(a.outcome->param_digest, b.outcome->param_digest);
}

TEST(Trainer, LearnsARegression) {
  TrainConfig config = SmallMlp();
  config.steps = 500;
  config.micro_batch = 16;
  config.lr = 1e-2;
  const TrainReport report = TrainOn(config, 1);
  const std::vector<double>& losses = report.outcome->losses;
  const auto mean = [](auto begin, auto end) {
    return std::accumulate(begin, end, 0.0) / (end - begin);
  };
  EXPECT_LT(mean(losses.end() - 20, losses.end()),
            0.6 * mean(losses.begin(), losses.begin() + 20));
  EXPECT_EQ(report.memory.measured->peak_bytes,
            report.memory.planned_peak_bytes);
}

TEST(Trainer, OffloadAndStagesChangeNoBit) {
  for (const TrainConfig& base : {SmallMlp(), SmallGpt()}) {
    const TrainReport reference = TrainOn(base, 2);
    for (int variant = 0; variant < 5; ++variant) {
      TrainConfig config = base;
      config.offload = variant < 3 ? "optimizer" : "none";
      if (variant == 1) config.offload_mode = "sync";
      if (variant == 2) config.offload_fraction = 0.5;
      if (variant >= 3) config.sharding_stage = variant - 3;
      const TrainReport report = TrainOn(config, 2);
      ExpectSameBits(report, reference);
      EXPECT_EQ(report.memory.measured->peak_bytes,
                report.memory.planned_peak_bytes);
      if (variant < 2) {
        EXPECT_EQ(report.memory.by_category[static_cast<size_t>(
                      MemoryCategory::kOptimizerState)],
                  0);
        EXPECT_GT(*report.memory.host_state_bytes_per_param, 15);
      }
    }
  }
}

TEST(Trainer, RanksShareTheGlobalBatch) {
  TrainConfig one = SmallGpt();
  one.micro_batch = 4;
  TrainConfig two = one;
  two.micro_batch = 2;
  TrainConfig micro = two;
  micro.accumulate_steps = 2;
  const TrainReport reference = TrainOn(one, 1);
  for (const TrainReport& report : {TrainOn(two, 2), TrainOn(micro, 1)}) {
    for (size_t step = 0; step < reference.outcome->losses.size(); ++step) {
      EXPECT_NEAR(report.outcome->losses[step], reference.outcome->losses[step],
                  1e-5 * reference.outcome->losses[step]);
    }
  }
}

TEST(Trainer, PlanAgreesWithTheRun) {
  TrainConfig config = SmallGpt();
  config.dtype = "bf16";
  config.offload = "optimizer";
  config.device = "auto";  // plans for a GPU, whose rates are built in
  const std::optional<double> estimate =
      PlanReport(config, 2).estimated_step_ms;
  ASSERT_TRUE(estimate);
  EXPECT_GT(*estimate, 0);
  config.device = "cpu";
  const TrainReport plan = PlanReport(config, 2);
  const TrainReport run = TrainOn(config, 2);
  EXPECT_EQ(plan.memory.planned_peak_bytes, run.memory.measured->peak_bytes);
  EXPECT_EQ(plan.memory.by_category, run.memory.by_category);
  EXPECT_EQ(plan.d2h_bytes_per_step, run.d2h_bytes_per_step);
  EXPECT_EQ(plan.parameters, run.parameters);
  EXPECT_FALSE(plan.outcome);
  EXPECT_FALSE(plan.estimated_step_ms);  // a CPU's rates are not built in
}

TEST(Trainer, WritesMetricsAndTraces) {
  TrainConfig config = SmallMlp();
  config.log_dir = ::testing::TempDir() + "/trainer_test_logs";
  config.trace = ::testing::TempDir() + "/trainer_test_trace.json";
  TrainOn(config, 1);
  std::ifstream metrics(config.log_dir + "/metrics.jsonl");
  int lines = 0;
  for (std::string line; std::getline(metrics, line); ++lines) {
    const auto json = nlohmann::json::parse(line);
    EXPECT_EQ(json.at("step"), lines + 1);
    EXPECT_GT(json.at("loss_metrics/global_avg_loss"), 0);
    EXPECT_GT(json.at("throughput(tps)"), 0);
  }
  EXPECT_EQ(lines, config.steps);
  std::ifstream trace(config.trace);
  EXPECT_FALSE(nlohmann::json::parse(trace).at("traceEvents").empty());
}

TEST(Trainer, GeneratesBytes) {
  TrainConfig config = SmallGpt();
  config.vocab_size = 256;
  config.generate = 20;  // longer than the context
  config.prompt = "ab";
  Trainer trainer(config);
  trainer.Run();
  const std::string text = trainer.Generate();
  EXPECT_EQ(text.size(), 22u);
  EXPECT_EQ(text.substr(0, 2), "ab");
  EXPECT_EQ(trainer.Generate(), text);  // the same seed
}

TEST(Trainer, LimitIsCheckedBeforeAnyStep) {
  TrainConfig config = SmallMlp();
  config.device_memory_limit = 4096;
  try {
    PlanReport(config, 1);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
  }
}

}  // namespace
}  // namespace plo
