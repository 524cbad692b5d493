// Sums and maxima of a tensor over a set of dimensions.
#ifndef PLO_OPERATORS_REDUCTION_H_
#define PLO_OPERATORS_REDUCTION_H_

#include <cstdint>

#include "framework/runtime/kernel.h"
#include "operators/reduction_layout.h"

namespace plo {

// out = factor * (sum of x over the dimensions of `reduced`), accumulated in
// double in a fixed order and rounded once; `out` holds the other dimensions in
// order. The sum of nothing is zero.
void SumOver(const Tensor& x, DimMask reduced, double factor,
             const Tensor& out);

// The maximum; NaN if there is one, -infinity of nothing.
void MaxOver(const Tensor& x, DimMask reduced, const Tensor& out);

}  // namespace plo

#endif  // PLO_OPERATORS_REDUCTION_H_
