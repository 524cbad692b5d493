// plo compare on two Gloo ranks: one result and exactly planned memory, however
// the optimizer is sharded and offloaded. docs/memory_model.md has the
// formulas.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/integration/run_plo.h"

namespace plo {
namespace {

class Parity : public testing::TestWithParam<const char*> {
 protected:
  static int64_t Category(const nlohmann::json& variant, const char* name) {
    return variant["memory"]["device"]["by_category"][name];
  }
  static int64_t Peak(const nlohmann::json& variant) {
    return variant["memory"]["device"]["planned_peak_bytes"];
  }
};

TEST_P(Parity, BitsAndBytesOfAllVariants) {
  const std::string dtype = GetParam();
  const nlohmann::json report = RunPloJson(
      {"compare", "--device=cpu", "--nproc=2", "--model=gpt", "--layers=4",
       "--hidden=256", "--heads=4", "--seq_len=128", "--micro_batch=4",
       "--accumulate_steps=2", "--steps=3", "--clip_norm=1.0",
       "--dtype=" + dtype,
       "--variants=base:offload=none;"
       "sync:offload=optimizer,offload_mode=sync;"
       "overlap:offload=optimizer,offload_mode=overlap;"
       "half:offload=optimizer,offload_fraction=0.5;"
       "mix:offload=optimizer,offload_streamed_fraction=0.5;"
       "streamed:offload=optimizer,offload_streamed_fraction=1;"
       "s1:sharding_stage=1;s0:sharding_stage=0;norec:recompute=none;"
       "full:recompute=full"});
  std::map<std::string, nlohmann::json> variants;
  for (const auto& variant : report["variants"]) {
    variants[variant["name"]] = variant;
  }
  ASSERT_EQ(variants.size(), 10u);
  const nlohmann::json& base = variants["base"];
  ASSERT_EQ(base["losses"].size(), 3u);
  EXPECT_NE(base["losses"][0], base["losses"][2]);

  for (const auto& [name, variant] : variants) {
    SCOPED_TRACE(name);
    EXPECT_EQ(variant["losses"], base["losses"]);
    EXPECT_EQ(variant["grad_norms"], base["grad_norms"]);
    EXPECT_EQ(variant["param_digest"], base["param_digest"]);
    EXPECT_EQ(variant["skipped_steps"], base["skipped_steps"]);
    // M1: three figures that are found in different ways.
    const nlohmann::json& device = variant["memory"]["device"];
    EXPECT_EQ(device["planned_peak_bytes"], device["measured_peak_bytes"]);
    int64_t sum = 0;
    for (const auto& bytes : device["by_category"]) sum += bytes.get<int64_t>();
    EXPECT_EQ(sum, device["live_peak_bytes"].get<int64_t>());
    EXPECT_LE(sum, Peak(variant));
    EXPECT_GE(sum, 0.98 * Peak(variant));
  }

  const int64_t params = base["parameters"];
  const int64_t state_per_param = dtype == "fp32" ? 8 : 12;
  const int64_t state = Category(base, "optimizer_state");
  EXPECT_GE(state, state_per_param * params / 2);
  EXPECT_LE(state, 1.02 * state_per_param * params / 2);
  EXPECT_EQ(Category(variants["s1"], "optimizer_state"), state);
  EXPECT_EQ(Category(variants["s0"], "optimizer_state"), 2 * state);
  EXPECT_EQ(Category(variants["sync"], "optimizer_state"), 0);
  EXPECT_EQ(Category(variants["overlap"], "optimizer_state"), 0);
  // M5: what offload promises to save.
  EXPECT_GE(Peak(base) - Peak(variants["overlap"]), 0.98 * state);
  EXPECT_GE(Peak(base) - Peak(variants["sync"]), 0.98 * state);
  if (dtype != "fp32") {
    EXPECT_LE(Peak(variants["overlap"]), 0.65 * Peak(base));
  }
  // Half, within a bucket: no bucket holds more than a block.
  const int64_t block = state_per_param * (12 * 256 * 256 + 13 * 256) / 2;
  EXPECT_NEAR(Category(variants["half"], "optimizer_state"), state / 2, block);
  EXPECT_LT(Peak(variants["full"]), Peak(base));
  EXPECT_GT(Peak(variants["norec"]), Peak(base));

  // M5, host side.
  const double host =
      variants["overlap"]["memory"]["host_state_bytes_per_param"];
  EXPECT_LE(host, dtype == "fp32" ? 16.5 : 14.5);
  EXPECT_GE(host, dtype == "fp32" ? 16.0 : 14.0);
  const int64_t width = dtype == "fp32" ? 4 : 2;
  const nlohmann::json& transfers = variants["overlap"]["transfers"];
  EXPECT_GE(transfers["d2h_bytes_per_step"], width * params / 2);
  EXPECT_LE(transfers["d2h_bytes_per_step"], 1.02 * width * params / 2 + 1024);
  EXPECT_GE(transfers["h2d_bytes_per_step"], width * params / 2);
  EXPECT_LE(transfers["h2d_bytes_per_step"], 1.02 * width * params / 2 + 1024);
}

INSTANTIATE_TEST_SUITE_P(DTypes, Parity,
                         testing::Values("fp32", "bf16", "fp16"),
                         [](const auto& dtype) {
                           return std::string(dtype.param);
                         });

}  // namespace
}  // namespace plo
