#include "framework/plan/plan.h"

#include <chrono>

#include "framework/plan/liveness.h"
#include "framework/plan/offsets.h"
#include "framework/plan/operands.h"
#include "framework/plan/report.h"
#include "framework/plan/schedule.h"

namespace plo {

Plan BuildPlan(const Program& program, const PlanOptions& options,
               const OpRegistry& registry) {
  const auto started = std::chrono::steady_clock::now();
  const std::vector<const Program*> programs =
      planning::GraphPrograms(program, options);
  Plan plan;
  planning::BuildLaunches(program, options, registry, plan);
  planning::MergeInPlace(programs, registry, plan);
  for (size_t g = 0; g < plan.graphs.size(); ++g) {
    const int graph = static_cast<int>(g);
    const planning::Timeline timeline =
        planning::ScheduleGraph(*programs[g], graph, plan);
    planning::FindLiveRanges(graph, programs[g]->world_size, timeline, plan);
  }
  planning::FindStartupLiveRanges(plan);
  planning::AssignOffsets(plan);
  planning::ReportPeaks(programs, plan);
  planning::ReportTransfers(program, registry, plan);
  planning::CheckLimit(plan, Place::kDevice, options.device_memory_limit);
  planning::CheckLimit(plan, Place::kPinned, options.host_memory_limit);
  plan.plan_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - started)
          .count();
  return plan;
}

}  // namespace plo
