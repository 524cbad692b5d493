// Which device bytes are live at once, from what was launched.
//
// A few steps are laid out in issue order. Every instance of a launch gets, by
// stream order and waits, how many instances of each stream are complete when
// it starts. From these follow, for each access, the last event of the compute
// stream before and the first one after it (plan.h, "the compute axis"), on an
// axis that does not wrap.
#include <algorithm>
#include <array>
#include <map>

#include "framework/runtime/memory_check.h"

namespace plo {
namespace {

using Clock = std::array<int32_t, kStreamCount>;  // instances complete
constexpr auto kCompute = static_cast<size_t>(StreamKind::kCompute);

struct Instance {
  const BoundLaunch* bound = nullptr;
  int period = 0;      // micro-steps counted over all steps
  int32_t number = 0;  // on its stream, from 1
  Clock at_start{};
};

// Events 2i and 2i + 1: start and completion of compute instance i, from 0.
struct Lifetime {
  int64_t begin = 0;
  int64_t end = 0;
  int period = -1;
};

class Timeline {
 public:
  explicit Timeline(const ExecutorCore& core) : core_(core) {}

  void AddStartup(const BoundGraph& graph) {
    Clock clock{};
    for (const BoundLaunch& bound : graph.startup) {
      if (bound.last_ticket == 0) continue;
      // Serial: as if all ran on one stream.
      Instance instance;
      instance.bound = &bound;
      instance.at_start = clock;
      instance.number = ++clock[kCompute];
      compute_starts_.push_back(instance.at_start);
      Push(instance, kCompute);
    }
  }

  void AddSteps(const BoundGraph& graph, int steps) {
    std::vector<Clock> latest(graph.launches.size());
    std::vector<bool> issued(graph.launches.size(), false);
    std::array<Clock, kStreamCount> stream_clock{};
    const auto micro_count = static_cast<size_t>(graph.plan->micro_count);
    // The micro-steps between the second and the last repeat one another.
    const int micros = std::min(graph.plan->accumulate_steps, 3);
    auto issue = [&](size_t i, int period) {
      const BoundLaunch& bound = graph.launches[i];
      if (bound.last_ticket == 0) return;
      const auto stream = static_cast<size_t>(bound.launch->stream);
      Clock clock = stream_clock[stream];
      for (const LaunchIndex index : bound.launch->waits) {
        const auto of = static_cast<size_t>(index);
        if (!issued[of]) continue;
        for (size_t s = 0; s < clock.size(); ++s) {
          clock[s] = std::max(clock[s], latest[of][s]);
        }
      }
      Instance instance;
      instance.bound = &bound;
      instance.period = period;
      instance.at_start = clock;
      instance.number = ++clock[stream];
      stream_clock[stream] = clock;
      latest[i] = clock;
      issued[i] = true;
      if (stream == kCompute) compute_starts_.push_back(instance.at_start);
      Push(instance, stream);
    };
    for (int step = 0; step < steps; ++step) {
      for (int micro = 0; micro < micros; ++micro) {
        for (size_t i = 0; i < micro_count; ++i) {
          if (micro > 0 && graph.launches[i].once_per_step()) continue;
          issue(i, step * micros + micro);
        }
      }
      for (size_t i = micro_count; i < graph.launches.size(); ++i) {
        issue(i, step * micros + micros - 1);
      }
    }
  }

  void MaxInto(LivePeak& peak) const {
    const auto events = 2 * static_cast<int64_t>(compute_starts_.size()) + 1;
    std::map<StorageIndex, std::vector<Lifetime>> lifetimes;
    for (const auto& [instance, stream] : instances_) {
      for (const BoundRange& range : instance.bound->ranges) {
        AddAccess(instance, stream, range, events, lifetimes[range.storage]);
      }
    }
    // Changes of the live bytes at each event.
    std::vector<CategoryBytes> delta(static_cast<size_t>(events) + 1);
    for (const auto& [index, list] : lifetimes) {
      const Storage& storage = core_.plan.storages[static_cast<size_t>(index)];
      if (storage.persistent || storage.place != Place::kDevice) continue;
      const auto category = static_cast<size_t>(storage.category);
      for (const Lifetime& life : Merged(list)) {
        delta[static_cast<size_t>(life.begin)][category] += storage.bytes;
        delta[static_cast<size_t>(life.end)][category] -= storage.bytes;
      }
    }
    CategoryBytes live{};
    for (const Storage& storage : core_.plan.storages) {
      if (storage.persistent && storage.place == Place::kDevice) {
        live[static_cast<size_t>(storage.category)] += storage.bytes;
      }
    }
    for (const CategoryBytes& change : delta) {
      int64_t total = 0;
      for (size_t c = 0; c < live.size(); ++c) total += live[c] += change[c];
      if (total > peak.bytes) peak = LivePeak{total, live};
    }
  }

 private:
  void Push(const Instance& instance, size_t stream) {
    instances_.emplace_back(instance, stream);
  }

  int64_t EventBefore(const Instance& instance, size_t stream) const {
    if (stream == kCompute) return 2 * (int64_t{instance.number} - 1);
    return std::max<int64_t>(0, 2 * int64_t{instance.at_start[kCompute]} - 1);
  }

  int64_t EventAfter(const Instance& instance, size_t stream,
                     int64_t events) const {
    if (stream == kCompute) return 2 * int64_t{instance.number} - 1;
    const auto first = std::partition_point(
        compute_starts_.begin(), compute_starts_.end(),
        [&](const Clock& clock) { return clock[stream] < instance.number; });
    return std::min<int64_t>(2 * (first - compute_starts_.begin()), events);
  }

  // A storage starts a new life in each micro-step whose first access only
  // writes; the update goes on with what the last micro-step left.
  void AddAccess(const Instance& instance, size_t stream,
                 const BoundRange& range, int64_t events,
                 std::vector<Lifetime>& list) const {
    const int64_t begin = EventBefore(instance, stream);
    const int64_t end = EventAfter(instance, stream, events);
    const bool only_writes =
        range.write &&
        (!range.read || (range.var == kNoId && !instance.bound->is_ring()));
    if (list.empty() ||
        (list.back().period != instance.period && only_writes)) {
      list.push_back(Lifetime{begin, end, instance.period});
      return;
    }
    Lifetime& life = list.back();
    life.begin = std::min(life.begin, begin);
    life.end = std::max(life.end, end);
    life.period = instance.period;
  }

  static std::vector<Lifetime> Merged(std::vector<Lifetime> list) {
    std::sort(
        list.begin(), list.end(),
        [](const Lifetime& a, const Lifetime& b) { return a.begin < b.begin; });
    std::vector<Lifetime> result;
    for (const Lifetime& life : list) {
      if (!result.empty() && life.begin < result.back().end) {
        result.back().end = std::max(result.back().end, life.end);
      } else {
        result.push_back(life);
      }
    }
    return result;
  }

  const ExecutorCore& core_;
  std::vector<std::pair<Instance, size_t>> instances_;  // with their streams
  std::vector<Clock> compute_starts_;
};

}  // namespace

LivePeak MeasureLivePeak(const ExecutorCore& core) {
  LivePeak peak;
  for (size_t i = 0; i < core.graphs.size(); ++i) {
    const BoundGraph& graph = *core.graphs[i];
    Timeline startup(core);
    startup.AddStartup(graph);
    startup.MaxInto(peak);
    Timeline steps(core);
    // Eval runs stand alone; training steps overlap their neighbours.
    steps.AddSteps(graph, i == 0 ? 3 : 1);
    steps.MaxInto(peak);
  }
  return peak;
}

}  // namespace plo
