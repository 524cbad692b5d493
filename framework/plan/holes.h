// Bytes of a packed area that are free around the turn of the cycle: from an
// event of one step up to an event of the next.
#ifndef PLO_FRAMEWORK_PLAN_HOLES_H_
#define PLO_FRAMEWORK_PLAN_HOLES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "framework/plan/offsets.h"

namespace plo::planning {

struct Hole {
  int64_t offset = 0;
  int32_t from = 0;   // free from this event to the end of the axis,
  int32_t until = 0;  // and from its start up to this one
};

class Holes {
 public:
  // Those that `items` leave below the end of their packing.
  Holes(const std::vector<PackItem>& items, const Packing& packing);

  // Of the holes of `bytes` that are free in all of `needed`, the one that is
  // free for longest, and of these the lowest.
  std::optional<Hole> Longest(int64_t bytes,
                              const std::vector<LiveRange>& needed) const;
  void Fill(const Hole& hole, int64_t bytes);

 private:
  // Up to the next segment's offset.
  struct Segment {
    int64_t offset;
    int32_t from, until;
  };

  size_t Cut(int64_t offset);
  void Occupy(int64_t begin, int64_t end, int32_t from, int32_t until);

  int64_t end_;
  std::vector<Segment> segments_;  // by offset
};

}  // namespace plo::planning

#endif  // PLO_FRAMEWORK_PLAN_HOLES_H_
