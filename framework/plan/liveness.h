// Live ranges of temps on the compute axis; see the Note in plan.h.
#ifndef PLO_FRAMEWORK_PLAN_LIVENESS_H_
#define PLO_FRAMEWORK_PLAN_LIVENESS_H_

#include "framework/plan/plan.h"
#include "framework/plan/schedule.h"

namespace plo::planning {

// Sets Storage::live of the temps of plan.graphs[graph].
void FindLiveRanges(int graph, int world_size, const Timeline& timeline,
                    Plan& plan);

// The same for the temps of the startup section, which runs serially.
void FindStartupLiveRanges(Plan& plan);

// Events of the compute axis of a graph, at least one.
int32_t AxisLength(const GraphPlan& graph);
int32_t StartupAxisLength(const GraphPlan& graph);

// The launch at an event of the compute axis, or null if there is none.
const Launch* LaunchAt(const GraphPlan& graph, int32_t event);

}  // namespace plo::planning

#endif  // PLO_FRAMEWORK_PLAN_LIVENESS_H_
