#include "paddle_lite_offload/train_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

namespace plo {
namespace {

using nlohmann::json;

TEST(StepTimes, LeaveOutTheFirstStep) {
  const StepTimes times = SummarizeSteps({1000, 10, 20, 30, 40}, 50);
  EXPECT_DOUBLE_EQ(times.median_ms, 25);
  EXPECT_DOUBLE_EQ(times.p90_ms, 37);
  EXPECT_DOUBLE_EQ(times.tokens_per_second, 1000.0 * 50 * 4 / 100);
  EXPECT_DOUBLE_EQ(SummarizeSteps({10}, 50).median_ms, 10);
}

TrainReport SomeReport() {
  TrainReport report;
  report.device = "cpu";
  report.memory.planned_peak_bytes = 100;
  report.memory.by_category = {1, 2, 3, 4, 5, 6};
  return report;
}

TEST(TrainReportJson, HasTheKeysOfARun) {
  TrainReport report = SomeReport();
  report.memory.measured = {
      .peak_bytes = 100, .rss_peak_bytes = 7, .driver_used_bytes = {}};
  TrainOutcome run;
  run.losses = {1.1f, 0.3f};
  run.grad_norms = {1, 2};
  run.loss_scales = {std::nullopt, 8.0};
  run.param_digest = "00ff";
  run.streams = {{StreamKind::kD2H, 4, 1.5, 40}};
  report.outcome = run;
  const json out = json::parse(ToJson(report).dump());
  for (const char* key :
       {"config", "world_size", "device", "parameters", "losses", "grad_norms",
        "loss_scales", "skipped_steps", "step_ms", "estimated_step_ms",
        "tokens_per_second", "memory", "transfers", "plan_seconds",
        "param_digest"}) {
    EXPECT_TRUE(out.contains(key)) << key;
  }
  EXPECT_EQ(out["losses"][0].get<double>(), static_cast<double>(1.1f));
  EXPECT_TRUE(out["loss_scales"][0].is_null());
  EXPECT_EQ(out["loss_scales"][1], 8.0);
  EXPECT_TRUE(out["estimated_step_ms"].is_null());
  EXPECT_EQ(out["streams"], (json{{"d2h",
                                   {{"busy_ms", 4.0},
                                    {"exposed_ms", 1.5},
                                    {"gigabytes_per_second", 40.0}}}}));
  report.outcome->streams.clear();
  EXPECT_TRUE(ToJson(report)["streams"].is_null()) << "not traced";
  const json& memory = out["memory"];
  EXPECT_EQ(memory["device"]["measured_peak_bytes"], 100);
  EXPECT_EQ(memory["device"]["by_category"]["optimizer_state"], 3);
  EXPECT_EQ(memory["pinned"]["by_category"]["communication"], 0);
  EXPECT_TRUE(memory["driver_used_bytes"].is_null());
  EXPECT_TRUE(memory["driver_context_bytes"].is_null());
  EXPECT_TRUE(memory["host_state_bytes_per_param"].is_null());
  EXPECT_EQ(memory["rss_peak_bytes"], 7);
}

TEST(TrainReportJson, LeavesOutWhatOnlyARunKnows) {
  const json out = ToJson(SomeReport());
  for (const char* key : {"losses", "param_digest", "tokens_per_second"}) {
    EXPECT_FALSE(out.contains(key)) << key;
  }
  EXPECT_FALSE(out["memory"]["device"].contains("measured_peak_bytes"));
  EXPECT_FALSE(out["memory"].contains("rss_peak_bytes"));
}

TEST(ExchangeMemory, EveryRankGetsTheWorst) {
  auto comms = CreateThreadComms(3);
  std::vector<MemoryReport> reports(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      MemoryReport& memory = reports[rank];
      const int64_t peak = rank == 1 ? 500 : 100 + rank;
      memory.planned_peak_bytes = peak;
      memory.by_category[0] = peak;
      memory.measured = {.peak_bytes = peak,
                         .rss_peak_bytes = 1000 + rank,
                         .driver_used_bytes = {}};
      ExchangeMemory(*comms[rank], memory);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const MemoryReport& memory : reports) {
    EXPECT_EQ(memory.planned_peak_bytes, 500);
    EXPECT_EQ(memory.by_category[0], 500);
    EXPECT_EQ(memory.measured->peak_bytes, 500);
    EXPECT_EQ(memory.measured->rss_peak_bytes, 1002);
  }
}

}  // namespace
}  // namespace plo
