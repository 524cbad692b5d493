// plo on one GPU, and on two over NCCL where there are two: one result and
// exactly planned memory, however the optimizer is sharded and offloaded; the
// CPU's losses within rounding; a rank that dies ends the others.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>
#include <tuple>

#include "tests/framework/staged_nccl_comm.h"
#include "tests/integration/run_plo.h"

namespace plo {
namespace {

const std::vector<std::string> kSmallGpt = {
    "--model=gpt",          "--layers=4",
    "--hidden=256",         "--heads=4",
    "--seq_len=128",        "--micro_batch=4",
    "--accumulate_steps=2", "--clip_norm=1.0",
};

std::vector<std::string> Args(const char* command,
                              const std::vector<std::string>& more) {
  std::vector<std::string> args = {command};
  args.insert(args.end(), kSmallGpt.begin(), kSmallGpt.end());
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

class GpuParity : public testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  static std::string dtype() { return std::get<0>(GetParam()); }
  static int ranks() { return std::get<1>(GetParam()); }

  void SetUp() override {
    const std::string reason = WhyTooFewGpus(ranks());
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_P(GpuParity, BitsAndBytesOfAllVariants) {
  const nlohmann::json report = RunPloJson(
      Args("compare",
           {"--device=cuda", "--nproc=" + std::to_string(ranks()), "--steps=5",
            "--dtype=" + dtype(),
            "--variants=base:offload=none;"
            "sync:offload=optimizer,offload_mode=sync;"
            "overlap:offload=optimizer,offload_mode=overlap;"
            "half:offload=optimizer,offload_fraction=0.5;"
            "host:offload=optimizer,offload_streamed_fraction=0;"
            "mix:offload=optimizer,offload_streamed_fraction=0.5;"
            "streamed:offload=optimizer,offload_streamed_fraction=1;"
            "three:offload=optimizer,offload_fraction=0.6,"
            "offload_streamed_fraction=0.5;"
            "s1:sharding_stage=1;s0:sharding_stage=0;norec:recompute=none;"
            "full:recompute=full;single:cuda_graphs=false"}),
      600);
  ASSERT_EQ(report["variants"].size(), 13u);
  const nlohmann::json& base = report["variants"][0];
  ASSERT_EQ(base["losses"].size(), 5u);
  EXPECT_NE(base["losses"][0], base["losses"][4]);
  for (const nlohmann::json& variant : report["variants"]) {
    SCOPED_TRACE(variant["name"].get<std::string>());
    EXPECT_EQ(variant["device"], "cuda");
    EXPECT_EQ(variant["losses"], base["losses"]);
    EXPECT_EQ(variant["grad_norms"], base["grad_norms"]);
    EXPECT_EQ(variant["loss_scales"], base["loss_scales"]);
    EXPECT_EQ(variant["skipped_steps"], base["skipped_steps"]);
    EXPECT_EQ(variant["param_digest"], base["param_digest"]);
    const nlohmann::json& device = variant["memory"]["device"];
    EXPECT_EQ(device["planned_peak_bytes"], device["measured_peak_bytes"]);
    int64_t sum = 0;
    for (const auto& bytes : device["by_category"]) sum += bytes.get<int64_t>();
    EXPECT_EQ(sum, device["live_peak_bytes"].get<int64_t>());
  }
}

TEST_P(GpuParity, TwoRunsGiveTheSameBits) {
  const auto run = [&] {
    return RunPloJson(Args(
        "train", {"--device=cuda", "--nproc=" + std::to_string(ranks()),
                  "--steps=10", "--dtype=" + dtype(), "--offload=optimizer"}));
  };
  const nlohmann::json first = run();
  const nlohmann::json second = run();
  EXPECT_EQ(first["losses"], second["losses"]);
  EXPECT_EQ(first["param_digest"], second["param_digest"]);
}

// Dropout draws anew in every step: it must not be replayed.
TEST_P(GpuParity, GraphsGiveTheBitsOfSingleLaunches) {
  const auto run = [&](const char* graphs) {
    return RunPloJson(Args(
        "train", {"--device=cuda", "--nproc=" + std::to_string(ranks()),
                  "--steps=6", "--dtype=" + dtype(), "--offload=optimizer",
                  "--dropout=0.1", std::string("--cuda_graphs=") + graphs}));
  };
  const nlohmann::json replayed = run("true");
  const nlohmann::json single = run("false");
  EXPECT_EQ(replayed["losses"], single["losses"]);
  EXPECT_EQ(replayed["param_digest"], single["param_digest"]);
}

INSTANTIATE_TEST_SUITE_P(Ranks, GpuParity,
                         testing::Combine(testing::Values("fp32", "bf16",
                                                          "fp16"),
                                          testing::Values(1, 2)),
                         [](const auto& param) {
                           return std::string(std::get<0>(param.param)) +
                                  "OnGpus" +
                                  std::to_string(std::get<1>(param.param));
                         });

TEST(GpuAndCpu, LossesOfASmallGptAgree) {
  const std::string reason = WhyTooFewGpus(1);
  if (!reason.empty()) GTEST_SKIP() << reason;
  const auto losses = [](const char* device) {
    return RunPloJson(Args("train", {std::string("--device=") + device,
                                     "--steps=20", "--dtype=fp32"}),
                      600)["losses"]
        .get<std::vector<double>>();
  };
  const std::vector<double> cpu = losses("cpu");
  const std::vector<double> gpu = losses("cuda");
  ASSERT_EQ(cpu.size(), 20u);
  ASSERT_EQ(gpu.size(), 20u);
  for (size_t step = 0; step < cpu.size(); ++step) {
    EXPECT_NEAR(gpu[step], cpu[step], 1e-4 * std::abs(cpu[step])) << step;
  }
}

TEST(GpuFault, AKilledRankEndsTheOtherInMidTraining) {
  const std::string reason = WhyTooFewGpus(2);
  if (!reason.empty()) GTEST_SKIP() << reason;
  const int port = FreePort();
  const auto rank = [&](int r) -> Environment {
    return {{"RANK", std::to_string(r)},
            {"WORLD_SIZE", "2"},
            {"LOCAL_RANK", std::to_string(r)},
            {"LOCAL_WORLD_SIZE", "2"},
            {"MASTER_ADDR", "127.0.0.1"},
            {"MASTER_PORT", std::to_string(port)}};
  };
  const auto args =
      Args("train", {"--device=cuda", "--dtype=bf16", "--steps=1000000"});
  PloProcess rank0(args, rank(0));
  PloProcess rank1(args, rank(1));
  for (int i = 0; i < 1200; ++i) {
    if (rank0.ErrSoFar().find("step 1/") != std::string::npos) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  ASSERT_NE(rank0.ErrSoFar().find("step 1/"), std::string::npos)
      << rank0.ErrSoFar() << rank1.ErrSoFar();
  rank1.Kill();
  const PloResult result = rank0.Wait(30);
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_NE(result.err.find("Unavailable"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("rank 1"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace plo
