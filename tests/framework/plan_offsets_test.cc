// Packing against its bounds and against exhaustive search.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "framework/plan/offsets.h"

namespace plo::planning {
namespace {

bool Overlap(const PackItem& a, const PackItem& b) {
  for (const LiveRange& x : a.live) {
    for (const LiveRange& y : b.live) {
      if (x.begin < y.end && y.begin < x.end) return true;
    }
  }
  return false;
}

void ExpectValid(const std::vector<PackItem>& items, const Packing& packing) {
  ASSERT_EQ(packing.offsets.size(), items.size());
  int64_t end = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    EXPECT_EQ(packing.offsets[i] % kArenaAlignment, 0);
    if (items[i].bytes > 0) {
      end = std::max(end, packing.offsets[i] + items[i].bytes);
    }
    for (size_t j = 0; j < i; ++j) {
      if (!Overlap(items[i], items[j])) continue;
      EXPECT_TRUE(packing.offsets[i] + items[i].bytes <= packing.offsets[j] ||
                  packing.offsets[j] + items[j].bytes <= packing.offsets[i])
          << i << " and " << j;
    }
  }
  EXPECT_EQ(packing.end, end);
}

// The least end over all orders of lowest placement, which reaches the optimum.
int64_t BestEnd(const std::vector<PackItem>& items) {
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), 0);
  int64_t best = std::numeric_limits<int64_t>::max();
  do {
    std::vector<int64_t> offsets(items.size(), 0);
    int64_t end = 0;
    for (size_t k = 0; k < order.size(); ++k) {
      const size_t i = order[k];
      for (bool moved = true; moved;) {
        moved = false;
        for (size_t l = 0; l < k; ++l) {
          const size_t j = order[l];
          if (Overlap(items[i], items[j]) &&
              offsets[i] < offsets[j] + items[j].bytes &&
              offsets[j] < offsets[i] + items[i].bytes) {
            offsets[i] = (offsets[j] + items[j].bytes + 255) / 256 * 256;
            moved = true;
          }
        }
      }
      end = std::max(end, offsets[i] + items[i].bytes);
    }
    best = std::min(best, end);
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

std::vector<PackItem> RandomItems(uint32_t seed, int count, int axis) {
  std::mt19937 random(seed);
  std::vector<PackItem> items;
  for (int i = 0; i < count; ++i) {
    PackItem item;
    item.bytes = static_cast<int64_t>(random() % 5000);
    const auto begin = static_cast<int32_t>(random() % axis);
    const auto end = static_cast<int32_t>(begin + 1 + random() % (axis / 3));
    if (end <= axis) {
      item.live = {{begin, end}};
    } else {
      item.live = {{0, end - axis}, {begin, axis}};
    }
    items.push_back(item);
  }
  return items;
}

TEST(PackTest, NothingAndZeroBytes) {
  EXPECT_EQ(Pack({}).end, 0);
  const Packing packing = Pack({{0, {{0, 4}}}, {10, {{0, 4}}}, {0, {}}});
  EXPECT_EQ(packing.end, 10);
}

TEST(PackTest, TheArenaEndsWithTheLastByte) {
  EXPECT_EQ(Pack({{100, {{0, 4}}}, {100, {{2, 4}}}}).end, 356);
  EXPECT_EQ(Pack({{100, {{0, 2}}}, {100, {{2, 4}}}}).end, 100);
}

TEST(PackTest, WrappedRangesMeetAtBothEnds) {
  const std::vector<PackItem> items = {{256, {{0, 2}, {8, 10}}},
                                       {256, {{1, 3}}},
                                       {256, {{7, 9}}},
                                       {256, {{3, 7}}}};
  const Packing packing = Pack(items);
  ExpectValid(items, packing);
  EXPECT_EQ(packing.end, 512);
}

TEST(PackTest, SmallInstancesComeCloseToTheOptimum) {
  int64_t ours = 0, best = 0;
  int optimal = 0;
  for (uint32_t seed = 0; seed < 100; ++seed) {
    const std::vector<PackItem> items = RandomItems(seed, 7, 12);
    const Packing packing = Pack(items);
    ExpectValid(items, packing);
    const int64_t optimum = BestEnd(items);
    EXPECT_GE(packing.end, optimum) << seed;
    EXPECT_GE(optimum, PackingLowerBound(items)) << seed;
    optimal += packing.end == optimum;
    ours += packing.end;
    best += optimum;
  }
  EXPECT_GE(optimal, 75);
  EXPECT_LE(static_cast<double>(ours), 1.01 * static_cast<double>(best));
}

TEST(PackTest, LargerInstancesAreValidAndAboveTheBound) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const std::vector<PackItem> items = RandomItems(seed, 150, 60);
    const Packing packing = Pack(items);
    ExpectValid(items, packing);
    const int64_t bound = PackingLowerBound(items);
    EXPECT_GE(packing.end, bound);
    EXPECT_LE(static_cast<double>(packing.end),
              1.2 * static_cast<double>(bound));
    EXPECT_EQ(Pack(items).offsets, packing.offsets);
  }
}

// Forward and backward of a deep model: saved activations nest.
TEST(PackTest, NestedLifetimesPackTightly) {
  std::vector<PackItem> items;
  constexpr int kLayers = 1500;
  for (int layer = 0; layer < kLayers; ++layer) {
    const int32_t forward = 4 * layer;
    const int32_t backward = 8 * kLayers - 4 * layer;
    items.push_back({1 << 20, {{forward, backward}}});
    items.push_back({3000, {{forward, backward + 2}}});
    items.push_back({4 << 20, {{forward + 1, forward + 3}}});
    items.push_back({2 << 20, {{backward - 2, backward + 1}}});
  }
  const Packing packing = Pack(items);
  const int64_t bound = PackingLowerBound(items);
  EXPECT_LE(static_cast<double>(packing.end),
            1.01 * static_cast<double>(bound));
}

// The arrays of one update, a large power of two apart, would take the same
// banks of host memory.
TEST(AssignOffsetsTest, PinnedStatesAreStaggered) {
  constexpr int64_t kLarge = 128 << 20;
  Plan plan;
  for (Place place : {Place::kDevice, Place::kPinned}) {
    for (int i = 0; i < 3; ++i) {
      Storage storage;
      storage.place = place;
      storage.bytes = kLarge;
      storage.persistent = true;
      plan.storages.push_back(storage);
    }
  }
  plan.graphs.emplace_back();
  AssignOffsets(plan);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(plan.storages[i].offset, i * kLarge);
    EXPECT_EQ(plan.storages[3 + i].offset, i * (kLarge + (64 << 10)));
  }
  EXPECT_EQ(plan.pinned.arena_bytes, 3 * kLarge + 2 * (64 << 10));
}

}  // namespace
}  // namespace plo::planning
