// Sums and products of bytes and counts that must not wrap around: a model's
// sizes come from the user, and a wrapped number looks like a small one.
#ifndef PLO_FRAMEWORK_IR_CHECKED_MATH_H_
#define PLO_FRAMEWORK_IR_CHECKED_MATH_H_

#include <cstdint>
#include <string_view>

#include "framework/ir/error.h"

namespace plo {

// a + b and a * b. Throw InvalidArgument when 64 bits do not hold the result;
// the message names `what` it counts.
inline int64_t CheckedAdd(int64_t a, int64_t b, std::string_view what) {
  int64_t sum = 0;
  PLO_ENFORCE(!__builtin_add_overflow(a, b, &sum), kInvalidArgument, what,
              " overflow 64 bits: ", a, " + ", b);
  return sum;
}

inline int64_t CheckedMul(int64_t a, int64_t b, std::string_view what) {
  int64_t product = 0;
  PLO_ENFORCE(!__builtin_mul_overflow(a, b, &product), kInvalidArgument, what,
              " overflow 64 bits: ", a, " * ", b);
  return product;
}

}  // namespace plo

#endif  // PLO_FRAMEWORK_IR_CHECKED_MATH_H_
