// Small helpers of the operator tests.
#ifndef PLO_TESTS_OPERATORS_TEST_UTIL_H_
#define PLO_TESTS_OPERATORS_TEST_UTIL_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <string>
#include <vector>

#include "tests/operators/op_harness.h"

namespace plo::testing {

inline const DType kFloatTypes[] = {DType::kFp32, DType::kBf16, DType::kFp16};

// Error of a result computed in fp32 within `ulps` and rounded once.
inline double RelativeBound(DType dtype, double ulps = 1) {
  return (dtype == DType::kFp32 ? 0 : UnitRoundoff(dtype) * 1.001) +
         ulps * 0x1p-23;
}
// Half the smallest subnormal of fp16, which covers the others.
inline constexpr double kAbsoluteBound = 0x1p-25;

inline Attr Ints(std::vector<int64_t> values) {
  return Attr(std::move(values));
}
inline Attr Floats(std::vector<double> values) {
  return Attr(std::move(values));
}
inline Attr Str(const char* value) { return Attr(std::string(value)); }
inline Attr Int(int64_t value) { return Attr(value); }

// Fails unless the op gives the same bits with one and with five threads.
inline void ExpectSameForAnyThreads(const OpCase& c) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const SlotArrays one = RunOp(c);
  omp_set_num_threads(5);
  const SlotArrays many = RunOp(c);
  omp_set_num_threads(before);
  for (const auto& [slot, arrays] : one) {
    for (size_t i = 0; i < arrays.size(); ++i) {
      ExpectSame(many.at(slot)[i], arrays[i], c.type + " " + slot);
    }
  }
}

}  // namespace plo::testing

#endif  // PLO_TESTS_OPERATORS_TEST_UTIL_H_
