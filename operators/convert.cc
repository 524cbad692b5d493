#include "operators/convert.h"

#include <cstring>

#include "framework/ir/error.h"
#include "operators/kernel_util.h"
#include "operators/vector_ops.h"

namespace plo {

void ConvertToFloat(DType dtype, const void* src, float* dst, int64_t n) {
  switch (dtype) {
    case DType::kFp32:
      if (src != dst && n > 0) {
        std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
      }
      return;
    case DType::kBf16:
      return Vec().bf16_to_float(static_cast<const uint16_t*>(src), dst, n);
    case DType::kFp16:
      return Vec().fp16_to_float(static_cast<const uint16_t*>(src), dst, n);
    default:
      PLO_THROW(kInternal, "no conversion from ", dtype, " to fp32");
  }
}

void ConvertFromFloat(DType dtype, const float* src, void* dst, int64_t n) {
  switch (dtype) {
    case DType::kFp32:
      if (src != dst && n > 0) {
        std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
      }
      return;
    case DType::kBf16:
      return Vec().float_to_bf16(src, static_cast<uint16_t*>(dst), n);
    case DType::kFp16:
      return Vec().float_to_fp16(src, static_cast<uint16_t*>(dst), n);
    default:
      PLO_THROW(kInternal, "no conversion from fp32 to ", dtype);
  }
}

void RoundToDType(DType dtype, float* x, int64_t n) {
  if (dtype == DType::kFp32) return;
  uint16_t buffer[kRowChunk];
  ForRowChunks(n, [&](int64_t begin, int64_t count) {
    ConvertFromFloat(dtype, x + begin, buffer, count);
    ConvertToFloat(dtype, buffer, x + begin, count);
  });
}

void ConvertMatrixToFloat(DType dtype, const void* src, int64_t src_stride,
                          float* dst, int64_t dst_stride, int64_t rows,
                          int64_t cols) {
  ParallelFor(rows, rows * cols, [&](int64_t row) {
    ConvertToFloat(dtype, ElementAt(dtype, src, row * src_stride),
                   dst + row * dst_stride, cols);
  });
}

void ConvertMatrixFromFloat(DType dtype, const float* src, int64_t src_stride,
                            void* dst, int64_t dst_stride, int64_t rows,
                            int64_t cols) {
  ParallelFor(rows, rows * cols, [&](int64_t row) {
    ConvertFromFloat(dtype, src + row * src_stride,
                     ElementAt(dtype, dst, row * dst_stride), cols);
  });
}

}  // namespace plo
