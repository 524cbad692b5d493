// The race checker. It believes nothing of how the plan was made: it replays
// streams and waits with its own clocks and remembers, for every byte of the
// arenas, who wrote it last and who has read it since.
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "framework/plan/plan.h"

namespace plo {
namespace {

// Per stream how many of its launches are known complete.
using Tickets = std::array<int64_t, kStreamCount>;

// Who did something: the ticket on its stream and which launch it was.
struct Actor {
  int64_t ticket = 0;  // 0: nobody
  int stream = 0;
  const Launch* launch = nullptr;
};

struct Bytes {
  int64_t end = 0;
  StorageIndex written_as = -1;  // -1: still the initial contents
  Actor writer;
  std::array<Actor, kStreamCount> readers{};
};

using Arena = std::map<int64_t, Bytes>;  // by begin; disjoint

// Splits so that a range starts at `at` if a range covers it.
void SplitAt(Arena& arena, int64_t at) {
  auto it = arena.upper_bound(at);
  if (it == arena.begin()) return;
  --it;
  if (it->first == at || it->second.end <= at) return;
  Bytes rest = it->second;
  it->second.end = at;
  arena.emplace_hint(std::next(it), at, rest);
}

class RaceChecker {
 public:
  RaceChecker(const Plan& plan, const Program& program, int rank)
      : plan_(plan), program_(program), rank_(rank) {}

  void CheckGraph(size_t index) {
    const GraphPlan& graph = plan_.graphs[index];
    index_ = index;
    arenas_ = {};
    tickets_ = {};
    done_ = {};
    CollectValues(graph);
    if (index == 0) {
      for (const Launch& launch : graph.startup) {
        CheckBounds(launch);
        Replay(launch, tickets_);  // serial: everything before is complete
      }
      // The executor waits for startup.
      done_.fill(tickets_);
    }
    for (const Launch& launch : graph.launches) {
      CheckBounds(launch);
      for (LaunchIndex wait : launch.waits) {
        PLO_ENFORCE(
            wait >= 0 && wait < static_cast<LaunchIndex>(graph.launches.size()),
            kInternal, NameOf(launch), " waits for launch ", wait,
            ", which does not exist");
      }
    }
    constexpr int kSteps = 3;
    const int micros = std::min(graph.accumulate_steps, 3);
    finished_.assign(graph.launches.size(), std::nullopt);
    for (int step = 0; step < kSteps; ++step) {
      for (int micro = 0; micro < micros; ++micro) {
        for (int32_t i = 0; i < graph.micro_count; ++i) {
          if (micro > 0 && graph.launches[i].first_micro_only) continue;
          Issue(graph, i);
        }
      }
      for (size_t i = graph.micro_count; i < graph.launches.size(); ++i) {
        Issue(graph, static_cast<LaunchIndex>(i));
      }
    }
  }

 private:
  void Issue(const GraphPlan& graph, LaunchIndex index) {
    const Launch& launch = graph.launches[index];
    const int stream = static_cast<int>(launch.stream);
    Tickets known = done_[stream];
    for (LaunchIndex wait : launch.waits) {
      if (!finished_[wait]) continue;
      for (int s = 0; s < kStreamCount; ++s) {
        known[s] = std::max(known[s], (*finished_[wait])[s]);
      }
    }
    Replay(launch, known);
    known[stream] = tickets_[stream];
    done_[stream] = known;
    finished_[index] = known;
  }

  // One issue of `launch` that starts when `known` is complete.
  void Replay(const Launch& launch, const Tickets& known) {
    const int stream = static_cast<int>(launch.stream);
    const Actor self{++tickets_[stream], stream, &launch};
    for (const Operand& operand : launch.operands) {
      if (operand.read) Read(launch, operand, self, known);
    }
    for (const Operand& operand : launch.operands) {
      if (operand.write) Write(operand, self, known);
    }
  }

  void Read(const Launch& launch, const Operand& operand, const Actor& self,
            const Tickets& known) {
    const Storage& storage = plan_.storages[operand.storage];
    const auto [begin, end] = RangeOf(operand);
    Arena& arena = Touch(storage.place, begin, end);
    for (auto it = arena.lower_bound(begin);
         it != arena.end() && it->first < end; ++it) {
      Bytes& bytes = it->second;
      CheckOrdered(bytes.writer, self, known, storage, it->first);
      const bool own = bytes.written_as == operand.storage ||
                       (bytes.written_as < 0 && storage.persistent);
      if (!own && NeedsValue(launch, operand, it->first, bytes.end)) {
        PLO_THROW(kInternal, NameOf(launch), " reads bytes ", it->first, "..",
                  bytes.end, " of ", Name(storage.place), " memory as '",
                  storage.name, "', but they were last written ",
                  bytes.written_as < 0
                      ? std::string("never")
                      : StrCat("as '", plan_.storages[bytes.written_as].name,
                               "' by ", NameOf(*bytes.writer.launch)));
      }
      bytes.readers[self.stream] = self;
    }
  }

  void Write(const Operand& operand, const Actor& self, const Tickets& known) {
    const Storage& storage = plan_.storages[operand.storage];
    const auto [begin, end] = RangeOf(operand);
    if (begin == end) return;
    Arena& arena = Touch(storage.place, begin, end);
    const auto first = arena.lower_bound(begin);
    auto it = first;
    for (; it != arena.end() && it->first < end; ++it) {
      CheckOrdered(it->second.writer, self, known, storage, it->first);
      for (const Actor& reader : it->second.readers) {
        CheckOrdered(reader, self, known, storage, it->first);
      }
    }
    arena.erase(first, it);
    Bytes bytes;
    bytes.end = end;
    bytes.written_as = operand.storage;
    bytes.writer = self;
    arena.emplace(begin, bytes);
  }

  void CheckOrdered(const Actor& earlier, const Actor& self,
                    const Tickets& known, const Storage& storage,
                    int64_t at) const {
    if (earlier.ticket == 0 || earlier.ticket <= known[earlier.stream]) return;
    if (earlier.stream == self.stream && earlier.ticket <= self.ticket) return;
    PLO_THROW(kInternal, "race on byte ", at, " of ", Name(storage.place),
              " memory ('", storage.name, "'): ", NameOf(*self.launch),
              " on stream ", Name(self.launch->stream),
              " is not ordered after ", NameOf(*earlier.launch), " on stream ",
              Name(earlier.launch->stream));
  }

  // Makes the ranges of the arena tile [begin, end).
  Arena& Touch(Place place, int64_t begin, int64_t end) {
    Arena& arena = arenas_[static_cast<size_t>(place)];
    if (begin == end) return arena;
    SplitAt(arena, begin);
    SplitAt(arena, end);
    int64_t at = begin;
    for (auto it = arena.lower_bound(begin); at < end; ++it) {
      const int64_t next = it == arena.end() ? end : std::min(end, it->first);
      if (at < next) {
        Bytes fresh;
        fresh.end = next;
        it = arena.emplace_hint(it, at, fresh);
      }
      at = it->second.end;
    }
    return arena;
  }

  std::pair<int64_t, int64_t> RangeOf(const Operand& operand) const {
    const int64_t begin = plan_.storages[operand.storage].offset +
                          operand.offset + rank_ * operand.rank_stride;
    return {begin, begin + operand.bytes};
  }

  void CheckBounds(const Launch& launch) const {
    for (const Operand& operand : launch.operands) {
      const Storage& storage = plan_.storages[operand.storage];
      const int64_t begin = operand.offset + rank_ * operand.rank_stride;
      const int64_t arena = storage.place == Place::kDevice
                                ? plan_.device.arena_bytes
                                : plan_.pinned.arena_bytes;
      PLO_ENFORCE(begin >= 0 && begin + operand.bytes <= storage.bytes,
                  kInternal, NameOf(launch), " touches bytes ", begin, "..",
                  begin + operand.bytes, " of '", storage.name, "', which has ",
                  storage.bytes);
      PLO_ENFORCE(
          storage.bytes == 0 ||
              (storage.offset >= 0 && storage.offset + storage.bytes <= arena),
          kInternal, "'", storage.name, "' lies outside the ",
          Name(storage.place), " arena");
    }
  }

  // An op that updates bytes in place (it reads and writes them) may meet some
  // that nobody else ever writes, such as padding it is there to clear.
  bool NeedsValue(const Launch& launch, const Operand& operand, int64_t begin,
                  int64_t end) const {
    if (!ReadsAndWrites(launch, operand)) return true;
    const auto& values = values_[operand.storage];
    if (values.empty()) return true;
    for (const auto& [value_begin, value_end] : values) {
      if (value_begin < end && begin < value_end) return true;
    }
    return false;
  }

  bool ReadsAndWrites(const Launch& launch, const Operand& operand) const {
    for (const Operand& other : launch.operands) {
      if (other.storage == operand.storage && other.write != operand.write &&
          RangeOf(other).first < RangeOf(operand).second &&
          RangeOf(operand).first < RangeOf(other).second) {
        return true;
      }
    }
    return false;
  }

  // Bytes of each storage that some launch writes without reading them.
  void CollectValues(const GraphPlan& graph) {
    values_.assign(plan_.storages.size(), {});
    for (const auto* launches : {&graph.startup, &graph.launches}) {
      for (const Launch& launch : *launches) {
        for (const Operand& operand : launch.operands) {
          if (operand.write && !ReadsAndWrites(launch, operand)) {
            values_[operand.storage].push_back(RangeOf(operand));
          }
        }
      }
    }
  }

  std::string NameOf(const Launch& launch) const {
    const bool known = index_ == 0;
    switch (launch.kind) {
      case LaunchKind::kOp:
        return known && program_.HasOp(launch.op)
                   ? Describe(program_.op(launch.op))
                   : StrCat("op #", launch.op, " of '",
                            plan_.graphs[index_].name, "'");
      case LaunchKind::kFeed:
      case LaunchKind::kFetch:
        return StrCat(
            launch.kind == LaunchKind::kFeed ? "feed" : "fetch", " '",
            known ? program_.var(launch.var).name : StrCat("#", launch.var),
            "'");
    }
    return "";
  }

  const Plan& plan_;
  const Program& program_;
  const int rank_;
  size_t index_ = 0;
  std::array<Arena, 2> arenas_;               // by Place
  Tickets tickets_{};                         // issued so far
  std::array<Tickets, kStreamCount> done_{};  // known after a stream's last one
  // By launch: what is known once its latest issue is complete.
  std::vector<std::optional<Tickets>> finished_;
  std::vector<std::vector<std::pair<int64_t, int64_t>>> values_;  // by storage
};

}  // namespace

void CheckRaces(const Plan& plan, const Program& program, int rank) {
  RaceChecker checker(plan, program, rank);
  for (size_t g = 0; g < plan.graphs.size(); ++g) checker.CheckGraph(g);
}

}  // namespace plo
