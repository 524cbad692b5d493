// Holes that a packing leaves around the turn of the cycle, and what fills
// them.
#include <gtest/gtest.h>

#include <vector>

#include "framework/plan/holes.h"

namespace plo::planning {
namespace {

constexpr int64_t kBlock = 1024;

// Activations of four layers on an axis of eight events: layer i lives from
// event i to event 8 - i.
std::vector<PackItem> Layers() {
  std::vector<PackItem> items;
  for (int32_t i = 0; i < 4; ++i) items.push_back({kBlock, {{i, 8 - i}}});
  return items;
}

TEST(HolesTest, TheLongestIsThatOfTheLastLayer) {
  const std::vector<PackItem> items = Layers();
  const Packing packing = Pack(items);
  ASSERT_EQ(packing.end, 4 * kBlock);
  Holes holes(items, packing);
  // Layer 0 leaves none: it is there at events 0 and 7.
  for (int32_t layer : {3, 2, 1}) {
    const auto hole = holes.Longest(kBlock, {{0, 1}, {7, 8}});
    ASSERT_TRUE(hole.has_value());
    EXPECT_EQ(hole->offset, packing.offsets[layer]);
    EXPECT_EQ(hole->from, 8 - layer);
    EXPECT_EQ(hole->until, layer);
    holes.Fill(*hole, kBlock);
  }
  EXPECT_FALSE(holes.Longest(kBlock, {{0, 1}, {7, 8}}).has_value());
}

TEST(HolesTest, AHoleMaySpanNeighboursAndHasWhatTheyHaveInCommon) {
  const std::vector<PackItem> items = Layers();
  const Holes holes(items, Pack(items));
  const auto hole = holes.Longest(2 * kBlock, {{0, 1}, {7, 8}});
  ASSERT_TRUE(hole.has_value());
  EXPECT_EQ(hole->from, 6);
  EXPECT_EQ(hole->until, 2);
  EXPECT_FALSE(holes.Longest(4 * kBlock, {{0, 1}, {7, 8}}).has_value());
}

TEST(HolesTest, FillersTakeHolesAndDoNotRaiseThePacking) {
  std::vector<PackItem> items = Layers();
  for (int32_t layer : {1, 2, 3}) {
    items.push_back({kBlock, {{0, layer}, {8 - layer, 8}}, /*filler=*/true});
  }
  const Packing packing = Pack(items);
  EXPECT_EQ(packing.end, 4 * kBlock);
  EXPECT_TRUE(packing.homeless.empty());
  for (int32_t layer : {1, 2, 3}) {
    EXPECT_EQ(packing.offsets[3 + layer], packing.offsets[layer]);
  }
}

TEST(HolesTest, AFillerWithoutAHoleIsNamedAndGoesOnTop) {
  std::vector<PackItem> items = Layers();
  items.push_back({kBlock, {{0, 3}, {4, 8}}, /*filler=*/true});
  const Packing packing = Pack(items);
  EXPECT_EQ(packing.homeless, std::vector<size_t>{4});
  EXPECT_EQ(packing.end, 5 * kBlock);
}

}  // namespace
}  // namespace plo::planning
