// How kernels of a GPU share out rows, columns and sums among blocks.
//
// Plain host code: the schemas compute workspaces from it. Everything depends
// on shapes and dtypes only, and so do the order of sums and their bits.
#ifndef PLO_OPERATORS_GPU_LAYOUT_H_
#define PLO_OPERATORS_GPU_LAYOUT_H_

#include <algorithm>
#include <cstdint>

#include "framework/ir/types.h"

namespace plo {

// Blocks that fill a large GPU a few times over, with a wave of slack.
inline constexpr int64_t kGpuBlocks = 528;

constexpr int64_t GpuCeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
// Values of `dtype` in 16 bytes, which a thread takes at a time.
inline int64_t GpuPack(DType dtype) { return 16 / SizeOf(dtype); }

// Blocks of (threads, rows) threads; each row of n values is taken by `threads`
// threads, `packs` packs each at a time.
struct RowLayout {
  int threads = 32;
  int rows = 1;
  int packs = 1;
  int64_t tile = 0;  // values of a row at a time

  bool one_tile(int64_t n) const { return n <= tile; }
};
// At most `max_packs`, a power of two, and about `block_threads` threads.
inline RowLayout MakeRowLayout(int64_t n, int64_t pack, int block_threads,
                               int max_packs) {
  RowLayout layout;
  const int64_t packs = std::max<int64_t>(1, GpuCeilDiv(n, pack));
  while (layout.packs < max_packs && packs > block_threads * layout.packs) {
    layout.packs *= 2;
  }
  const int64_t threads = GpuCeilDiv(GpuCeilDiv(packs, layout.packs), 32) * 32;
  layout.threads = static_cast<int>(std::min<int64_t>(threads, block_threads));
  layout.rows = std::max(1, block_threads / layout.threads);
  layout.tile = int64_t{layout.threads} * layout.packs * pack;
  return layout;
}

// Sums of the columns of [rows, n]: blocks take a strip of columns in a slice
// of the rows, and a second kernel adds the slices.
struct ColumnPlan {
  int64_t strips = 1;
  int64_t slices = 1;
  int64_t slice_rows = 0;
};
inline ColumnPlan MakeColumnPlan(int64_t rows, int64_t n, DType dtype) {
  ColumnPlan plan;
  plan.strips = std::max<int64_t>(1, GpuCeilDiv(n, 32 * GpuPack(dtype)));
  plan.slices = std::clamp<int64_t>(GpuCeilDiv(rows, 32), 1,
                                    GpuCeilDiv(kGpuBlocks, plan.strips));
  plan.slice_rows = GpuCeilDiv(rows, plan.slices);
  return plan;
}

// Blocks that sum `n` values to one.
inline int64_t SumBlocks(int64_t n) {
  return std::clamp<int64_t>(GpuCeilDiv(n, 4096), 1, kGpuBlocks);
}

// layer_norm: rows of two packs a thread, a block each but for those of a warp.
inline constexpr int kNormThreads = 1024;
inline RowLayout NormLayoutOf(int64_t n, DType dtype, int most_threads) {
  RowLayout layout;
  layout.packs = 2;
  const int64_t half = GpuCeilDiv(n, 2 * GpuPack(dtype));
  layout.threads = static_cast<int>(
      std::clamp<int64_t>(GpuCeilDiv(half, 32) * 32, 32, most_threads));
  layout.tile = int64_t{layout.threads} * 2 * GpuPack(dtype);
  return layout;
}
inline RowLayout NormLayout(int64_t n, DType dtype) {
  RowLayout layout = NormLayoutOf(n, dtype, kNormThreads);
  if (layout.threads == 32) layout.rows = 4;
  return layout;
}

// layer_norm_grad: one pass writes dx and sums columns where a row is one tile.
// One block for each processor of a large GPU; its rows are taken by groups of
// threads, no more than there are named barriers for.
inline constexpr int kNormGradThreads = 512;
inline constexpr int64_t kNormGradBlocks = kGpuBlocks / 4;
inline RowLayout NormGradLayout(int64_t n, DType dtype) {
  RowLayout layout = NormLayoutOf(n, dtype, kNormGradThreads);
  layout.rows = std::min(8, kNormGradThreads / layout.threads);
  return layout;
}
inline int64_t NormGradBlocks(int64_t rows, const RowLayout& layout) {
  return std::clamp<int64_t>(GpuCeilDiv(rows, layout.rows), 1, kNormGradBlocks);
}
// Partial sums of each column.
inline int64_t NormGradPartials(int64_t rows, int64_t n, DType dtype,
                                bool with_dx) {
  const RowLayout layout = NormGradLayout(n, dtype);
  return with_dx && layout.one_tile(n) ? NormGradBlocks(rows, layout)
                                       : MakeColumnPlan(rows, n, dtype).slices;
}

}  // namespace plo

#endif  // PLO_OPERATORS_GPU_LAYOUT_H_
