// Walks tensors of different shapes together, without allocating. Functions are
// constexpr where kernels of an accelerator call them too.
#ifndef PLO_OPERATORS_BROADCAST_H_
#define PLO_OPERATORS_BROADCAST_H_

#include <array>
#include <cstdint>
#include <vector>

#include "framework/ir/error.h"
#include "framework/ir/types.h"

namespace plo {

inline constexpr int kMaxRank = 8;

// Dimensions, outermost first, with a stride per operand in elements. Operand
// 0 is dense; the others may repeat (stride 0) or permute it.
template <int kOperands>
struct StridedLoop {
  int rank = 0;
  std::array<int64_t, kMaxRank> size{};
  std::array<std::array<int64_t, kOperands>, kMaxRank> stride{};

  // Adds an inner dimension, merged with the one before where every operand's
  // strides allow.
  void Add(int64_t n, const std::array<int64_t, kOperands>& strides) {
    if (n == 1) return;
    if (rank > 0) {
      bool merge = true;
      for (int k = 0; k < kOperands; ++k) {
        merge = merge && stride[rank - 1][k] == strides[k] * n;
      }
      if (merge) {
        size[rank - 1] *= n;
        stride[rank - 1] = strides;
        return;
      }
    }
    size[rank] = n;
    stride[rank] = strides;
    ++rank;
  }

  // At least one dimension, so that there is an innermost one.
  void Finish() {
    if (rank > 0) return;
    size[0] = 1;
    stride[0].fill(0);
    rank = 1;
  }

  constexpr int64_t inner() const { return size[rank - 1]; }
  // Product of the sizes of dimensions [0, last).
  constexpr int64_t Count(int last) const {
    int64_t n = 1;
    for (int i = 0; i < last; ++i) n *= size[i];
    return n;
  }
  // Offsets of point `index` of the dimensions [0, last), in C order.
  constexpr std::array<int64_t, kOperands> Offsets(int64_t index,
                                                   int last) const {
    std::array<int64_t, kOperands> offsets{};
    for (int i = last - 1; i >= 0; --i) {
      const int64_t at = index % size[i];
      index /= size[i];
      for (int k = 0; k < kOperands; ++k) offsets[k] += at * stride[i][k];
    }
    return offsets;
  }
};

// Dense strides of `shape`, aligned to the right of `rank` dimensions, zero
// where the shape is absent or repeats.
inline std::array<int64_t, kMaxRank> BroadcastStrides(const Shape& shape,
                                                      int rank) {
  std::array<int64_t, kMaxRank> strides{};
  int64_t stride = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    const int64_t n = shape[i];
    strides[static_cast<size_t>(rank - shape.rank() + i)] = n == 1 ? 0 : stride;
    stride *= n;
  }
  return strides;
}

// True if `from` broadcasts to `to` by numpy's rule.
inline bool BroadcastsTo(const Shape& from, const Shape& to) {
  if (from.rank() > to.rank()) return false;
  for (int i = 1; i <= from.rank(); ++i) {
    const int64_t n = from.dim(-i);
    if (n != 1 && n != to.dim(-i)) return false;
  }
  return true;
}

}  // namespace plo

#endif  // PLO_OPERATORS_BROADCAST_H_
