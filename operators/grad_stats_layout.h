// The order in which grad_stats sums, the same on all devices.
//
// A segment's run of the slice is cut into blocks, a block into rows. A row is
// summed in kStatsLanes lanes of double, element i in lane i % kStatsLanes,
// joined by halving; a block is the sum of its rows in order; the blocks of a
// segment go round kStatsJoinLanes lanes, joined in the same way.
#ifndef PLO_OPERATORS_GRAD_STATS_LAYOUT_H_
#define PLO_OPERATORS_GRAD_STATS_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "framework/runtime/kernel.h"
#include "operators/host_device.h"
#include "operators/segments.h"

namespace plo {

inline constexpr int64_t kStatsRow = 1024;
inline constexpr int64_t kStatsRows = 32;
inline constexpr int64_t kStatsBlock = kStatsRow * kStatsRows;
inline constexpr int kStatsLanes = 8;
inline constexpr int kStatsJoinLanes = 32;

// Joining lane i with lane i + half, for half = n / 2, n / 4, ..., 1, gives
// lane 0 the total.
template <int kLanes>
PLO_HOST_DEVICE double JoinStatsLanes(double (&lanes)[kLanes]) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// A sum of squares of scaled gradients as one of the gradients themselves,
// which fp32 holds whatever the scale: no double sum of fp32 squares overflows.
PLO_HOST_DEVICE float UnscaledSquares(double squares, double scale) {
  const double inverse = 1.0 / scale;
  return static_cast<float>(squares * inverse * inverse);
}

// The part of a segment in this rank's slice, in elements of the operand.
struct StatsRun {
  int64_t begin, n;
  int64_t first_block;  // of the op
};

// One per segment; some are empty.
inline std::vector<StatsRun> MakeStatsRuns(const KernelContext& ctx) {
  const AttrMap& attrs = ctx.attrs();
  const int64_t slice = attrs.GetInt("slice_numel");
  const int64_t low = ctx.env().rank * slice;
  const int64_t offset = attrs.GetBool("sliced") ? 0 : low;
  std::vector<StatsRun> runs;
  int64_t blocks = 0;
  for (size_t s = 0; s < attrs.GetInts("segment_begins").size(); ++s) {
    const SegmentRange range = SegmentWithin(attrs, s, low, low + slice);
    const int64_t n = range.empty() ? 0 : range.end - range.begin;
    runs.push_back({offset + range.begin, n, blocks});
    blocks += (n + kStatsBlock - 1) / kStatsBlock;
  }
  return runs;
}

// No fewer blocks than any rank's slice has: a function of shapes alone.
inline int64_t MaxStatsBlocks(int64_t slice_numel, int64_t segments) {
  return slice_numel / kStatsBlock + segments;
}

}  // namespace plo

#endif  // PLO_OPERATORS_GRAD_STATS_LAYOUT_H_
