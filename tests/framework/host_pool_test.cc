#include "framework/runtime/host_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "framework/ir/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace plo {
namespace {

using Ranges = std::vector<std::pair<int64_t, int64_t>>;

Ranges RangesOf(HostPool& pool, int64_t count, int64_t grain) {
  std::mutex mutex;
  Ranges ranges;
  pool.ParallelFor(count, grain, [&](int64_t begin, int64_t end) {
    std::lock_guard lock(mutex);
    ranges.emplace_back(begin, end);
  });
  std::sort(ranges.begin(), ranges.end());
  return ranges;
}

TEST(HostPoolTest, RangesCoverAndAreMultiplesOfTheGrain) {
  for (int threads : {1, 2, 3, 7}) {
    HostPoolOptions options;
    options.threads = threads;
    HostPool pool(options);
    EXPECT_EQ(pool.threads(), threads);
    for (int64_t count : {0, 1, 15, 16, 17, 100, 1000}) {
      for (int64_t grain : {1, 16}) {
        const Ranges ranges = RangesOf(pool, count, grain);
        int64_t next = 0;
        for (auto [begin, end] : ranges) {
          EXPECT_EQ(begin, next);
          EXPECT_LT(begin, end);
          EXPECT_EQ(begin % grain, 0);
          next = end;
        }
        EXPECT_EQ(next, count);
        EXPECT_EQ(RangesOf(pool, count, grain), ranges) << "not deterministic";
      }
    }
  }
}

TEST(HostPoolTest, RethrowsTheFirstExceptionAndStaysUsable) {
  HostPoolOptions options;
  options.threads = 3;
  HostPool pool(options);
  for (int round = 0; round < 3; ++round) {
    EXPECT_THAT(
        [&] {
          pool.ParallelFor(30, 1, [](int64_t begin, int64_t) {
            PLO_THROW(kInternal, "range at ", begin);
          });
        },
        testing::ThrowsMessage<Error>("Internal: range at 0"));
    EXPECT_EQ(RangesOf(pool, 30, 1).size(), 3u);
  }
}

TEST(HostPoolTest, CallersOfTwoThreadsAndNestedCallsWork) {
  HostPoolOptions options;
  options.threads = 2;
  HostPool pool(options);
  std::atomic<int64_t> sum{0};
  auto add = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      pool.ParallelFor(1, 1, [&](int64_t, int64_t) { sum += 1; });
    }
  };
  std::thread other([&] {
    for (int i = 0; i < 50; ++i) pool.ParallelFor(100, 1, add);
  });
  for (int i = 0; i < 50; ++i) pool.ParallelFor(100, 1, add);
  other.join();
  EXPECT_EQ(sum.load(), 10000);
}

TEST(HostPoolTest, ThreadsArePinnedToDistinctCores) {
  HostPool pool;
  if (pool.threads() < 2) GTEST_SKIP() << "one physical core";
  std::mutex mutex;
  std::set<int> cpus;
  pool.ParallelFor(pool.threads(), 1, [&](int64_t, int64_t) {
    cpu_set_t set;
    CPU_ZERO(&set);
    ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
    EXPECT_EQ(CPU_COUNT(&set), 1);
    std::lock_guard lock(mutex);
    cpus.insert(sched_getcpu());
  });
  EXPECT_EQ(cpus.size(), static_cast<size_t>(pool.threads()));
}

TEST(HostPoolTest, RanksOfAHostShareTheCoresWhateverOmpSays) {
  HostPool whole;
  setenv("OMP_NUM_THREADS", "1", 1);
  HostPool again;
  EXPECT_EQ(again.threads(), whole.threads());
  unsetenv("OMP_NUM_THREADS");
  HostPoolOptions options;
  options.local_world_size = 2;
  for (options.local_rank = 0; options.local_rank < 2; ++options.local_rank) {
    HostPool half(options);
    EXPECT_EQ(half.threads(), std::max(1, whole.threads() / 2));
  }
  options.local_world_size = 1000;
  EXPECT_EQ(HostPool(options).threads(), 1);
}

TEST(HostPoolTest, RefusesBadOptions) {
  HostPoolOptions options;
  options.local_rank = 1;
  EXPECT_THROW(HostPool{options}, Error);
  options.local_rank = 0;
  options.threads = -1;
  EXPECT_THROW(HostPool{options}, Error);
}

}  // namespace
}  // namespace plo
