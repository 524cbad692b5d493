// How the dimensions of a reduction lie in memory; for kernels of every device.
#ifndef PLO_OPERATORS_REDUCTION_LAYOUT_H_
#define PLO_OPERATORS_REDUCTION_LAYOUT_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "operators/broadcast.h"
#include "operators/gpu_layout.h"

namespace plo {

// Bit i is dimension i.
using DimMask = uint32_t;

inline bool IsReduced(DimMask mask, int i) { return (mask >> i & 1u) != 0; }

// `axes` may be negative; none means all.
inline DimMask MaskOf(const std::vector<int64_t>& axes, int rank) {
  if (axes.empty()) return (DimMask{1} << rank) - 1;
  DimMask mask = 0;
  for (int64_t axis : axes) {
    mask |= DimMask{1} << (axis < 0 ? axis + rank : axis);
  }
  return mask;
}

// The dimensions along which a tensor of shape `to` was repeated to make
// `from`.
inline DimMask RepeatedDims(const Shape& from, const Shape& to) {
  const int shift = from.rank() - to.rank();
  DimMask mask = 0;
  for (int i = 0; i < from.rank(); ++i) {
    if (i < shift || to[i - shift] != from[i]) mask |= DimMask{1} << i;
  }
  return mask;
}

// Kept and reduced dimensions apart, each merged as far as possible, without
// the innermost run, which is dense in x.
struct ReductionLayout {
  StridedLoop<1> kept, reduced;  // offsets into x
  int64_t run = 1;               // length of the innermost run
  bool run_kept = false;

  int64_t outer() const { return kept.Count(kept.rank); }
  int64_t repeats() const { return reduced.Count(reduced.rank); }
};

inline ReductionLayout MakeReductionLayout(const Shape& shape, DimMask mask) {
  ReductionLayout layout;
  int inner = shape.rank();
  while (inner > 0 && shape[inner - 1] == 1) --inner;
  if (inner > 0) layout.run_kept = !IsReduced(mask, inner - 1);
  while (inner > 0 && (shape[inner - 1] == 1 ||
                       IsReduced(mask, inner - 1) != layout.run_kept)) {
    layout.run *= shape[--inner];
  }
  int64_t strides[kMaxRank] = {};
  int64_t stride = layout.run;
  for (int i = inner - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= shape[i];
  }
  for (int i = 0; i < inner; ++i) {
    (IsReduced(mask, i) ? layout.reduced : layout.kept)
        .Add(shape[i], {strides[i]});
  }
  layout.kept.Finish();
  layout.reduced.Finish();
  return layout;
}

// How a GPU shares a reduction out: what an output sums is cut into `splits`
// parts of `part`: repeats where the run is kept, else packs of 16 bytes.
struct ReductionSplit {
  int64_t splits = 1;
  int64_t part = 0;
};
inline ReductionSplit MakeReductionSplit(const ReductionLayout& layout,
                                         DType dtype) {
  const int64_t pack = GpuPack(dtype);
  const int64_t repeats = layout.repeats();
  const int64_t units =
      layout.outer() *
      (layout.run_kept ? GpuCeilDiv(layout.run, 32 * pack) : int64_t{1});
  const int64_t items =
      layout.run_kept ? repeats : repeats * GpuCeilDiv(layout.run, pack);
  const int64_t least = layout.run_kept ? 64 : 1024;  // worth a block
  ReductionSplit split;
  split.splits =
      std::clamp<int64_t>(GpuCeilDiv(items, least), 1,
                          GpuCeilDiv(kGpuBlocks, std::max<int64_t>(1, units)));
  split.part = GpuCeilDiv(items, split.splits);
  return split;
}

// Partial results, in double, of an op with `outputs` results.
inline int64_t ReductionWorkspace(const Shape& x, DimMask mask, DType dtype,
                                  int64_t outputs) {
  const int64_t splits =
      MakeReductionSplit(MakeReductionLayout(x, mask), dtype).splits;
  return splits == 1 ? 0
                     : splits * outputs * static_cast<int64_t>(sizeof(double));
}

}  // namespace plo

#endif  // PLO_OPERATORS_REDUCTION_LAYOUT_H_
