// The members of a bucket as the optimizer ops see them: ascending, disjoint
// runs of elements in whole-bucket coordinates.
#ifndef PLO_OPERATORS_SEGMENTS_H_
#define PLO_OPERATORS_SEGMENTS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "framework/ir/op_registry.h"

namespace plo {

// Checks the attributes segment_begins and segment_numels.
inline void RequireSegments(const InferContext& ctx) {
  const std::vector<int64_t>& begins = ctx.attrs().GetInts("segment_begins");
  const std::vector<int64_t>& numels = ctx.attrs().GetInts("segment_numels");
  ctx.Require(begins.size() == numels.size(),
              "segment_begins and segment_numels differ in number");
  int64_t end = 0;
  for (size_t i = 0; i < begins.size(); ++i) {
    ctx.Require(begins[i] >= end && numels[i] >= 0,
                "segments must be ascending and disjoint");
    end = begins[i] + numels[i];
  }
}

struct SegmentRange {
  int64_t begin = 0, end = 0;
  bool empty() const { return begin >= end; }
};

// The part of segment `i` within bucket elements [low, high), relative to
// `low`.
inline SegmentRange SegmentWithin(const AttrMap& attrs, size_t i, int64_t low,
                                  int64_t high) {
  const int64_t begin = attrs.GetInts("segment_begins")[i];
  const int64_t end = begin + attrs.GetInts("segment_numels")[i];
  return {std::max(begin, low) - low, std::min(end, high) - low};
}

}  // namespace plo

#endif  // PLO_OPERATORS_SEGMENTS_H_
