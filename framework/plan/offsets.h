// Packing: addresses for storages whose lifetimes are known.
#ifndef PLO_FRAMEWORK_PLAN_OFFSETS_H_
#define PLO_FRAMEWORK_PLAN_OFFSETS_H_

#include <cstdint>
#include <vector>

#include "framework/plan/plan.h"

namespace plo::planning {

inline int64_t AlignArena(int64_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

struct PackItem {
  int64_t bytes = 0;
  std::vector<LiveRange> live;
  // Its lifetime was chosen to fit a hole that the others leave (holes.h), so
  // that it is placed after them.
  bool filler = false;
};

struct Packing {
  std::vector<int64_t> offsets;  // multiples of kArenaAlignment
  int64_t end = 0;               // of the highest item, exactly
  std::vector<size_t> homeless;  // fillers that found no hole
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

// The temps of a graph and where they lie, from 0 on.
struct TempArea {
  std::vector<size_t> members;  // of Plan::storages
  std::vector<PackItem> items;
  Packing packing;
};
// `persistent` bytes lie below; a hundredth of them is not worth a search.
TempArea PackTemps(const Plan& plan, Place place, int graph,
                   int64_t persistent);

}  // namespace plo::planning

#endif  // PLO_FRAMEWORK_PLAN_OFFSETS_H_
