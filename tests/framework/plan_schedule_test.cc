// Waits: exactly those that data and control edges need, over the cycle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/framework/plan_test_util.h"

namespace plo {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr StreamKind kCompute = StreamKind::kCompute;
constexpr StreamKind kComm = StreamKind::kComm;
constexpr StreamKind kD2H = StreamKind::kD2H;
constexpr StreamKind kH2D = StreamKind::kH2D;
constexpr StreamKind kHost = StreamKind::kHost;

TEST(ScheduleTest, OneStreamNeedsNoWaits) {
  TestProgram t;
  const VarId s = t.State("s", 64);
  const VarId a = t.Temp("a", 64);
  const OpId write = t.Micro({s}, {a});
  const OpId read = t.Micro({a}, {s});
  const Plan plan = t.Build();
  EXPECT_THAT(WaitsOf(plan, write), IsEmpty());
  EXPECT_THAT(WaitsOf(plan, read), IsEmpty());
  CheckRaces(plan, t.program);
}

TEST(ScheduleTest, ReadAfterWriteAcrossStreams) {
  TestProgram t;
  const VarId a = t.Temp("a", 64);
  const VarId b = t.Temp("b", 64);
  const OpId write = t.Micro({}, {a});
  const OpId other = t.Micro({}, {});
  const OpId read = t.Micro({a}, {b}, kComm);
  const Plan plan = t.Build();
  EXPECT_THAT(WaitsOf(plan, read), ElementsAre(write));
  EXPECT_THAT(WaitsOf(plan, other), IsEmpty());
  // The next step's write must not overtake this step's read.
  EXPECT_THAT(WaitsOf(plan, write), ElementsAre(read));
  CheckRaces(plan, t.program);
}

TEST(ScheduleTest, WriteAfterReadAndWriteAfterWrite) {
  TestProgram t;
  const VarId s = t.State("s", 64);
  const OpId first = t.Micro({}, {s});
  const OpId copy = t.Micro({s}, {}, kD2H);
  const OpId second = t.Micro({}, {s});
  const OpId third = t.Micro({}, {s}, kComm);
  const Plan plan = t.Build();
  EXPECT_THAT(WaitsOf(plan, copy), ElementsAre(first));
  EXPECT_THAT(WaitsOf(plan, second), ElementsAre(copy));
  EXPECT_THAT(WaitsOf(plan, third), ElementsAre(second));
  EXPECT_THAT(WaitsOf(plan, first), ElementsAre(third));
  CheckRaces(plan, t.program);
}

TEST(ScheduleTest, DisjointBytesAreIndependent) {
  TestProgram t;
  const VarId s = t.State("s", 128);
  const VarId low = t.View("low", s, 0, 64);
  const VarId high = t.View("high", s, 64, 64);
  const VarId middle = t.View("middle", s, 32, 64);
  const OpId a = t.Micro({}, {low});
  const OpId b = t.Micro({}, {high}, kComm);
  const OpId c = t.Micro({middle}, {}, kD2H);
  const Plan plan = t.Build();
  EXPECT_THAT(WaitsOf(plan, a), ElementsAre(c));
  EXPECT_THAT(WaitsOf(plan, b), ElementsAre(c));
  EXPECT_THAT(WaitsOf(plan, c), UnorderedElementsAre(a, b));
  CheckRaces(plan, t.program);
}

TEST(ScheduleTest, ZeroBytesConflictWithNothing) {
  TestProgram t;
  const VarId s = t.State("s", 0);
  t.Micro({}, {s});
  const OpId read = t.Micro({s}, {}, kComm);
  const Plan plan = t.Build();
  EXPECT_THAT(WaitsOf(plan, read), IsEmpty());
  CheckRaces(plan, t.program);
}

TEST(ScheduleTest, WaitsImpliedByOtherWaitsAreLeftOut) {
  TestProgram t;
  const VarId a = t.State("a", 64);
  const VarId b = t.State("b", 64);
  const OpId w = t.Micro({}, {a});
  const OpId r = t.Micro({a}, {b}, kComm);
  // Reads a and b; b's writer has already waited for a's.
  const OpId both = t.Micro({a, b}, {}, kHost);
  const Plan plan = t.Build();
  // That both of the step before has read b is known from w.
  EXPECT_THAT(WaitsOf(plan, r), ElementsAre(w));
  EXPECT_THAT(WaitsOf(plan, both), ElementsAre(r));
  EXPECT_THAT(WaitsOf(plan, w), ElementsAre(both));
  CheckRaces(plan, t.program);
}

TEST(ScheduleTest, AnOpWaitsForTheUpdateOfTheStepBefore) {
  TestProgram t;
  const VarId p = t.Add("p", 64, VarKind::kParam);
  const VarId g = t.Temp("g", 64);
  const VarId host = t.Pinned(t.State("host", 64));
  const OpId forward = t.Micro({p}, {});
  const OpId backward = t.Micro({p}, {g});
  const OpId down = t.Update({g}, {host}, kD2H);
  const OpId adam = t.Update({host}, {host}, kHost);
  const OpId up = t.Update({host}, {p}, kH2D);
  const Plan plan = t.Build();
  EXPECT_THAT(WaitsOf(plan, forward), ElementsAre(up));
  // forward has waited for up, which comes after down.
  EXPECT_THAT(WaitsOf(plan, backward), IsEmpty());
  EXPECT_THAT(WaitsOf(plan, down), ElementsAre(backward));
  EXPECT_THAT(WaitsOf(plan, adam), ElementsAre(down));
  EXPECT_THAT(WaitsOf(plan, up), ElementsAre(adam));
  CheckRaces(plan, t.program);
}

TEST(ScheduleTest, ControlEdgesOrderAndReachIntoTheStepBefore) {
  TestProgram t;
  const OpId a = t.Micro({}, {});
  const OpId b = t.Micro({}, {}, kComm);
  const OpId c = t.Update({}, {}, kH2D);
  t.After(b, a);
  t.After(a, c);  // c comes later in the cycle: its instance of last step
  const Plan plan = t.Build();
  EXPECT_THAT(WaitsOf(plan, b), ElementsAre(a));
  EXPECT_THAT(WaitsOf(plan, a), ElementsAre(c));
  EXPECT_THAT(WaitsOf(plan, c), IsEmpty());
}

TEST(ScheduleTest, RepeatedMicroStepsWaitForTheRepetitionBefore) {
  TestProgram t;
  t.program.accumulate_steps = 4;
  const VarId g = t.Temp("g", 64);
  const VarId acc = t.State("acc", 64);
  const OpId backward = t.Micro({}, {g});
  const OpId accumulate = t.Micro({g, acc}, {acc}, kComm);
  const OpId adam = t.Update({acc}, {}, kHost);
  const Plan plan = t.Build();
  EXPECT_THAT(WaitsOf(plan, backward), ElementsAre(accumulate));
  // The first accumulation of a step must not overtake the last update.
  EXPECT_THAT(WaitsOf(plan, accumulate), UnorderedElementsAre(backward, adam));
  EXPECT_THAT(WaitsOf(plan, adam), ElementsAre(accumulate));
  CheckRaces(plan, t.program);
}

TEST(ScheduleTest, FirstMicroOnlyOpsAreSkippedLater) {
  TestProgram t;
  t.program.accumulate_steps = 2;
  const VarId s = t.State("s", 64);
  const OpId fill = t.Op(Section::kMicro, kComm, {}, {s}, "op", true);
  const OpId use = t.Micro({s}, {});
  const Plan plan = t.Build();
  EXPECT_THAT(WaitsOf(plan, use), ElementsAre(fill));
  EXPECT_THAT(WaitsOf(plan, fill), ElementsAre(use));
  CheckRaces(plan, t.program);
}

TEST(ScheduleTest, FeedsAndFetchesUseRingsOnTheComputeStream) {
  TestProgram t;
  const VarId x = t.Add("x", 64, VarKind::kFeed);
  const VarId y = t.Temp("y", 32);
  t.Micro({x}, {y});
  PlanOptions options;
  options.fetches = {y};
  const Plan plan = t.Build(options);
  const GraphPlan& graph = plan.graphs[0];
  ASSERT_EQ(graph.launches.size(), 3u);
  EXPECT_EQ(graph.micro_count, 2);
  const Launch& feed = graph.launches[0];
  EXPECT_EQ(feed.kind, LaunchKind::kFeed);
  EXPECT_EQ(feed.var, x);
  EXPECT_TRUE(feed.first_micro_only);
  ASSERT_EQ(feed.operands.size(), 2u);
  EXPECT_TRUE(feed.operands[0].read);
  EXPECT_EQ(plan.storages[feed.operands[0].storage].name, "x@feed_ring");
  EXPECT_EQ(StorageOf(plan, "x@feed_ring").bytes, 64 * kStepsInFlight);
  EXPECT_EQ(feed.operands[1].var, x);
  const Launch& fetch = graph.launches[2];
  EXPECT_EQ(fetch.kind, LaunchKind::kFetch);
  EXPECT_EQ(fetch.section, Section::kUpdate);
  EXPECT_EQ(StorageOf(plan, "y@fetch_ring").bytes, 32 * kFetchSlots);
  EXPECT_EQ(StorageOf(plan, "y@fetch_ring").place, Place::kPinned);
  CheckRaces(plan, t.program);
}

}  // namespace
}  // namespace plo
