#include "framework/plan/profile.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "framework/plan/holes.h"
#include "framework/plan/liveness.h"
#include "framework/plan/operands.h"
#include "framework/plan/schedule.h"

namespace plo {
namespace {

Plan PlanLifetimes(const Program& program, DeviceKind device,
                   const std::unordered_set<VarId>& excluded,
                   const OpRegistry& registry) {
  PlanOptions options;
  options.device = device;
  // What a run fetches: a small difference may move everything.
  for (VarId id : {program.mean_loss, program.step_record}) {
    if (id != kNoId) options.fetches.push_back(id);
  }
  Plan plan;
  planning::BuildLaunches(program, options, registry, plan);
  planning::MergeInPlace({&program}, registry, plan);
  const planning::Timeline timeline =
      planning::ScheduleGraph(program, /*graph=*/0, plan);
  planning::FindLiveRanges(/*graph=*/0, program.world_size, timeline, plan);
  std::erase_if(plan.storages, [&](const Storage& storage) {
    return !storage.persistent && excluded.count(storage.var) > 0;
  });
  return plan;
}

int64_t PersistentBytes(const Plan& plan) {
  int64_t bytes = 0;
  for (const Storage& storage : plan.storages) {
    if (storage.place == Place::kDevice && storage.persistent) {
      bytes += planning::AlignArena(storage.bytes);
    }
  }
  return bytes;
}

// What the temps of one kind of device leave free. Events 2i and 2i + 1 of the
// axis are the start and the completion of op i.
struct Room {
  planning::Holes holes;
  int32_t axis;
};

Room FindRoom(const Plan& plan) {
  const planning::TempArea area = planning::PackTemps(
      plan, Place::kDevice, /*graph=*/0, PersistentBytes(plan));
  return {planning::Holes(area.items, area.packing),
          planning::AxisLength(plan.graphs[0])};
}

class WindowFinder {
 public:
  WindowFinder(const Program& program, const DeviceProfile& profile,
               const std::vector<Room>& rooms, int64_t slot_bytes)
      : program_(program),
        profile_(profile),
        rooms_(rooms),
        slot_bytes_(slot_bytes) {}

  std::vector<RoomWindow> Run(size_t most) const {
    std::vector<RoomWindow> windows = InAllRooms(most);
    // As the plan will place them; see planning::Pack().
    for (size_t i = 0; i < rooms_.size(); ++i) {
      std::stable_sort(windows.begin(), windows.end(),
                       [](const RoomWindow& a, const RoomWindow& b) {
                         return a.end + b.start > b.end + a.start;
                       });
      if (DropHomeless(rooms_[i], windows)) i = static_cast<size_t>(-1);
    }
    return windows;
  }

 private:
  // The longest of each room, cut to what they have in common.
  std::vector<RoomWindow> InAllRooms(size_t most) const {
    std::vector<RoomWindow> windows(most, {0, profile_.micro_count});
    for (const Room& room : rooms_) {
      planning::Holes holes = room.holes;
      const auto last = static_cast<int32_t>(2 * profile_.micro_count) - 1;
      size_t count = 0;
      for (; count < windows.size(); ++count) {
        const std::optional<planning::Hole> hole =
            holes.Longest(slot_bytes_, {{0, 1}, {last, room.axis}});
        if (!hole) break;
        holes.Fill(*hole, slot_bytes_);
        RoomWindow& window = windows[count];
        window.start = std::max(window.start, Start(hole->from));
        window.end = std::min(window.end, End(hole->until));
      }
      windows.resize(count);
    }
    std::erase_if(windows, [this](const RoomWindow& window) {
      return window.start == profile_.micro_count || window.end == 0;
    });
    return windows;
  }

  // The first op of the last micro-step that completes at the event or later.
  size_t Start(int32_t from) const {
    for (size_t i = 0; i < profile_.micro_count; ++i) {
      if (static_cast<int32_t>(2 * i + 1) >= from &&
          profile_.RunsInLastMicro(program_, i)) {
        return i;
      }
    }
    return profile_.micro_count;
  }
  // The last op of micro that starts by the event; 0 if there is none.
  size_t End(int32_t until) const {
    for (size_t i = profile_.micro_count; i-- > 1;) {
      if (static_cast<int32_t>(2 * i) <= until && profile_.ops[i] != kNoId) {
        return i;
      }
    }
    return 0;
  }

  bool DropHomeless(const Room& room, std::vector<RoomWindow>& windows) const {
    planning::Holes holes = room.holes;
    std::vector<RoomWindow> housed;
    for (const RoomWindow& window : windows) {
      const std::optional<planning::Hole> hole = holes.Longest(
          slot_bytes_,
          {{0, static_cast<int32_t>(2 * window.end)},
           {static_cast<int32_t>(2 * window.start) + 1, room.axis}});
      if (!hole) continue;
      holes.Fill(*hole, slot_bytes_);
      housed.push_back(window);
    }
    const bool dropped = housed.size() < windows.size();
    windows = std::move(housed);
    return dropped;
  }

  const Program& program_;
  const DeviceProfile& profile_;
  const std::vector<Room>& rooms_;
  const int64_t slot_bytes_;
};

}  // namespace

DeviceProfile ProfileDevice(const Program& program,
                            const std::unordered_set<VarId>& excluded,
                            int64_t slot_bytes, size_t most,
                            const OpRegistry& registry) {
  DeviceProfile profile;
  std::vector<Room> rooms;
  for (const DeviceKind device : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    const Plan plan = PlanLifetimes(program, device, excluded, registry);
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
    rooms.push_back(FindRoom(plan));
  }
  profile.windows = WindowFinder(program, profile, rooms, slot_bytes).Run(most);
  return profile;
}

std::unordered_set<VarId> TempsWithoutRoom(const Program& program,
                                           const OpRegistry& registry) {
  std::unordered_set<VarId> vars;
  for (const DeviceKind device : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    const Plan plan = PlanLifetimes(program, device, {}, registry);
    const planning::TempArea area = planning::PackTemps(
        plan, Place::kDevice, /*graph=*/0, PersistentBytes(plan));
    for (size_t i : area.packing.homeless) {
      vars.insert(plan.storages[area.members[i]].var);
    }
  }
  return vars;
}

}  // namespace plo
