// Estimated step time of a plan: replays its launches on serial streams with
// durations from a table of rates.
#ifndef PLO_FRAMEWORK_PLAN_SIMULATOR_H_
#define PLO_FRAMEWORK_PLAN_SIMULATOR_H_

#include <array>

#include "framework/plan/plan.h"
#include "framework/plan/rates.h"

namespace plo {

struct StepEstimate {
  double step_ms = 0;      // steady state, one cycle
  double backward_ms = 0;  // of the compute stream in one micro-step
  std::array<double, kStreamCount> busy_ms{};  // by StreamKind
};
StepEstimate SimulateStep(const Plan& plan, const Program& program,
                          const Rates& rates,
                          const OpRegistry& registry = OpRegistry::Global());

}  // namespace plo

#endif  // PLO_FRAMEWORK_PLAN_SIMULATOR_H_
