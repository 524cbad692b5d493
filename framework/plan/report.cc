#include "framework/plan/report.h"

#include <algorithm>
#include <iomanip>
#include <string_view>

#include "framework/ir/checked_math.h"
#include "framework/plan/liveness.h"

namespace plo::planning {
namespace {

constexpr size_t kTopTensors = 10;

int32_t AxisOf(const Plan& plan, int graph) {
  return graph == kStartupGraph ? StartupAxisLength(plan.graphs[0])
                                : AxisLength(plan.graphs[graph]);
}

bool LiveAt(const Storage& storage, const PeakPoint& point) {
  if (storage.persistent) return true;
  if (storage.graph != point.graph) return false;
  return std::any_of(
      storage.live.begin(), storage.live.end(), [&](const LiveRange& range) {
        return range.begin <= point.event && point.event < range.end;
      });
}

const Launch* LaunchAtPoint(const Plan& plan, const PeakPoint& point) {
  if (point.graph != kStartupGraph) {
    return LaunchAt(plan.graphs[point.graph], point.event);
  }
  const auto& startup = plan.graphs[0].startup;
  const size_t index = point.event / 2;
  return index < startup.size() ? &startup[index] : nullptr;
}

std::string Bytes(int64_t bytes) {
  std::ostringstream out;
  out << bytes << " bytes (" << std::fixed << std::setprecision(1)
      << static_cast<double>(bytes) / (1 << 20) << " MiB)";
  return out.str();
}

// Micro-steps make transfers as large as sums of storages never are.
void AddTransfer(int64_t times, int64_t bytes, const char* what,
                 int64_t& total) {
  total = CheckedAdd(total, CheckedMul(times, bytes, what), what);
}

const PlacePeak& PeakOf(const Plan& plan, Place place) {
  return place == Place::kDevice ? plan.device : plan.pinned;
}

}  // namespace

PeakPoint FindPeak(const Plan& plan, Place place) {
  int64_t persistent = 0;
  for (const Storage& storage : plan.storages) {
    if (storage.place == place && storage.persistent) {
      persistent += storage.bytes;
    }
  }
  PeakPoint peak;
  peak.bytes = -1;
  // The training graph first, so that it is named when others tie with it.
  std::vector<int> graphs;
  for (size_t g = 0; g < plan.graphs.size(); ++g) {
    graphs.push_back(static_cast<int>(g));
  }
  graphs.push_back(kStartupGraph);
  for (int graph : graphs) {
    std::vector<int64_t> change(AxisOf(plan, graph) + 1, 0);
    for (const Storage& storage : plan.storages) {
      if (storage.place != place || storage.persistent ||
          storage.graph != graph) {
        continue;
      }
      for (const LiveRange& range : storage.live) {
        change[range.begin] += storage.bytes;
        change[range.end] -= storage.bytes;
      }
    }
    int64_t live = persistent;
    for (int32_t event = 0; event + 1 < static_cast<int32_t>(change.size());
         ++event) {
      live += change[event];
      if (live > peak.bytes) peak = {graph, event, live};
    }
  }
  return peak;
}

std::vector<StorageIndex> LiveAt(const Plan& plan, Place place,
                                 const PeakPoint& point) {
  std::vector<StorageIndex> live;
  for (size_t i = 0; i < plan.storages.size(); ++i) {
    if (plan.storages[i].place == place && LiveAt(plan.storages[i], point)) {
      live.push_back(static_cast<StorageIndex>(i));
    }
  }
  return live;
}

std::string DescribeLaunch(const Program& program, const Launch& launch) {
  switch (launch.kind) {
    case LaunchKind::kOp:
      return Describe(program.op(launch.op));
    case LaunchKind::kFeed:
      return StrCat("feed '", program.var(launch.var).name, "'");
    case LaunchKind::kFetch:
      return StrCat("fetch '", program.var(launch.var).name, "'");
  }
  return "";
}

void ReportPeaks(const std::vector<const Program*>& programs, Plan& plan) {
  for (Place place : {Place::kDevice, Place::kPinned}) {
    PlacePeak& peak = place == Place::kDevice ? plan.device : plan.pinned;
    const PeakPoint point = FindPeak(plan, place);
    peak.live_peak_bytes = point.bytes;
    for (StorageIndex i : LiveAt(plan, place, point)) {
      const Storage& storage = plan.storages[i];
      peak.by_category[static_cast<size_t>(storage.category)] += storage.bytes;
    }
    if (place != Place::kDevice) continue;
    const Launch* launch = LaunchAtPoint(plan, point);
    if (launch != nullptr) {
      peak.peak_op =
          DescribeLaunch(*programs[std::max(point.graph, 0)], *launch);
    }
  }
}

int64_t RingBytes(const Launch& launch, std::string_view op_type,
                  int world_size) {
  if (world_size <= 1) return 0;
  // Of the operands the whole tensor is the larger one.
  int64_t full = 0;
  for (const Operand& operand : launch.operands) {
    if (operand.var != kNoId) full = std::max(full, operand.bytes);
  }
  const int64_t own = full / world_size + (full % world_size != 0);
  const int64_t sent = full - own;
  return op_type == "all_reduce" ? 2 * sent : sent;
}

void ReportTransfers(const Program& program, const OpRegistry& registry,
                     Plan& plan) {
  const GraphPlan& graph = plan.graphs[0];
  for (const Launch& launch : graph.launches) {
    if (launch.kind != LaunchKind::kOp) continue;
    const Op& op = program.op(launch.op);
    const OpSchema& schema = registry.Get(op.type);
    const bool repeated =
        launch.section == Section::kMicro && !launch.first_micro_only;
    const int64_t times = repeated ? graph.accumulate_steps : 1;
    if (schema.collective) {
      AddTransfer(times, RingBytes(launch, op.type, program.world_size),
                  "the collective bytes per step",
                  plan.collective_bytes_per_step);
    }
    if (schema.where != OpSchema::Where::kCopy) continue;
    for (const Operand& to : launch.operands) {
      if (!to.write) continue;
      if (plan.storages[to.storage].place == Place::kPinned) {
        AddTransfer(times, to.bytes, "the bytes to the host per step",
                    plan.d2h_bytes_per_step);
      } else {
        AddTransfer(times, to.bytes, "the bytes to the device per step",
                    plan.h2d_bytes_per_step);
      }
    }
  }
  for (const Storage& storage : plan.storages) {
    if (storage.place != Place::kPinned || !storage.persistent) continue;
    switch (storage.category) {
      case MemoryCategory::kParams:
      case MemoryCategory::kGrads:
      case MemoryCategory::kOptimizerState:
        plan.host_state_bytes += storage.bytes;
        break;
      default:
        break;
    }
  }
}

void CheckLimit(const Plan& plan, Place place, int64_t limit) {
  const PlacePeak& peak = PeakOf(plan, place);
  if (limit <= 0 || peak.arena_bytes <= limit) return;
  const bool device = place == Place::kDevice;
  std::vector<StorageIndex> live = LiveAt(plan, place, FindPeak(plan, place));
  std::stable_sort(live.begin(), live.end(),
                   [&](StorageIndex a, StorageIndex b) {
                     return plan.storages[a].bytes > plan.storages[b].bytes;
                   });
  if (live.size() > kTopTensors) live.resize(kTopTensors);
  std::string top;
  for (StorageIndex i : live) {
    const Storage& storage = plan.storages[i];
    top += StrCat(top.empty() ? "" : ", ", "'", storage.name, "' (",
                  Name(storage.category), ") ", Bytes(storage.bytes));
  }
  PLO_THROW(kOutOfMemory, "the plan needs ", Bytes(peak.arena_bytes), " of ",
            Name(place), " memory, ", Bytes(peak.arena_bytes - limit),
            " more than the limit of ", Bytes(limit), "; ",
            peak.peak_op.empty() ? "" : "the peak is at " + peak.peak_op + "; ",
            "largest live tensors: ", top, "; the smallest ",
            device ? "device" : "host", "_memory_limit that would do is ",
            peak.arena_bytes);
}

}  // namespace plo::planning
