// How long planning takes, passes included: what `plo plan` does, against the
// seconds it may take. Exits 0 whatever the figures: a busy machine is no
// failure.
#include <chrono>
#include <cstdio>

#include "paddle_lite_offload/trainer.h"

namespace plo {
namespace {

struct Case {
  const char* name;
  int64_t layers, hidden, heads, seq_len, micro_batch;
  int world_size;
  double bound_seconds;
};

constexpr Case kCases[] = {
    {"20 x 1024, 2 ranks", 20, 1024, 16, 1024, 4, 2, 3},
    {"18 x 2048, 2 ranks", 18, 2048, 16, 1024, 4, 2, 3},
    {"96 x 12288, 1024 ranks", 96, 12288, 96, 2048, 1, 1024, 5},
};

void Measure(const Case& c, const char* offload) {
  TrainConfig config;
  config.model = "gpt";
  config.layers = c.layers;
  config.hidden = c.hidden;
  config.heads = c.heads;
  config.seq_len = c.seq_len;
  config.vocab_size = 50304;
  config.micro_batch = c.micro_batch;
  config.dtype = "bf16";
  config.sharding_stage = 2;
  config.offload = offload;
  const auto begin = std::chrono::steady_clock::now();
  const TrainReport report = PlanReport(config, c.world_size);
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - begin;
  std::printf("%-24s %-10s %10.1f %9.2f %9.2f %6.0f  %s\n", c.name, offload,
              static_cast<double>(report.memory.planned_peak_bytes) / (1 << 20),
              seconds.count(), report.plan_seconds, c.bound_seconds,
              seconds.count() < c.bound_seconds ? "pass" : "FAIL");
}

}  // namespace
}  // namespace plo

int main() {
  std::printf("%-24s %-10s %10s %9s %9s %6s\n", "gpt", "offload", "peak MiB",
              "seconds", "BuildPlan", "bound");
  for (const plo::Case& c : plo::kCases) {
    for (const char* offload : {"none", "optimizer"}) plo::Measure(c, offload);
  }
}
