#include "framework/plan/holes.h"

#include <algorithm>
#include <limits>

namespace plo::planning {
namespace {

constexpr int32_t kNever = std::numeric_limits<int32_t>::max();

bool Holds(const Hole& hole, const std::vector<LiveRange>& needed) {
  return std::all_of(needed.begin(), needed.end(), [&](LiveRange range) {
    return range.begin >= hole.from || range.end <= hole.until;
  });
}

// More is longer; the length of the axis is the same for all.
int64_t Length(const Hole& hole) { return int64_t{hole.until} - hole.from; }

}  // namespace

Holes::Holes(const std::vector<PackItem>& items, const Packing& packing)
    : end_(packing.end / kArenaAlignment * kArenaAlignment),
      segments_{{0, 0, kNever}} {
  for (size_t i = 0; i < items.size(); ++i) {
    const PackItem& item = items[i];
    if (item.bytes == 0 || item.live.empty()) continue;
    Occupy(packing.offsets[i], packing.offsets[i] + AlignArena(item.bytes),
           item.live.back().end, item.live.front().begin);
  }
}

std::optional<Hole> Holes::Longest(int64_t bytes,
                                   const std::vector<LiveRange>& needed) const {
  const int64_t need = AlignArena(bytes);
  std::optional<Hole> best;
  // [offset, offset + need), which starts in segment `first`.
  const auto consider = [&](size_t first, int64_t offset) {
    if (offset < 0 || offset + need > end_) return;
    Hole hole = {offset, 0, kNever};
    for (size_t s = first;
         s < segments_.size() && segments_[s].offset < offset + need; ++s) {
      hole.from = std::max(hole.from, segments_[s].from);
      hole.until = std::min(hole.until, segments_[s].until);
      if (best && Length(hole) <= Length(*best)) return;
      if (!Holds(hole, needed)) return;
    }
    best = hole;
  };
  for (size_t s = 0; s < segments_.size(); ++s)
    consider(s, segments_[s].offset);
  return best;
}

void Holes::Fill(const Hole& hole, int64_t bytes) {
  Occupy(hole.offset, hole.offset + AlignArena(bytes), kNever, 0);
}

// The segment that starts at the offset.
size_t Holes::Cut(int64_t offset) {
  const auto at = std::upper_bound(
      segments_.begin(), segments_.end(), offset,
      [](int64_t value, const Segment& s) { return value < s.offset; });
  const auto index = static_cast<size_t>(at - segments_.begin());
  const Segment inside = segments_[index - 1];
  if (inside.offset == offset) return index - 1;
  segments_.insert(at, {offset, inside.from, inside.until});
  return index;
}

void Holes::Occupy(int64_t begin, int64_t end, int32_t from, int32_t until) {
  const size_t first = Cut(begin);
  size_t last = segments_.size();
  if (end < end_) last = Cut(end);
  for (size_t s = first; s < last; ++s) {
    segments_[s].from = std::max(segments_[s].from, from);
    segments_[s].until = std::min(segments_[s].until, until);
  }
}

}  // namespace plo::planning
