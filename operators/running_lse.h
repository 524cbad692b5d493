// log(sum(exp(x))) over a row that comes in pieces.
//
// The result depends on where the pieces are cut, so everything that must agree
// bit for bit cuts at multiples of kLseChunk.
#ifndef PLO_OPERATORS_RUNNING_LSE_H_
#define PLO_OPERATORS_RUNNING_LSE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "operators/kernel_util.h"
#include "operators/vector_ops.h"

namespace plo {

inline constexpr int64_t kLseChunk = 256;

struct RunningLse {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;  // of exp(x - shift())

  // What exponents are taken relative to; finite while all x are -inf.
  float shift() const { return std::isinf(max) && max < 0 ? 0.0f : max; }
  float value() const { return shift() + std::log(sum); }

  // At most kLseChunk elements.
  void AddChunk(const float* x, int64_t n) {
    const float top = Vec().max(x, n);
    if (top > max) {
      sum *= std::exp(max - top);
      max = top;
    }
    sum += Vec().exp_sum_only(x, shift(), n);
  }
  void Add(const float* x, int64_t n) {
    for (int64_t i = 0; i < n; i += kLseChunk) {
      AddChunk(x + i, std::min(kLseChunk, n - i));
    }
  }
};

inline RunningLse LseOfRow(DType dtype, const void* data, int64_t index,
                           int64_t n) {
  RunningLse lse;
  float buffer[kLseChunk];
  for (int64_t i = 0; i < n; i += kLseChunk) {
    const int64_t count = std::min(kLseChunk, n - i);
    lse.AddChunk(FloatsAt(dtype, data, index + i, count, buffer), count);
  }
  return lse;
}

}  // namespace plo

#endif  // PLO_OPERATORS_RUNNING_LSE_H_
