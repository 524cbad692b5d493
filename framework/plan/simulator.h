// Estimated step time of a plan: replays its launches on serial streams with
// durations from a table of rates.
#ifndef PLO_FRAMEWORK_PLAN_SIMULATOR_H_
#define PLO_FRAMEWORK_PLAN_SIMULATOR_H_

#include <array>
#include <string>

#include "framework/plan/plan.h"

namespace plo {

// What a machine does per second, per rank. Defaults: an H200 (design figures).
struct Rates {
  std::string name = "h200";
  double matmul_flops = 790e12;  // 16-bit
  double memory_bytes = 4.0e12;  // device memory traffic
  double d2h_bytes = 37e9;
  double h2d_bytes = 37e9;
  double collective_bytes = 160e9;
  double host_adam_bytes = 76e9;
  double host_memory_bytes = 92e9;  // updates and copies at once
  double launch_us = 3.8;
};

// Reads {"matmul_flops": ..., ...}; absent keys keep their defaults. Throws
// NotFound / InvalidArgument (unknown key, non-positive rate).
Rates LoadRates(const std::string& path);

struct StepEstimate {
  double step_ms = 0;                          // steady state, one cycle
  std::array<double, kStreamCount> busy_ms{};  // by StreamKind
};
StepEstimate SimulateStep(const Plan& plan, const Program& program,
                          const Rates& rates,
                          const OpRegistry& registry = OpRegistry::Global());

}  // namespace plo

#endif  // PLO_FRAMEWORK_PLAN_SIMULATOR_H_
