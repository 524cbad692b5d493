#include "framework/plan/liveness.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "framework/plan/operands.h"

namespace plo::planning {
namespace {

constexpr int kCompute = static_cast<int>(StreamKind::kCompute);

struct Access {
  LaunchIndex launch = 0;
  ByteRange range;
  bool read = false;
  bool write = false;
};

// A set of bytes as sorted disjoint ranges.
class ByteSet {
 public:
  void Add(ByteRange range) {
    if (range.empty()) return;
    std::vector<ByteRange> merged;
    bool placed = false;
    for (const ByteRange& have : ranges_) {
      if (have.end < range.begin) {
        merged.push_back(have);
      } else if (range.end < have.begin) {
        if (!placed) merged.push_back(range);
        placed = true;
        merged.push_back(have);
      } else {
        range = {std::min(range.begin, have.begin),
                 std::max(range.end, have.end)};
      }
    }
    if (!placed) merged.push_back(range);
    ranges_ = std::move(merged);
  }
  bool Contains(ByteRange range) const {
    if (range.empty()) return true;
    for (const ByteRange& have : ranges_) {
      if (have.begin <= range.begin && range.end <= have.end) return true;
    }
    return false;
  }
  // True if all of `range` that is in `other` is in this.
  bool ContainsShared(ByteRange range, const ByteSet& other) const {
    for (const ByteRange& theirs : other.ranges_) {
      if (!Contains({std::max(range.begin, theirs.begin),
                     std::min(range.end, theirs.end)})) {
        return false;
      }
    }
    return true;
  }
  bool empty() const { return ranges_.empty(); }

 private:
  std::vector<ByteRange> ranges_;
};

// How long a value lives: within one repetition of a section, within one step,
// or across steps.
enum class Span { kSection, kStep, kForever };

class Lifetimes {
 public:
  Lifetimes(int graph_index, int world_size, const Timeline& timeline,
            Plan& plan)
      : graph_index_(graph_index),
        world_size_(world_size),
        timeline_(timeline),
        plan_(plan),
        graph_(plan.graphs[graph_index]) {}

  void Run() {
    LayOutAxis();
    FindEvents();
    CollectAccesses();
    for (size_t s = 0; s < plan_.storages.size(); ++s) {
      Storage& storage = plan_.storages[s];
      if (storage.persistent || storage.graph != graph_index_) continue;
      if (storage.bytes == 0) continue;
      ranges_.clear();
      AddLives(accesses_[s]);
      storage.live = Merged();
    }
  }

 private:
  static constexpr int32_t kNever = std::numeric_limits<int32_t>::max();

  void LayOutAxis() {
    axis_of_.assign(graph_.launches.size(), -1);
    int32_t count = 0;
    for (size_t i = 0; i < graph_.launches.size(); ++i) {
      if (static_cast<int32_t>(i) == graph_.micro_count) micro_end_ = 2 * count;
      if (graph_.launches[i].stream == StreamKind::kCompute) {
        axis_of_[i] = count++;
      }
    }
    if (graph_.micro_count == static_cast<int32_t>(graph_.launches.size())) {
      micro_end_ = 2 * count;
    }
    axis_end_ = AxisLength(graph_);
    if (count == 0) micro_end_ = axis_end_;
  }

  // begin_/end_ by instance: events in the unrolled compute stream, numbered
  // like those of the axis but without closing the cycle.
  void FindEvents() {
    const InstanceIndex count = timeline_.size();
    begin_.resize(count);
    end_.assign(count, kNever);
    std::vector<int32_t> compute_of(count, -1);
    std::vector<std::vector<InstanceIndex>> pending(kStreamCount);
    std::vector<size_t> released(kStreamCount, 0);
    for (size_t b = 0; b < timeline_.blocks.size(); ++b) {
      const Block& block = timeline_.blocks[b];
      for (InstanceIndex i = block.first; i < block.end; ++i) {
        const Launch& launch = graph_.launches[timeline_.launch[i]];
        const Clock& known = timeline_.known[i];
        if (launch.stream != StreamKind::kCompute) {
          const InstanceIndex before = known[kCompute];
          begin_[i] = before < 0 ? -1 : 2 * compute_of[before] + 1;
          pending[static_cast<int>(launch.stream)].push_back(i);
          continue;
        }
        const auto k = static_cast<int32_t>(compute_.size());
        compute_of[i] = k;
        compute_.push_back(
            {axis_of_[timeline_.launch[i]], static_cast<int32_t>(b)});
        begin_[i] = 2 * k;
        end_[i] = 2 * k + 1;
        for (int s = 0; s < kStreamCount; ++s) {
          size_t& next = released[s];
          while (next < pending[s].size() && pending[s][next] <= known[s]) {
            end_[pending[s][next++]] = 2 * k;
          }
        }
      }
    }
  }

  void CollectAccesses() {
    accesses_.resize(plan_.storages.size());
    for (size_t i = 0; i < graph_.launches.size(); ++i) {
      for (const Operand& operand : graph_.launches[i].operands) {
        const Storage& storage = plan_.storages[operand.storage];
        if (storage.persistent) continue;
        accesses_[operand.storage].push_back(
            {static_cast<LaunchIndex>(i), RangeOfAllRanks(operand, world_size_),
             operand.read, operand.write});
      }
    }
    // The instances of the step in the middle.
    for (const Block& block : timeline_.blocks) {
      if (block.step != kUnrolledSteps / 2) continue;
      std::vector<InstanceIndex> instances(graph_.launches.size(), -1);
      for (InstanceIndex i = block.first; i < block.end; ++i) {
        instances[timeline_.launch[i]] = i;
      }
      steady_.push_back(std::move(instances));
    }
  }

  // Reads must find what was written before them in the same repetition;
  // otherwise the bytes hold a value for longer. An op that updates bytes in
  // place may meet gaps that nobody else ever writes (padding to be zeroed).
  bool AllReadsCovered(const std::vector<Access>& accesses,
                       bool skip_first_micro_only, bool with_update) const {
    ByteSet values;  // bytes that get a value by plain writes
    for (size_t i = 0; i < accesses.size(); ++i) {
      if (accesses[i].write && !Updates(accesses, i)) {
        values.Add(accesses[i].range);
      }
    }
    ByteSet written;
    for (size_t i = 0; i < accesses.size(); ++i) {
      const Access& access = accesses[i];
      if (!with_update && access.launch >= graph_.micro_count) break;
      if (skip_first_micro_only &&
          graph_.launches[access.launch].first_micro_only) {
        continue;
      }
      if (access.write) {
        written.Add(access.range);
      } else if (!written.Contains(access.range)) {
        if (!Updates(accesses, i) || values.empty() ||
            !written.ContainsShared(access.range, values)) {
          return false;
        }
      }
    }
    return true;
  }

  // True if the launch of access i both reads and writes some of its bytes.
  static bool Updates(const std::vector<Access>& accesses, size_t i) {
    const Access& access = accesses[i];
    const auto clashes = [&](const Access& other) {
      return other.write != access.write &&
             other.range.begin < access.range.end &&
             access.range.begin < other.range.end;
    };
    for (size_t j = i; j-- > 0 && accesses[j].launch == access.launch;) {
      if (clashes(accesses[j])) return true;
    }
    for (size_t j = i + 1;
         j < accesses.size() && accesses[j].launch == access.launch; ++j) {
      if (clashes(accesses[j])) return true;
    }
    return false;
  }

  Span SpanOf(const std::vector<Access>& accesses) const {
    if (!AllReadsCovered(accesses, /*skip_first_micro_only=*/false,
                         /*with_update=*/true)) {
      return Span::kForever;
    }
    const bool in_micro = accesses.front().launch < graph_.micro_count;
    const bool in_update = accesses.back().launch >= graph_.micro_count;
    if (in_micro && in_update) return Span::kStep;
    if (in_micro && graph_.accumulate_steps > 1 &&
        !AllReadsCovered(accesses, /*skip_first_micro_only=*/true,
                         /*with_update=*/false)) {
      return Span::kStep;
    }
    return Span::kSection;
  }

  void AddLives(const std::vector<Access>& accesses) {
    if (accesses.empty()) return;
    const Span span = SpanOf(accesses);
    if (span == Span::kForever) return AddRange(-1, kNever);
    int32_t begin = kNever, end = -1;
    for (const std::vector<InstanceIndex>& instances : steady_) {
      if (span == Span::kSection) begin = kNever, end = -1;
      for (const Access& access : accesses) {
        const InstanceIndex i = instances[access.launch];
        if (i < 0) continue;
        begin = std::min(begin, begin_[i]);
        end = std::max(end, end_[i]);
      }
      if (span == Span::kSection && end >= 0) AddRange(begin, end);
    }
    if (span == Span::kStep) AddRange(begin, end);
  }

  int32_t SectionBegin(int32_t block) const {
    return timeline_.blocks[block].section == Section::kMicro ? 0 : micro_end_;
  }
  int32_t SectionEnd(int32_t block) const {
    return timeline_.blocks[block].section == Section::kMicro ? micro_end_
                                                              : axis_end_;
  }

  // Folds a range of the unrolled compute stream onto the axis.
  void AddRange(int32_t begin, int32_t end) {
    if (begin < 0 || end == kNever) {
      ranges_.push_back({0, axis_end_});
      return;
    }
    const Compute& from = compute_[begin / 2];
    const int32_t first = 2 * from.axis + begin % 2;
    const Compute& to = compute_[end / 2];
    const int32_t last = 2 * to.axis + end % 2;
    if (from.block == to.block) {
      ranges_.push_back({first, last});
      return;
    }
    ranges_.push_back({first, SectionEnd(from.block)});
    for (int32_t b = from.block + 1; b < to.block; ++b) {
      ranges_.push_back({SectionBegin(b), SectionEnd(b)});
    }
    // Ending where a repetition starts is ending with the one before.
    const bool at_start =
        end % 2 == 0 && compute_[end / 2 - 1].block != to.block;
    if (!at_start) ranges_.push_back({SectionBegin(to.block), last});
  }

  std::vector<LiveRange> Merged() {
    std::sort(ranges_.begin(), ranges_.end(),
              [](const LiveRange& a, const LiveRange& b) {
                return a.begin < b.begin;
              });
    std::vector<LiveRange> merged;
    for (const LiveRange& range : ranges_) {
      if (range.begin >= range.end) continue;
      if (!merged.empty() && range.begin <= merged.back().end) {
        merged.back().end = std::max(merged.back().end, range.end);
      } else {
        merged.push_back(range);
      }
    }
    return merged;
  }

  struct Compute {
    int32_t axis = 0;   // which compute launch of the cycle
    int32_t block = 0;  // of the timeline
  };

  const int graph_index_;
  const int world_size_;
  const Timeline& timeline_;
  Plan& plan_;
  const GraphPlan& graph_;
  std::vector<int32_t> axis_of_;  // by launch, -1 off the compute stream
  int32_t micro_end_ = 0, axis_end_ = 0;
  std::vector<Compute> compute_;               // the unrolled compute stream
  std::vector<int32_t> begin_, end_;           // by instance
  std::vector<std::vector<Access>> accesses_;  // by storage
  std::vector<std::vector<InstanceIndex>> steady_;  // by block and launch
  std::vector<LiveRange> ranges_;
};

}  // namespace

void FindLiveRanges(int graph, int world_size, const Timeline& timeline,
                    Plan& plan) {
  Lifetimes(graph, world_size, timeline, plan).Run();
}

void FindStartupLiveRanges(Plan& plan) {
  const std::vector<Launch>& launches = plan.graphs[0].startup;
  for (size_t i = 0; i < launches.size(); ++i) {
    for (const Operand& operand : launches[i].operands) {
      Storage& storage = plan.storages[operand.storage];
      if (storage.persistent || storage.bytes == 0) continue;
      const auto start = static_cast<int32_t>(2 * i);
      if (storage.live.empty()) storage.live.push_back({start, start + 1});
      storage.live[0].end = start + 1;
    }
  }
}

int32_t AxisLength(const GraphPlan& graph) {
  int32_t count = 0;
  for (const Launch& launch : graph.launches) {
    count += launch.stream == StreamKind::kCompute;
  }
  return std::max(2 * count, 1);
}

int32_t StartupAxisLength(const GraphPlan& graph) {
  return std::max<int32_t>(2 * static_cast<int32_t>(graph.startup.size()), 1);
}

const Launch* LaunchAt(const GraphPlan& graph, int32_t event) {
  for (const Launch& launch : graph.launches) {
    if (launch.stream != StreamKind::kCompute) continue;
    if (event < 2) return &launch;
    event -= 2;
  }
  return nullptr;
}

}  // namespace plo::planning
