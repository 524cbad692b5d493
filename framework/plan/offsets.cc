#include "framework/plan/offsets.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>

#include "framework/plan/holes.h"

namespace plo::planning {
namespace {

int64_t Lifetime(const PackItem& item) {
  int64_t length = 0;
  for (const LiveRange& range : item.live) length += range.end - range.begin;
  return length;
}

// Bytes times lifetime; all that 64 bits do not hold counts as equally large.
int64_t Area(const PackItem& item) {
  int64_t area = 0;
  return __builtin_mul_overflow(item.bytes, Lifetime(item), &area)
             ? std::numeric_limits<int64_t>::max()
             : area;
}

enum class Gap { kSmallest, kLowest };

bool Overlap(LiveRange a, LiveRange b) {
  return a.begin < b.end && b.begin < a.end;
}
bool Overlap(const PackItem& a, LiveRange b) {
  return std::any_of(a.live.begin(), a.live.end(),
                     [b](LiveRange x) { return Overlap(x, b); });
}
bool Overlap(const PackItem& a, const PackItem& b) {
  return std::any_of(b.live.begin(), b.live.end(),
                     [&a](LiveRange y) { return Overlap(a, y); });
}

// From the first begin to the last end.
LiveRange Hull(const PackItem& item) {
  return {item.live.front().begin, item.live.back().end};
}

// Places items one by one into gaps between those placed before. Looking for a
// gap means looking at all of these, so that what is compared lies in arrays.
class Placer {
 public:
  Placer(const std::vector<PackItem>& items, Gap gap)
      : items_(items), gap_(gap) {
    packing_.offsets.assign(items.size(), 0);
  }

  void Place(size_t index) {
    const PackItem& item = items_[index];
    if (item.bytes == 0 || item.live.empty()) return;
    const int64_t need = AlignArena(item.bytes);
    int64_t best = -1;
    int64_t best_gap = std::numeric_limits<int64_t>::max();
    int64_t top = 0;  // end of the neighbours below
    for (Scan scan(*this, item); const Placed* other = scan.Next();) {
      const int64_t gap = other->offset - top;
      if (gap >= need && gap < best_gap) {
        best = top;
        best_gap = gap;
        if (gap == need || gap_ == Gap::kLowest) break;
      }
      top = std::max(top, other->end);
    }
    PlaceAt(index, best >= 0 ? best : top);
  }

  void PlaceAt(size_t index, int64_t offset) {
    const PackItem& item = items_[index];
    if (item.bytes == 0 || item.live.empty()) return;
    packing_.offsets[index] = offset;
    packing_.end = std::max(packing_.end, offset + item.bytes);
    Insert({offset, offset + AlignArena(item.bytes), PartsOf(item)},
           Hull(item));
  }

  const Packing& packing() const { return packing_; }

 private:
  struct Placed {
    int64_t offset;
    int64_t end;
    const PackItem* parts;  // null where the hull is the one live range
  };

  static const PackItem* PartsOf(const PackItem& item) {
    return item.live.size() > 1 ? &item : nullptr;
  }

  void Insert(const Placed& entry, LiveRange hull) {
    const auto at = std::upper_bound(
        placed_.begin(), placed_.end(), entry,
        [](const Placed& a, const Placed& b) { return a.offset < b.offset; });
    const auto i = at - placed_.begin();
    placed_.insert(at, entry);
    begins_.insert(begins_.begin() + i, hull.begin);
    ends_.insert(ends_.begin() + i, hull.end);
  }

  // The placed items that live together with one more, by offset.
  class Scan {
   public:
    Scan(const Placer& placer, const PackItem& item)
        : placer_(placer),
          item_(item),
          parts_(PartsOf(item)),
          hull_(Hull(item)) {}

    const Placed* Next() {
      while (true) {
        while (hit_ < hits_) {
          const size_t i = hit_at_[hit_++];
          if (Lives(i)) return &placer_.placed_[i];
        }
        if (next_ >= placer_.placed_.size()) return nullptr;
        Collect();
      }
    }

   private:
    static constexpr size_t kChunk = 64;

    // Of an item whose hull overlaps.
    bool Lives(size_t i) const {
      const PackItem* parts = placer_.placed_[i].parts;
      if (parts == nullptr && parts_ == nullptr) return true;
      const LiveRange hull = {placer_.begins_[i], placer_.ends_[i]};
      return parts != nullptr ? Overlap(item_, *parts) : Overlap(item_, hull);
    }

    // Without branches: nearly all items miss, or nearly all hit.
    void Collect() {
      const size_t count = std::min(kChunk, placer_.placed_.size() - next_);
      const int32_t* begins = placer_.begins_.data() + next_;
      const int32_t* ends = placer_.ends_.data() + next_;
      hit_ = hits_ = 0;
      for (size_t i = 0; i < count; ++i) {
        hit_at_[hits_] = static_cast<uint32_t>(next_ + i);
        hits_ += static_cast<size_t>(begins[i] < hull_.end) &
                 static_cast<size_t>(hull_.begin < ends[i]);
      }
      next_ += count;
    }

    const Placer& placer_;
    const PackItem& item_;
    const PackItem* const parts_;
    const LiveRange hull_;
    size_t next_ = 0;  // of the placed items
    size_t hit_ = 0, hits_ = 0;
    uint32_t hit_at_[kChunk];
  };

  const std::vector<PackItem>& items_;
  const Gap gap_;
  std::vector<Placed> placed_;          // by offset
  std::vector<int32_t> begins_, ends_;  // hulls of placed_
  Packing packing_;
};

using Key = std::tuple<int64_t, int64_t, int64_t>;

std::vector<size_t> OrderBy(const std::vector<PackItem>& items,
                            const std::function<Key(const PackItem&)>& key) {
  std::vector<std::pair<Key, size_t>> keyed;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].live.empty()) keyed.emplace_back(key(items[i]), i);
  }
  std::sort(keyed.begin(), keyed.end());
  std::vector<size_t> order;
  for (const auto& [unused, index] : keyed) order.push_back(index);
  return order;
}

Packing PackInOrder(const std::vector<PackItem>& items,
                    const std::vector<size_t>& order, Gap gap) {
  Placer placer(items, gap);
  for (size_t index : order) placer.Place(index);
  return placer.packing();
}

// Numbers that are the same everywhere; quality hardly matters.
class Lcg {
 public:
  size_t Below(size_t bound) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<size_t>(state_ >> 33) % bound;
  }

 private:
  uint64_t state_ = 1;
};

// One of the items that stick out above the bound moves to an earlier place in
// the order, or any two change places.
std::vector<size_t> Perturbed(const std::vector<PackItem>& items,
                              const Packing& packing, int64_t bound,
                              std::vector<size_t> order, Lcg& random) {
  std::vector<size_t> out;  // positions in the order
  for (size_t i = 0; i < order.size(); ++i) {
    if (packing.offsets[order[i]] + items[order[i]].bytes > bound) {
      out.push_back(i);
    }
  }
  if (!out.empty() && random.Below(4) > 0) {
    const size_t from = out[random.Below(out.size())];
    const size_t to = random.Below(from + 1);
    std::rotate(order.begin() + to, order.begin() + from,
                order.begin() + from + 1);
  } else {
    std::swap(order[random.Below(order.size())],
              order[random.Below(order.size())]);
  }
  return order;
}

}  // namespace

int64_t PackingLowerBound(const std::vector<PackItem>& items) {
  std::vector<std::pair<int32_t, int64_t>> changes;
  int64_t largest_padding = 0;
  for (const PackItem& item : items) {
    const int64_t bytes = AlignArena(item.bytes);
    largest_padding = std::max(largest_padding, bytes - item.bytes);
    for (const LiveRange& range : item.live) {
      changes.emplace_back(range.begin, bytes);
      changes.emplace_back(range.end, -bytes);
    }
  }
  std::sort(changes.begin(), changes.end());  // releases come first
  int64_t live = 0, most = 0;
  for (const auto& [unused, bytes] : changes) {
    live += bytes;
    most = std::max(most, live);
  }
  return std::max<int64_t>(most - largest_padding, 0);
}

namespace {

Packing PackFirm(const std::vector<PackItem>& items, int64_t slack) {
  const auto by_size = [](const PackItem& i) {
    return Key(-i.bytes, -Lifetime(i), i.live[0].begin);
  };
  const auto by_area = [](const PackItem& i) {
    return Key(-Area(i), -i.bytes, i.live[0].begin);
  };
  const auto by_lifetime = [](const PackItem& i) {
    return Key(-Lifetime(i), -i.bytes, i.live[0].begin);
  };
  const auto by_start = [](const PackItem& i) {
    return Key(i.live[0].begin, -Lifetime(i), -i.bytes);
  };
  const int64_t bound = PackingLowerBound(items);
  // Good enough: a thousandth is far below what reports promise.
  const int64_t target = bound + bound / 1000;
  Packing best;
  best.end = std::numeric_limits<int64_t>::max();
  std::vector<size_t> best_order;
  const auto attempt = [&](std::vector<size_t> order, Gap gap) {
    Packing packing = PackInOrder(items, order, gap);
    if (packing.end < best.end) {
      best = std::move(packing);
      best_order = std::move(order);
    }
    return best.end <= target;
  };
  for (const auto& order :
       {OrderBy(items, by_size), OrderBy(items, by_lifetime),
        OrderBy(items, by_area), OrderBy(items, by_start)}) {
    if (attempt(order, Gap::kSmallest) || attempt(order, Gap::kLowest)) {
      return best;
    }
  }
  // Small instances can be hard, and are cheap to search: a walk over orders
  // within a fixed amount of work, well below a tenth of a second.
  constexpr int64_t kWork = 15'000'000;
  constexpr int64_t kMostRounds = 2000;
  const int64_t enough = bound + std::max(bound / 100, slack);
  const auto count = static_cast<int64_t>(items.size());
  Lcg random;
  Packing current = best;
  for (int64_t round = std::min(kWork / (count * count), kMostRounds);
       round > 0 && best.end > enough; --round) {
    std::vector<size_t> order =
        Perturbed(items, current, bound, best_order, random);
    Packing packing = PackInOrder(items, order, Gap::kSmallest);
    if (packing.end > current.end) continue;
    current = std::move(packing);
    best_order = std::move(order);
    if (current.end < best.end) best = current;
  }
  return best;
}

// Adds the fillers to a packing of all others. Those with the least choice come
// first; one without a hole goes where there is a gap, or on top.
Packing AddFillers(const std::vector<PackItem>& items, const Packing& firm,
                   const std::vector<size_t>& fillers) {
  std::vector<PackItem> others = items;
  for (size_t i : fillers) others[i].live.clear();
  Holes holes(others, firm);
  Placer placer(items, Gap::kSmallest);
  for (size_t i = 0; i < items.size(); ++i) {
    if (!others[i].live.empty()) placer.PlaceAt(i, firm.offsets[i]);
  }
  std::vector<size_t> homeless;
  for (size_t i : fillers) {
    const PackItem& item = items[i];
    const std::optional<Hole> hole = holes.Longest(item.bytes, item.live);
    if (!hole) {
      homeless.push_back(i);
      continue;
    }
    holes.Fill(*hole, item.bytes);
    placer.PlaceAt(i, hole->offset);
  }
  for (size_t i : homeless) placer.Place(i);
  Packing packing = placer.packing();
  packing.homeless = std::move(homeless);
  return packing;
}

}  // namespace

Packing Pack(const std::vector<PackItem>& items, int64_t slack) {
  std::vector<size_t> fillers;
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].filler && !items[i].live.empty()) fillers.push_back(i);
  }
  if (fillers.empty()) return PackFirm(items, slack);
  std::stable_sort(fillers.begin(), fillers.end(), [&](size_t a, size_t b) {
    return Lifetime(items[a]) > Lifetime(items[b]);
  });
  std::vector<PackItem> firm;
  for (const PackItem& item : items) {
    firm.push_back(item.filler ? PackItem{} : item);
  }
  return AddFillers(items, PackFirm(firm, slack), fillers);
}

TempArea PackTemps(const Plan& plan, Place place, int graph,
                   int64_t persistent) {
  constexpr int64_t kFewPages = 16 << 10;  // not worth a search
  TempArea area;
  for (size_t i = 0; i < plan.storages.size(); ++i) {
    const Storage& storage = plan.storages[i];
    if (storage.place != place || storage.persistent ||
        storage.graph != graph) {
      continue;
    }
    area.members.push_back(i);
    area.items.push_back({storage.bytes, storage.live,
                          storage.category == MemoryCategory::kCommunication});
  }
  area.packing = Pack(area.items, std::max(persistent / 100, kFewPages));
  return area;
}

void AssignOffsets(Plan& plan) {
  // Operands of one update that lie a multiple of 128 MiB apart were seen to
  // take the same banks of host memory, and three times as long.
  constexpr int64_t kCollision = 64 << 20;
  constexpr int64_t kStagger = 64 << 10;
  for (Place place : {Place::kDevice, Place::kPinned}) {
    int64_t next = 0;
    int64_t arena_end = 0;
    for (Storage& storage : plan.storages) {
      if (storage.place != place || !storage.persistent) continue;
      storage.offset = next;
      if (storage.bytes > 0) arena_end = next + storage.bytes;
      next += AlignArena(storage.bytes);
      if (place == Place::kPinned && storage.bytes > 0 &&
          storage.bytes % kCollision == 0) {
        next += kStagger;
      }
    }
    for (int graph = kStartupGraph;
         graph < static_cast<int>(plan.graphs.size()); ++graph) {
      const TempArea area = PackTemps(plan, place, graph, next);
      for (size_t i = 0; i < area.members.size(); ++i) {
        plan.storages[area.members[i]].offset = next + area.packing.offsets[i];
      }
      if (area.packing.end > 0) {
        arena_end = std::max(arena_end, next + area.packing.end);
      }
    }
    (place == Place::kDevice ? plan.device : plan.pinned).arena_bytes =
        arena_end;
  }
}

}  // namespace plo::planning
