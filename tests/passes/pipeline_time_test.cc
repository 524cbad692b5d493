#include <gtest/gtest.h>

#include <chrono>
#include <iostream>

#include "passes/pass.h"
#include "passes/pipeline.h"
#include "tests/passes/pass_test_util.h"

namespace plo {
namespace {

// Verification and hashing after each pass included. Two seconds in a release
// build on an idle core is the aim; anything quadratic takes minutes.
TEST(PipelineTime, OfNinetySixLayers) {
  Program program = SmallGpt({.layers = 96,
                              .hidden = 12288,
                              .heads = 96,
                              .seq_len = 2048,
                              .vocab_size = 50304,
                              .micro_batch = 1});
  DefaultPipelineOptions options;
  options.dtype = DType::kBf16;
  options.sharding_degree = 1024;
  options.accumulate_steps = 4;
  options.loss_scale = "dynamic";
  options.clip_norm = 1;
  options.offload_optimizer = true;
  RegisterBuiltinPasses();
  PassManager manager = PassManager::Parse(DefaultPipeline(options));
  const auto start = std::chrono::steady_clock::now();
  manager.Run(program);
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - start;
  for (const PassRecord& record : manager.records()) {
    std::cout << record.text << ": " << record.seconds << " s, "
              << record.ops_after << " ops\n";
  }
  EXPECT_LT(seconds.count(), 30.0);
}

}  // namespace
}  // namespace plo
