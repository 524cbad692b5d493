// After the first step nothing is allocated, on the device or on the host.
#include <atomic>
#include <cstdlib>
#include <new>

#include "framework/runtime/executor.h"
#include "gtest/gtest.h"
#include "tests/framework/executor_harness.h"
#include "tests/framework/test_device.h"

// The sanitizers bring operators new of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define PLO_COUNT_HOST_ALLOCATIONS 1
#endif

namespace {
std::atomic<int64_t> host_allocations{0};
}  // namespace

#ifdef PLO_COUNT_HOST_ALLOCATIONS
// Inlined, malloc and free would look mismatched to the compiler.
#define PLO_NOINLINE __attribute__((noinline))
PLO_NOINLINE void* operator new(size_t size) {
  host_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* data = std::malloc(size)) return data;
  throw std::bad_alloc();
}
PLO_NOINLINE void operator delete(void* data) noexcept { std::free(data); }
PLO_NOINLINE void operator delete(void* data, size_t) noexcept {
  std::free(data);
}
#endif

namespace plo {
namespace {

using harness::Attrs;
using harness::Floats;
using harness::TestProgram;

TEST(ExecutorSteadyStateTest, AHundredStepsAllocateNothing) {
  TestProgram test;
  test.program.accumulate_steps = 2;
  const VarId x = test.Feed("x", {2, 64});
  const VarId w = test.Param("w", {64});
  const VarId part = test.Temp("part", {64});
  const VarId y = test.Temp("y", {64});
  const VarId host = test.State("host", {64}, Place::kPinned);
  const VarId back = test.Temp("back", {64});
  test.Fill(w, 1);
  test.Do(Section::kMicro, "test_slice", {x}, part);
  test.Do(Section::kMicro, "test_add", {part, w}, y);
  test.Do(Section::kUpdate, "copy_d2h", {y}, host, StreamKind::kD2H);
  test.Do(Section::kUpdate, "test_scale", {host}, host, StreamKind::kHost,
          Attrs("factor", 0.5));
  test.Do(Section::kUpdate, "copy_h2d", {host}, back, StreamKind::kH2D);
  test.Do(Section::kUpdate, "test_add", {w, back}, w);
  PlanOptions plan_options;
  plan_options.fetches = {y};
  auto device = CreateTestDevice();
  auto executor = Executor::Create(
      test.program, BuildPlan(test.program, plan_options), *device, nullptr);
  executor->RunStartup();
  const Feeds feeds = {{"x", Floats({2, 64}, std::vector<float>(128, 1.0f))}};
  executor->Run(feeds);
  executor->Drain();

  const DeviceStats before = device->stats();
  const int64_t host_before = host_allocations.load();
  for (int step = 0; step < 100; ++step) executor->Run(feeds);
  executor->Drain();
  EXPECT_EQ(host_allocations.load(), host_before);
  const DeviceStats after = device->stats();
  EXPECT_EQ(after.device_allocations, before.device_allocations);
  EXPECT_EQ(after.pinned_allocations, before.pinned_allocations);
  EXPECT_EQ(after.device_bytes, before.device_bytes);
  EXPECT_EQ(after.pinned_bytes, before.pinned_bytes);
#ifdef PLO_COUNT_HOST_ALLOCATIONS
  EXPECT_GT(host_allocations.load(), 0) << "the counter does not count";
#endif
}

}  // namespace
}  // namespace plo
