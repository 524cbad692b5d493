#include "framework/plan/profile.h"

#include <algorithm>
#include <limits>

#include "framework/plan/liveness.h"
#include "framework/plan/operands.h"
#include "framework/plan/schedule.h"

namespace plo {
namespace {

Plan PlanLifetimes(const Program& program, DeviceKind device,
                   const OpRegistry& registry) {
  PlanOptions options;
  options.device = device;
  Plan plan;
  planning::BuildLaunches(program, options, registry, plan);
  planning::MergeInPlace({&program}, registry, plan);
  const planning::Timeline timeline =
      planning::ScheduleGraph(program, /*graph=*/0, plan);
  planning::FindLiveRanges(/*graph=*/0, program.world_size, timeline, plan);
  return plan;
}

// Bytes of temps by event.
std::vector<int64_t> LiveBytes(const Plan& plan,
                               const std::unordered_set<VarId>& excluded) {
  std::vector<int64_t> live(planning::AxisLength(plan.graphs[0]) + 1, 0);
  for (const Storage& storage : plan.storages) {
    if (storage.persistent || storage.place != Place::kDevice ||
        storage.graph != 0 || excluded.count(storage.var) > 0) {
      continue;
    }
    for (const LiveRange& range : storage.live) {
      live[range.begin] += storage.bytes;
      live[range.end] -= storage.bytes;
    }
  }
  for (size_t i = 1; i < live.size(); ++i) live[i] += live[i - 1];
  live.pop_back();
  return live;
}

}  // namespace

DeviceProfile ProfileDevice(const Program& program,
                            const std::unordered_set<VarId>& excluded,
                            const OpRegistry& registry) {
  DeviceProfile profile;
  for (const DeviceKind device : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    const Plan plan = PlanLifetimes(program, device, registry);
    const GraphPlan& graph = plan.graphs[0];
    profile.ops.clear();
    for (size_t i = 0; i < graph.launches.size(); ++i) {
      const Launch& launch = graph.launches[i];
      if (launch.stream != StreamKind::kCompute) continue;
      profile.ops.push_back(launch.kind == LaunchKind::kOp ? launch.op : kNoId);
      if (static_cast<int32_t>(i) < graph.micro_count) {
        profile.micro_count = profile.ops.size();
      }
    }
    const std::vector<int64_t> live = LiveBytes(plan, excluded);
    const int64_t peak = *std::max_element(live.begin(), live.end());
    profile.room.resize(live.size(), std::numeric_limits<int64_t>::max());
    for (size_t i = 0; i < live.size(); ++i) {
      profile.room[i] = std::min(profile.room[i], peak - live[i]);
    }
  }
  return profile;
}

}  // namespace plo
