// Memory: the planner's figures against independent measurements, and that
// each kind of mis-declaration is caught.
#include <cmath>

#include "framework/ir/error.h"
#include "framework/runtime/executor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/executor_harness.h"
#include "tests/framework/test_device.h"

namespace plo {
namespace {

using harness::Attrs;
using harness::FindLaunch;
using harness::FindStorage;
using harness::Floats;
using harness::NaivePlan;
using harness::TestProgram;
using harness::Values;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

// w += back(2 * 2 * 2 * part(x) summed over micro-steps), through the host.
struct Chain {
  TestProgram test;
  VarId x, w, c;
  explicit Chain(int accumulate_steps) {
    const int64_t n = 1000;
    test.program.accumulate_steps = accumulate_steps;
    x = test.Feed("x", {accumulate_steps, n});
    w = test.Param("w", {n});
    const VarId part = test.Temp("part", {n});
    const VarId a = test.Temp("a", {n});
    const VarId b = test.Temp("b", {n});
    c = test.Temp("c", {n});
    const VarId sum = test.State("sum", {n});
    const VarId final_sum = test.Temp("final", {n});
    const VarId host = test.State("host", {n}, Place::kPinned);
    const VarId back = test.Temp("back", {n});
    const AttrMap twice = Attrs("factor", 2.0);
    test.Fill(w, 1);
    test.Do(Section::kMicro, "test_slice", {x}, part);
    test.Do(Section::kMicro, "test_scale", {part}, a, StreamKind::kCompute,
            twice);
    test.Do(Section::kMicro, "test_scale", {a}, b, StreamKind::kCompute, twice);
    test.Do(Section::kMicro, "test_workspace", {b}, c, StreamKind::kCompute,
            Attrs("touch", int64_t{3000}));
    test.Do(Section::kMicro, "test_accumulate", {c, sum}, sum);
    test.Do(Section::kUpdate, "test_scale", {sum}, final_sum,
            StreamKind::kCompute, twice);
    test.Do(Section::kUpdate, "copy_d2h", {final_sum}, host, StreamKind::kD2H);
    test.Do(Section::kUpdate, "copy_h2d", {host}, back, StreamKind::kH2D);
    test.Do(Section::kUpdate, "test_add", {w, back}, w);
  }
  Feeds MakeFeeds(float value) const {
    const Shape& shape = test.program.var(x).shape;
    return {
        {"x", Floats(shape, std::vector<float>(
                                static_cast<size_t>(shape.numel()), value))}};
  }
};

class ExecutorMemoryTest : public testing::TestWithParam<int> {};

TEST_P(ExecutorMemoryTest, MeasuredPeakIsThePlannedOne) {
  Chain chain(GetParam());
  PlanOptions plan_options;
  plan_options.fetches = {chain.w};
  const Plan plan = BuildPlan(chain.test.program, plan_options);
  auto device = CreateTestDevice();
  ExecutorOptions options;
  options.check_races = true;
  auto executor =
      Executor::Create(chain.test.program, plan, *device, nullptr, options);
  executor->RunStartup();
  for (int step = 0; step < 4; ++step) executor->Run(chain.MakeFeeds(1));
  const MemoryMeasurement measured = executor->MeasureMemory();
  EXPECT_EQ(measured.measured_peak_bytes, plan.device.arena_bytes);
  EXPECT_EQ(measured.live_peak_bytes, plan.device.live_peak_bytes);
  EXPECT_EQ(measured.by_category, plan.device.by_category);
  EXPECT_EQ(measured.pinned_bytes, plan.pinned.arena_bytes);
  EXPECT_EQ(measured.device.pinned_bytes, plan.pinned.arena_bytes);
  const double w = 1 + 4 * 8.0 * GetParam();
  EXPECT_EQ(Values(*executor, "w"), std::vector<double>(1000, w));
}

TEST_P(ExecutorMemoryTest, ChecksPassOnACorrectPlan) {
  Chain chain(GetParam());
  auto device = CreateTestDevice();
  ExecutorOptions options;
  options.verify_writes = true;
  options.poison_freed = true;
  PlanOptions plan_options;
  plan_options.fetches = {chain.c};
  auto executor = Executor::Create(chain.test.program,
                                   BuildPlan(chain.test.program, plan_options),
                                   *device, nullptr, options);
  executor->RunStartup();
  StepId last = 0;
  for (int step = 0; step < 4; ++step) last = executor->Run(chain.MakeFeeds(1));
  EXPECT_EQ(executor->Fetch(last)[0].ToDoubles(),
            std::vector<double>(1000, 4.0));
  const double w = 1 + 4 * 8.0 * GetParam();
  EXPECT_EQ(Values(*executor, "w"), std::vector<double>(1000, w));
}

INSTANTIATE_TEST_SUITE_P(AccumulateSteps, ExecutorMemoryTest,
                         testing::Values(1, 2, 5));

TEST(ExecutorMemoryTest, NothingRunNothingTouched) {
  Chain chain(1);
  auto device = CreateTestDevice();
  auto executor = Executor::Create(
      chain.test.program, BuildPlan(chain.test.program), *device, nullptr);
  EXPECT_EQ(executor->MeasureMemory().measured_peak_bytes, 0);
}

TEST(ExecutorMemoryTest, ADeviceLimitMayBeUsedUpToTheLastByte) {
  Chain chain(1);
  const Plan plan = BuildPlan(chain.test.program);
  auto device =
      CreateTestDevice(plan.device.arena_bytes, plan.pinned.arena_bytes);
  auto executor = Executor::Create(chain.test.program, plan, *device, nullptr);
  executor->RunStartup();
  executor->Run(chain.MakeFeeds(1));
  EXPECT_EQ(executor->MeasureMemory().measured_peak_bytes,
            plan.device.arena_bytes);
  executor.reset();
  device =
      CreateTestDevice(plan.device.arena_bytes - 1, plan.pinned.arena_bytes);
  EXPECT_THAT(
      [&] { Executor::Create(chain.test.program, plan, *device, nullptr); },
      ThrowsMessage<Error>(HasSubstr("OutOfMemory: device memory")));
}

TEST(ExecutorMemoryTest, UnwrittenMemoryReadsAsNaN) {
  TestProgram test;
  const VarId never = test.State("never", {2});
  const VarId out = test.State("out", {2});
  test.Do(Section::kMicro, "test_add", {never, never}, out);
  auto device = CreateTestDevice();
  auto executor =
      Executor::Create(test.program, NaivePlan(test.program), *device, nullptr);
  executor->Run({});
  EXPECT_TRUE(std::isnan(Values(*executor, "out")[0]));
}

// --- Mis-declarations ---

// One op of `type` from w to a temp that ends the arena.
struct OneOp {
  TestProgram test;
  VarId w, out;
  explicit OneOp(const std::string& type, AttrMap attrs = {}) {
    w = test.Param("w", {64});
    out = test.Temp("out", {64});
    test.Fill(w, 1);
    test.Do(Section::kMicro, type, {w}, out, StreamKind::kCompute,
            std::move(attrs));
  }
};

void RunOnce(const Program& program, Plan plan, const ExecutorOptions& options,
             MemoryMeasurement* measurement = nullptr) {
  auto device = CreateTestDevice();
  auto executor =
      Executor::Create(program, std::move(plan), *device, nullptr, options);
  executor->RunStartup();
  executor->Run({});
  executor->Drain();
  if (measurement != nullptr) *measurement = executor->MeasureMemory();
}

ExecutorOptions VerifyWrites() {
  ExecutorOptions options;
  options.verify_writes = true;
  return options;
}

TEST(ExecutorMemoryTest, AByteWrittenPastAnOutputIsCaught) {
  OneOp program("test_overrun");
  const Plan plan = NaivePlan(program.test.program);
  MemoryMeasurement measured;
  RunOnce(program.test.program, plan, {}, &measured);
  EXPECT_EQ(measured.measured_peak_bytes, plan.device.arena_bytes + 1);
  EXPECT_THAT([&] { RunOnce(program.test.program, plan, VerifyWrites()); },
              ThrowsMessage<Error>(
                  AllOf(HasSubstr("Internal: op 'test_overrun'"),
                        HasSubstr("wrote byte 512 of the device arena"),
                        HasSubstr("0 bytes past the end of fp32 [64] 'out'"))));
}

TEST(ExecutorMemoryTest, ATooSmallWorkspaceIsCaught) {
  OneOp program("test_workspace", Attrs("touch", int64_t{300}));
  const Plan small = NaivePlan(program.test.program, {}, {}, 256);
  MemoryMeasurement measured;
  RunOnce(program.test.program, small, {}, &measured);
  EXPECT_EQ(measured.measured_peak_bytes, small.device.arena_bytes + 44);
  EXPECT_THAT([&] { RunOnce(program.test.program, small, VerifyWrites()); },
              ThrowsMessage<Error>(
                  AllOf(HasSubstr("op 'test_workspace'"),
                        HasSubstr("0 bytes past the end of its workspace"))));
  RunOnce(program.test.program, NaivePlan(program.test.program, {}, {}, 300),
          VerifyWrites());
}

TEST(ExecutorMemoryTest, AWriteToAnInputIsCaught) {
  OneOp program("test_stray");
  EXPECT_THAT(
      [&] {
        RunOnce(program.test.program, NaivePlan(program.test.program),
                VerifyWrites());
      },
      ThrowsMessage<Error>(
          AllOf(HasSubstr("op 'test_stray'"),
                HasSubstr("which it does not declare, in storage 'w'"))));
}

// out = a + b where a is written before b.
struct TwoTemps {
  TestProgram test;
  TwoTemps() {
    const VarId w = test.Param("w", {64});
    const VarId a = test.Temp("a", {64});
    const VarId b = test.Temp("b", {64});
    const VarId out = test.State("out", {64});
    const AttrMap twice = Attrs("factor", 2.0);
    test.Fill(w, 1);
    test.Do(Section::kMicro, "test_scale", {w}, a, StreamKind::kCompute, twice);
    test.Do(Section::kMicro, "test_scale", {a}, b, StreamKind::kCompute, twice);
    test.Do(Section::kMicro, "test_add", {a, b}, out);
  }
};

TEST(ExecutorMemoryTest, ATooShortLifetimeIsCaughtAtTheRead) {
  TwoTemps program;
  Plan plan = NaivePlan(program.test.program);
  // What a planner would do that thinks a dead when b is written.
  FindStorage(plan, "b").offset = FindStorage(plan, "a").offset;
  EXPECT_THAT([&] { RunOnce(program.test.program, plan, VerifyWrites()); },
              ThrowsMessage<Error>(AllOf(
                  HasSubstr("op 'test_add'"), HasSubstr("reads fp32 [64] 'a'"),
                  HasSubstr("overwritten through storage 'b'"))));
}

TEST(ExecutorMemoryTest, ATooShortLifetimeIsPoisoned) {
  TwoTemps program;
  Plan plan = NaivePlan(program.test.program);
  const auto run = [&] {
    auto device = CreateTestDevice();
    ExecutorOptions options;
    options.poison_freed = true;
    auto executor =
        Executor::Create(program.test.program, plan, *device, nullptr, options);
    executor->RunStartup();
    executor->Run({});
    return Values(*executor, "out")[0];
  };
  EXPECT_EQ(run(), 6);
  FindStorage(plan, "a").live = {{0, 3}};  // to the end of the second launch
  EXPECT_TRUE(std::isnan(run()));
  FindStorage(plan, "a").live = {{0, 5}};
  EXPECT_EQ(run(), 6);
}

TEST(ExecutorMemoryTest, LivePeakFollowsTheOperandsNotThePlan) {
  TwoTemps program;
  Plan plan = NaivePlan(program.test.program);
  plan.device.live_peak_bytes = 12345;
  FindStorage(plan, "a").live.clear();
  MemoryMeasurement measured;
  RunOnce(program.test.program, plan, {}, &measured);
  // w, out; a and b.
  EXPECT_EQ(measured.live_peak_bytes, 4 * 256);
  EXPECT_THAT(measured.by_category, ElementsAre(256, 0, 0, 512, 256, 0));
}

}  // namespace
}  // namespace plo
