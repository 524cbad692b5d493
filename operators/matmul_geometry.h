// The product that an op `matmul` asks for.
#ifndef PLO_OPERATORS_MATMUL_GEOMETRY_H_
#define PLO_OPERATORS_MATMUL_GEOMETRY_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "framework/ir/program.h"
#include "operators/rows.h"
#include "operators/schema_util.h"

namespace plo {

// One GEMM, or a batch of equal ones.
struct MatmulGeometry {
  Shape out;
  bool batched = false;
  int64_t m = 0, n = 0, k = 0, k_of_y = 0;
  int64_t x_cols = 0, y_cols = 0;  // row strides as stored
  Shape x_lead, y_lead, lead;      // of a batch
};

// `shape` as a matrix: leading dimensions collapsed.
inline std::pair<int64_t, int64_t> AsMatrix(const Shape& shape) {
  return {RowCount(shape), RowLength(shape)};
}

inline std::pair<int64_t, int64_t> LastTwo(const Shape& shape) {
  return {shape.dim(-2), shape.dim(-1)};
}

// Both shapes have rank 2 or more.
inline MatmulGeometry MatmulGeometryOf(const Shape& x, const Shape& y,
                                       const AttrMap& attrs) {
  const bool trans_x = attrs.GetBool("trans_x");
  const bool trans_y = attrs.GetBool("trans_y");
  const bool collapse = attrs.GetBool("collapse");
  MatmulGeometry g;
  g.batched = !collapse && y.rank() > 2;
  auto [x_rows, x_cols] = g.batched ? LastTwo(x) : AsMatrix(x);
  auto [y_rows, y_cols] = g.batched ? LastTwo(y) : AsMatrix(y);
  g.x_cols = x_cols;
  g.y_cols = y_cols;
  g.m = trans_x ? x_cols : x_rows;
  g.k = trans_x ? x_rows : x_cols;
  g.k_of_y = trans_y ? y_cols : y_rows;
  g.n = trans_y ? y_rows : y_cols;
  std::vector<int64_t> dims;
  if (g.batched) {
    g.x_lead = LeadingDims(LeadingDims(x));
    g.y_lead = LeadingDims(LeadingDims(y));
    g.lead = BroadcastShapes(g.x_lead, g.y_lead);
    dims = g.lead.dims();
    dims.push_back(g.m);
  } else if (collapse || trans_x) {
    dims = {g.m};
  } else {
    dims = LeadingDims(x).dims();
  }
  dims.push_back(g.n);
  g.out = Shape(std::move(dims));
  return g;
}

// Elements to skip in an operand of `lead` batch dimensions for each index of
// the batch `full`; broadcast dimensions do not move.
inline std::vector<int64_t> BatchOffsets(const Shape& lead, const Shape& full,
                                         int64_t matrix) {
  std::vector<int64_t> offsets(static_cast<size_t>(full.numel()));
  for (int64_t i = 0; i < full.numel(); ++i) {
    int64_t rest = i, stride = matrix, offset = 0;
    for (int axis = 1; axis <= full.rank(); ++axis) {
      const int64_t index = rest % full.dim(-axis);
      rest /= full.dim(-axis);
      if (axis > lead.rank()) continue;
      if (lead.dim(-axis) != 1) offset += index * stride;
      stride *= lead.dim(-axis);
    }
    offsets[static_cast<size_t>(i)] = offset;
  }
  return offsets;
}

}  // namespace plo

#endif  // PLO_OPERATORS_MATMUL_GEOMETRY_H_
