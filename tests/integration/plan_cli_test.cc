// plo plan at the sizes people ask about.
#include <gtest/gtest.h>

#include "tests/integration/run_plo.h"

namespace plo {
namespace {

constexpr int64_t kMiB = 1 << 20;

std::vector<std::string> Gpt(int layers, int hidden,
                             const std::string& offload) {
  std::vector<std::string> args = {
      "plan",           "--model=gpt",        "--heads=16",
      "--seq_len=1024", "--vocab_size=50304", "--micro_batch=4",
      "--dtype=bf16",   "--world_size=2",     "--sharding_stage=2"};
  args.push_back("--layers=" + std::to_string(layers));
  args.push_back("--hidden=" + std::to_string(hidden));
  args.push_back("--offload=" + offload);
  return args;
}

void ExpectPlan(int layers, int hidden, int64_t limit) {
  const nlohmann::json none = RunPloJson(Gpt(layers, hidden, "none"));
  const nlohmann::json full = RunPloJson(Gpt(layers, hidden, "optimizer"));
  const auto peak = [](const nlohmann::json& plan) {
    return plan["memory"]["device"]["planned_peak_bytes"].get<int64_t>();
  };
  EXPECT_LT(peak(full), limit);
  const double owned = full["parameters"].get<double>() / 2;
  EXPECT_GE(peak(none) - peak(full), 0.98 * 12 * owned);
  EXPECT_EQ(full["memory"]["device"]["by_category"]["optimizer_state"], 0);
  EXPECT_GT(full["estimated_step_ms"], 0.0);
  // Nothing that only a run knows.
  EXPECT_FALSE(full.contains("param_digest"));
}

// The peaks are those that Paddle published for these models.
TEST(PlanCli, OneBillionParams) { ExpectPlan(18, 2048, 5369 * kMiB); }
TEST(PlanCli, ThirdOfABillionParams) { ExpectPlan(20, 1024, 3137 * kMiB); }

TEST(PlanCli, AThousandRanks) {
  const nlohmann::json plan =
      RunPloJson({"plan", "--model=gpt", "--layers=96", "--hidden=12288",
                  "--heads=96", "--seq_len=2048", "--vocab_size=50304",
                  "--micro_batch=1", "--world_size=1024", "--dtype=bf16",
                  "--sharding_stage=2", "--offload=optimizer"});
  EXPECT_EQ(plan["world_size"], 1024);
  EXPECT_GT(plan["parameters"].get<double>(), 170e9);
  EXPECT_GT(plan["memory"]["device"]["planned_peak_bytes"].get<double>(),
            2.0 * plan["parameters"].get<double>());
}

// What grows with the square of the depth would take minutes.
TEST(PlanCli, AThousandLayers) {
  const nlohmann::json plan = RunPloJson(
      {"plan", "--layers=1000", "--hidden=16", "--heads=2", "--world_size=8",
       "--offload=optimizer", "--accumulate_steps=1000000"});
  const auto& device = plan["memory"]["device"];
  EXPECT_LE(device["planned_peak_bytes"].get<double>(),
            1.02 * device["live_peak_bytes"].get<double>());
}

TEST(PlanCli, SizesBeyond64BitsAreErrors) {
  const std::vector<std::string> tiny = {"plan", "--heads=2", "--seq_len=1",
                                         "--steps=1", "--vocab_size=4"};
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{
           {"--hidden=16", "--layers=4", "--micro_batch=10000000000000000"},
           {"--hidden=500000", "--layers=1", "--world_size=1048576",
            "--micro_batch=1", "--accumulate_steps=1048576"}}) {
    auto args = tiny;
    args.insert(args.end(), flags.begin(), flags.end());
    const PloResult result = RunPlo(args);
    EXPECT_NE(result.exit_code, 0) << result.out;
    EXPECT_NE(result.err.find("InvalidArgument"), std::string::npos)
        << result.err;
  }
}

TEST(PlanCli, AnInfeasibleLimitNamesThePeak) {
  auto args = Gpt(18, 2048, "optimizer");
  args.push_back("--device_memory_limit=4GiB");
  const PloResult result = RunPlo(args);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("OutOfMemory"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("op '"), std::string::npos) << result.err;
  args.back() = "--host_memory_limit=1GiB";
  const PloResult host = RunPlo(args);
  EXPECT_EQ(host.exit_code, 1);
  EXPECT_NE(host.err.find("OutOfMemory"), std::string::npos) << host.err;
}

}  // namespace
}  // namespace plo
