// Packing: addresses for storages whose lifetimes are known.
#ifndef PLO_FRAMEWORK_PLAN_OFFSETS_H_
#define PLO_FRAMEWORK_PLAN_OFFSETS_H_

#include <cstdint>
#include <vector>

#include "framework/plan/plan.h"

namespace plo::planning {

struct PackItem {
  int64_t bytes = 0;
  std::vector<LiveRange> live;
};

struct Packing {
  std::vector<int64_t> offsets;  // multiples of kArenaAlignment
  int64_t end = 0;               // of the highest item, exactly
};

// Items whose live ranges overlap get disjoint bytes. Deterministic. Greedy
// under several orders, the best one kept; then a search, unless less than a
// hundredth or `slack` bytes are lost. No order can go below
// PackingLowerBound(). The bytes of all items, aligned, must add up to less
// than 2^63.
Packing Pack(const std::vector<PackItem>& items, int64_t slack = 0);

// Most aligned bytes live at once, less the padding that may stick out.
int64_t PackingLowerBound(const std::vector<PackItem>& items);

// Sets the offsets of all storages and the arena_bytes of both places:
// persistent ones at the bottom, above them the temps of each graph, which
// share one area.
void AssignOffsets(Plan& plan);

}  // namespace plo::planning

#endif  // PLO_FRAMEWORK_PLAN_OFFSETS_H_
