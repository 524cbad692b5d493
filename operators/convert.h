// Bulk conversion between fp32 and the float dtypes of tensors.
#ifndef PLO_OPERATORS_CONVERT_H_
#define PLO_OPERATORS_CONVERT_H_

#include <cstdint>

#include "framework/ir/types.h"

namespace plo {

// `dtype` must be a float type. fp32 is copied; equal pointers do nothing then.
void ConvertToFloat(DType dtype, const void* src, float* dst, int64_t n);
void ConvertFromFloat(DType dtype, const float* src, void* dst, int64_t n);

// Rounds fp32 values to the nearest of `dtype`, in place.
void RoundToDType(DType dtype, float* x, int64_t n);

// A [rows, cols] matrix with row strides in elements. Rows are shared out to
// the OpenMP threads.
void ConvertMatrixToFloat(DType dtype, const void* src, int64_t src_stride,
                          float* dst, int64_t dst_stride, int64_t rows,
                          int64_t cols);
void ConvertMatrixFromFloat(DType dtype, const float* src, int64_t src_stride,
                            void* dst, int64_t dst_stride, int64_t rows,
                            int64_t cols);

}  // namespace plo

#endif  // PLO_OPERATORS_CONVERT_H_
