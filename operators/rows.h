// Tensors as rows, and addresses of elements: what kernels of every device use.
#ifndef PLO_OPERATORS_ROWS_H_
#define PLO_OPERATORS_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "framework/ir/types.h"

namespace plo {

// Address of element `index` of an array of `dtype`.
inline const void* ElementAt(DType dtype, const void* data, int64_t index) {
  return static_cast<const std::byte*>(data) + index * SizeOf(dtype);
}
inline void* ElementAt(DType dtype, void* data, int64_t index) {
  return static_cast<std::byte*>(data) + index * SizeOf(dtype);
}

// Last dimension and the product of the others; a scalar is one row of one.
inline int64_t RowLength(const Shape& shape) {
  return shape.rank() == 0 ? 1 : shape[shape.rank() - 1];
}
inline int64_t RowCount(const Shape& shape) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < shape.rank(); ++i) rows *= shape[i];
  return rows;
}

}  // namespace plo

#endif  // PLO_OPERATORS_ROWS_H_
