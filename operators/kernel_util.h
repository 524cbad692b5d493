// Helpers that CPU kernels share: dtype dispatch, rows, fp32 views of 16-bit
// data, deterministic parallel loops.
#ifndef PLO_OPERATORS_KERNEL_UTIL_H_
#define PLO_OPERATORS_KERNEL_UTIL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "framework/ir/error.h"
#include "framework/ir/float16.h"
#include "framework/ir/types.h"
#include "framework/runtime/kernel.h"
#include "operators/convert.h"
#include "operators/rows.h"

namespace plo {

// Calls fn(T{}) with T = float, BFloat16 or Float16.
template <typename Fn>
decltype(auto) DispatchFloat(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::kFp32:
      return fn(float{});
    case DType::kBf16:
      return fn(BFloat16{});
    case DType::kFp16:
      return fn(Float16{});
    default:
      PLO_THROW(kInternal, "kernel for a float dtype got ", dtype);
  }
}

// `n` elements from `index` on as fp32: in place for fp32, else through
// `buffer`.
inline const float* FloatsAt(DType dtype, const void* data, int64_t index,
                             int64_t n, float* buffer) {
  if (dtype == DType::kFp32) return static_cast<const float*>(data) + index;
  ConvertToFloat(dtype, ElementAt(dtype, data, index), buffer, n);
  return buffer;
}

// Where to compute `n` elements from `index` on before StoreFloats(): the
// target itself for fp32, else `buffer`.
inline float* FloatTarget(DType dtype, void* data, int64_t index,
                          float* buffer) {
  return dtype == DType::kFp32 ? static_cast<float*>(data) + index : buffer;
}
inline void StoreFloats(DType dtype, const float* values, void* data,
                        int64_t index, int64_t n) {
  ConvertFromFloat(dtype, values, ElementAt(dtype, data, index), n);
}

// Elements of a row that kernels convert at a time, through the stack.
inline constexpr int64_t kRowChunk = 1024;

// Calls fn(begin, count) over [0, n) in chunks of kRowChunk.
template <typename Fn>
void ForRowChunks(int64_t n, Fn&& fn) {
  for (int64_t begin = 0; begin < n; begin += kRowChunk) {
    fn(begin, std::min(kRowChunk, n - begin));
  }
}

// Below this many elements a loop is not worth a fork.
inline constexpr int64_t kParallelElements = 16384;

// Calls fn(i) for i in [0, count), shared out to the OpenMP threads when the
// `elements` of all calls together are many. Each i must write what no other
// does, and fn must not throw.
template <typename Fn>
void ParallelFor(int64_t count, int64_t elements, const Fn& fn) {
#pragma omp parallel for schedule(static) if (count > 1 && \
                                              elements >= kParallelElements)
  for (int64_t i = 0; i < count; ++i) fn(i);
}

// The same over ranges fn(begin, end) of at most `grain`, whose boundaries
// depend on `count` and `grain` only.
template <typename Fn>
void ParallelRanges(int64_t count, int64_t grain, const Fn& fn) {
  const int64_t ranges = (count + grain - 1) / grain;
  ParallelFor(ranges, count, [&](int64_t i) {
    fn(i * grain, std::min(count, (i + 1) * grain));
  });
}

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

}  // namespace plo

#endif  // PLO_OPERATORS_KERNEL_UTIL_H_
