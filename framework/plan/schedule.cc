#include "framework/plan/schedule.h"

#include <algorithm>
#include <unordered_map>

#include "framework/plan/operands.h"

namespace plo::planning {
namespace {

constexpr Clock kNothing = {-1, -1, -1, -1, -1};

void Join(Clock& clock, const Clock& other) {
  for (int s = 0; s < kStreamCount; ++s) {
    clock[s] = std::max(clock[s], other[s]);
  }
}

int StreamOf(const Launch& launch) { return static_cast<int>(launch.stream); }

Timeline Unroll(const GraphPlan& graph) {
  Timeline timeline;
  const auto count = static_cast<LaunchIndex>(graph.launches.size());
  const int micros = std::min(graph.accumulate_steps, kUnrolledMicros);
  for (int step = 0; step < kUnrolledSteps; ++step) {
    for (int block = 0; block <= micros; ++block) {
      const bool update = block == micros;
      const InstanceIndex first = timeline.size();
      const LaunchIndex end = update ? count : graph.micro_count;
      for (LaunchIndex i = update ? graph.micro_count : 0; i < end; ++i) {
        if (block > 0 && graph.launches[i].first_micro_only) continue;
        timeline.launch.push_back(i);
      }
      timeline.blocks.push_back({update ? Section::kUpdate : Section::kMicro,
                                 step, first, timeline.size()});
    }
  }
  return timeline;
}

// The accesses of one storage so far, by disjoint byte ranges.
class History {
 public:
  // Joins into `needed` what an access of `range` must come after.
  void Access(ByteRange range, bool write, InstanceIndex instance, int stream,
              const std::vector<int>& stream_of, Clock& needed) {
    if (range.empty()) return;
    size_t i = Cover(range);
    for (; i < segments_.size() && segments_[i].begin < range.end; ++i) {
      Segment& segment = segments_[i];
      if (segment.writer >= 0 && segment.writer != instance) {
        InstanceIndex& last = needed[stream_of[segment.writer]];
        last = std::max(last, segment.writer);
      }
      if (!write) {
        segment.readers[stream] = instance;
        continue;
      }
      for (int s = 0; s < kStreamCount; ++s) {
        if (segment.readers[s] != instance) {
          needed[s] = std::max(needed[s], segment.readers[s]);
        }
      }
      segment.readers = kNothing;
      segment.writer = instance;
    }
  }

 private:
  struct Segment {
    int64_t begin = 0;
    int64_t end = 0;
    InstanceIndex writer = -1;
    Clock readers = kNothing;  // since the write, the last of each stream
  };

  // Splits and adds segments so that they tile `range`; returns the first.
  size_t Cover(ByteRange range) {
    auto at = std::lower_bound(segments_.begin(), segments_.end(), range.begin,
                               [](const Segment& segment, int64_t begin) {
                                 return segment.end <= begin;
                               });
    size_t i = at - segments_.begin();
    if (i < segments_.size() && segments_[i].begin < range.begin) {
      Split(i, range.begin);
      ++i;
    }
    const size_t first = i;
    for (int64_t begin = range.begin; begin < range.end; ++i) {
      if (i == segments_.size() || segments_[i].begin > begin) {
        Segment fresh;
        fresh.begin = begin;
        fresh.end = i == segments_.size()
                        ? range.end
                        : std::min(range.end, segments_[i].begin);
        segments_.insert(segments_.begin() + i, fresh);
      } else if (segments_[i].end > range.end) {
        Split(i, range.end);
      }
      begin = segments_[i].end;
    }
    return first;
  }

  void Split(size_t i, int64_t at) {
    Segment rest = segments_[i];
    rest.begin = at;
    segments_[i].end = at;
    segments_.insert(segments_.begin() + i + 1, rest);
  }

  std::vector<Segment> segments_;
};

class Scheduler {
 public:
  Scheduler(const Program& program, int graph_index, Plan& plan)
      : program_(program),
        plan_(plan),
        graph_(plan.graphs[graph_index]),
        timeline_(Unroll(graph_)) {
    for (LaunchIndex launch : timeline_.launch) {
      stream_of_.push_back(StreamOf(graph_.launches[launch]));
    }
    steady_ = 0;
    while (timeline_.blocks[steady_].step == 0) ++steady_;
    steady_ = timeline_.blocks[steady_].first;
  }

  Timeline Run() {
    CollectNeeds();
    ChooseWaits();
    Replay();
    PLO_ENFORCE(AllNeedsMet(), kInternal, "the waits of graph '", graph_.name,
                "' do not order its launches");
    return std::move(timeline_);
  }

 private:
  // needs_[i]: per stream the last instance that i must start after.
  void CollectNeeds() {
    std::unordered_map<OpId, LaunchIndex> launch_of;
    for (size_t i = 0; i < graph_.launches.size(); ++i) {
      const Launch& launch = graph_.launches[i];
      if (launch.kind == LaunchKind::kOp) {
        launch_of[launch.op] = static_cast<LaunchIndex>(i);
      }
    }
    std::vector<std::vector<LaunchIndex>> after(graph_.launches.size());
    for (const auto& [op, launch] : launch_of) {
      for (OpId earlier : program_.op(op).after) {
        const auto it = launch_of.find(earlier);
        if (it != launch_of.end()) after[launch].push_back(it->second);
      }
    }
    std::vector<History> histories(plan_.storages.size());
    std::vector<InstanceIndex> latest(graph_.launches.size(), -1);
    needs_.assign(timeline_.size(), kNothing);
    for (InstanceIndex i = 0; i < timeline_.size(); ++i) {
      const LaunchIndex index = timeline_.launch[i];
      const Launch& launch = graph_.launches[index];
      Clock& needed = needs_[i];
      for (bool write : {false, true}) {
        for (const Operand& operand : launch.operands) {
          if (write ? !operand.write : !operand.read) continue;
          histories[operand.storage].Access(
              RangeOfAllRanks(operand, program_.world_size), write, i,
              stream_of_[i], stream_of_, needed);
        }
      }
      for (LaunchIndex earlier : after[index]) {
        const InstanceIndex instance = latest[earlier];
        if (instance < 0) continue;
        InstanceIndex& last = needed[stream_of_[instance]];
        last = std::max(last, instance);
      }
      needed[stream_of_[i]] = -1;  // streams are in order
      latest[index] = i;
    }
  }

  // Keeps of the needs those that nothing else implies. The reduction of a
  // DAG being unique, each may be judged by the closure of all of them. A wait
  // kept for one repetition of micro holds in the others too, where it adds
  // nothing: accesses that conflict are ordered in all of them.
  void ChooseWaits() {
    timeline_.known.assign(timeline_.size(), kNothing);
    std::vector<std::vector<LaunchIndex>> waits(graph_.launches.size());
    Clock last = kNothing;
    for (InstanceIndex i = 0; i < timeline_.size(); ++i) {
      Clock& known = timeline_.known[i];
      known = KnownBefore(last[stream_of_[i]]);
      const Clock& needed = needs_[i];
      for (int s = 0; s < kStreamCount; ++s) {
        if (needed[s] < 0 || needed[s] <= known[s]) continue;
        bool implied = false;
        for (int other = 0; other < kStreamCount; ++other) {
          if (other == s || needed[other] < 0) continue;
          implied |= timeline_.known[needed[other]][s] >= needed[s];
        }
        if (!implied && i >= steady_) {
          waits[timeline_.launch[i]].push_back(timeline_.launch[needed[s]]);
        }
      }
      for (int s = 0; s < kStreamCount; ++s) {
        if (needed[s] >= 0) JoinComplete(known, needed[s]);
      }
      last[stream_of_[i]] = i;
    }
    for (size_t i = 0; i < waits.size(); ++i) {
      std::sort(waits[i].begin(), waits[i].end());
      waits[i].erase(std::unique(waits[i].begin(), waits[i].end()),
                     waits[i].end());
      graph_.launches[i].waits = std::move(waits[i]);
    }
  }

  // What is known once `instance` is complete.
  void JoinComplete(Clock& clock, InstanceIndex instance) const {
    Join(clock, timeline_.known[instance]);
    InstanceIndex& own = clock[stream_of_[instance]];
    own = std::max(own, instance);
  }
  Clock KnownBefore(InstanceIndex previous_of_stream) const {
    Clock clock = kNothing;
    if (previous_of_stream >= 0) JoinComplete(clock, previous_of_stream);
    return clock;
  }

  // timeline_.known by the waits the launches have now.
  void Replay() {
    std::vector<InstanceIndex> latest(graph_.launches.size(), -1);
    Clock last = kNothing;
    for (InstanceIndex i = 0; i < timeline_.size(); ++i) {
      const LaunchIndex index = timeline_.launch[i];
      Clock known = KnownBefore(last[stream_of_[i]]);
      for (LaunchIndex wait : graph_.launches[index].waits) {
        if (latest[wait] >= 0) JoinComplete(known, latest[wait]);
      }
      timeline_.known[i] = known;
      last[stream_of_[i]] = i;
      latest[index] = i;
    }
  }

  bool AllNeedsMet() const {
    for (InstanceIndex i = 0; i < timeline_.size(); ++i) {
      for (int s = 0; s < kStreamCount; ++s) {
        if (needs_[i][s] > timeline_.known[i][s]) return false;
      }
    }
    return true;
  }

  const Program& program_;
  Plan& plan_;
  GraphPlan& graph_;
  Timeline timeline_;
  std::vector<int> stream_of_;  // by instance
  InstanceIndex steady_ = 0;    // the first one after the first step
  std::vector<Clock> needs_;
};

}  // namespace

Timeline ScheduleGraph(const Program& program, int graph, Plan& plan) {
  return Scheduler(program, graph, plan).Run();
}

}  // namespace plo::planning
