#include "paddle_lite_offload/sampler.h"

#include <gtest/gtest.h>

#include <cmath>

namespace plo {
namespace {

TEST(PickToken, FollowsTheShares) {
  // Shares 1/4, 1/2, 1/4.
  const double logits[] = {0, std::log(2.0), 0};
  EXPECT_EQ(PickToken(logits, 3, 1, 0.0), 0);
  EXPECT_EQ(PickToken(logits, 3, 1, 0.24), 0);
  EXPECT_EQ(PickToken(logits, 3, 1, 0.26), 1);
  EXPECT_EQ(PickToken(logits, 3, 1, 0.74), 1);
  EXPECT_EQ(PickToken(logits, 3, 1, 0.76), 2);
  EXPECT_EQ(PickToken(logits, 3, 1, std::nextafter(1.0, 0.0)), 2);
}

TEST(PickToken, ColdIsGreedy) {
  const double logits[] = {0, 3, 1};
  EXPECT_EQ(PickToken(logits, 3, 0, 0.99), 1);
  EXPECT_EQ(PickToken(logits, 3, 1e-3, 0.99), 1);
}

TEST(PickToken, RejectsWhatIsNotFinite) {
  const double logits[] = {0, HUGE_VAL};
  EXPECT_THROW(PickToken(logits, 2, 1, 0.5), Error);
}

}  // namespace
}  // namespace plo
