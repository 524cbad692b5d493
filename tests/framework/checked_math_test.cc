#include "framework/ir/checked_math.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace plo {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

template <typename F>
std::string MessageOf(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.message();
  }
  return "no error";
}

TEST(CheckedMathTest, HoldsUpToTheLimits) {
  EXPECT_EQ(CheckedAdd(kMax - 1, 1, "bytes"), kMax);
  EXPECT_EQ(CheckedAdd(-kMax, -1, "bytes"), -kMax - 1);
  EXPECT_EQ(CheckedMul(kMax / 7, 7, "bytes"), kMax / 7 * 7);
  EXPECT_EQ(CheckedMul(kMax, 0, "bytes"), 0);
}

TEST(CheckedMathTest, NamesWhatOverflows) {
  EXPECT_THAT(MessageOf([] { CheckedAdd(kMax, 1, "the bytes of 'x'"); }),
              HasSubstr("the bytes of 'x' overflow 64 bits: "
                        "9223372036854775807 + 1"));
  EXPECT_THAT(
      MessageOf([] { CheckedMul(kMax / 2, 3, "the params"); }),
      HasSubstr("the params overflow 64 bits: 4611686018427387903 * 3"));
}

}  // namespace
}  // namespace plo
