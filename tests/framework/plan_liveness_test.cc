// Lifetimes on the compute axis: 2i starts and 2i + 1 completes the i-th
// compute launch of the cycle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/framework/plan_test_util.h"

namespace plo {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr StreamKind kComm = StreamKind::kComm;
constexpr StreamKind kHost = StreamKind::kHost;

TEST(LivenessTest, TempsLiveFromFirstToLastUse) {
  TestProgram t;
  const VarId a = t.Temp("a", 1000);
  const VarId b = t.Temp("b", 500);
  const VarId c = t.Temp("c", 1000);
  t.Micro({}, {a});
  t.Micro({a}, {b});
  t.Micro({b}, {c});
  t.Micro({c}, {});
  const Plan plan = t.Build();
  EXPECT_THAT(LiveOf(plan, "a"), ElementsAre(Pair(0, 3)));
  EXPECT_THAT(LiveOf(plan, "b"), ElementsAre(Pair(2, 5)));
  EXPECT_THAT(LiveOf(plan, "c"), ElementsAre(Pair(4, 7)));
  EXPECT_EQ(plan.device.live_peak_bytes, 1500);
  EXPECT_LE(plan.device.arena_bytes, 1024 + 500);  // a and c share
  EXPECT_EQ(StorageOf(plan, "a").offset, StorageOf(plan, "c").offset);
  EXPECT_THAT(plan.device.peak_op, ::testing::HasSubstr("op 'op' #1"));
  CheckRaces(plan, t.program);
}

TEST(LivenessTest, PersistentStoragesLieAtTheBottom) {
  TestProgram t;
  const VarId p = t.Add("p", 100, VarKind::kParam);
  const VarId s = t.State("s", 300);
  const VarId a = t.Temp("a", 8);
  t.Micro({p, s}, {a});
  t.Add("unused", 4, VarKind::kParam);
  const Plan plan = t.Build();
  EXPECT_EQ(StorageOf(plan, "p").offset, 0);
  EXPECT_EQ(StorageOf(plan, "s").offset, 256);
  EXPECT_EQ(StorageOf(plan, "unused").offset, 768);
  EXPECT_EQ(StorageOf(plan, "a").offset, 1024);
  EXPECT_THAT(LiveOf(plan, "p"), IsEmpty());
  EXPECT_EQ(plan.device.arena_bytes, 1032);
  EXPECT_EQ(plan.device.live_peak_bytes, 412);
  EXPECT_EQ(plan.device.by_category[static_cast<int>(MemoryCategory::kParams)],
            104);
}

TEST(LivenessTest, WorkspacesLiveDuringTheirLaunch) {
  TestProgram t;
  const VarId a = t.Temp("a", 256);
  const OpId first = t.Micro({}, {a}, StreamKind::kCompute, "scratch");
  const OpId second = t.Micro({a}, {}, StreamKind::kCompute, "scratch");
  t.program.mutable_op(first).attrs.Set("bytes", 1000);
  t.program.mutable_op(second).attrs.Set("bytes", 300);
  const Plan plan = t.Build();
  EXPECT_THAT(LiveOf(plan, "workspace#0"), ElementsAre(Pair(0, 1)));
  EXPECT_THAT(LiveOf(plan, "workspace#1"), ElementsAre(Pair(2, 3)));
  EXPECT_EQ(plan.graphs[0].launches[0].workspace_bytes, 1000);
  EXPECT_EQ(plan.graphs[0].launches[0].operands.back().var, kNoId);
  EXPECT_EQ(plan.device.live_peak_bytes, 1256);
  EXPECT_EQ(plan.device.arena_bytes, 1256);
  EXPECT_EQ(
      plan.device.by_category[static_cast<int>(MemoryCategory::kWorkspace)],
      1000);
}

// Four gradient buckets, each reduced on another stream.
struct Buckets {
  TestProgram t;
  std::vector<OpId> writers, reductions;

  explicit Buckets(int depth) {
    std::vector<VarId> shards;
    for (int i = 0; i < 4; ++i) {
      const VarId grad = t.Temp(StrCat("grad", i), 1024);
      shards.push_back(t.State(StrCat("shard", i), 256));
      writers.push_back(t.Micro({}, {grad}));
      reductions.push_back(t.Micro({grad}, {shards[i]}, kComm));
      if (depth > 0 && i >= depth) {
        t.After(writers[i], reductions[i - depth]);
      }
    }
    t.Update(shards, {});
  }
};

TEST(LivenessTest, WithoutCreditEdgesNothingIsReused) {
  const Buckets buckets(/*depth=*/0);
  const Plan plan = buckets.t.Build();
  EXPECT_EQ(plan.device.live_peak_bytes, 4 * 1024 + 4 * 256);
  EXPECT_THAT(LiveOf(plan, "grad0"), ElementsAre(Pair(0, 8)));
  CheckRaces(plan, buckets.t.program);
}

TEST(LivenessTest, CreditEdgesLetARingReuseItsMemory) {
  const Buckets buckets(/*depth=*/2);
  const Plan plan = buckets.t.Build();
  // Released when the writer two buckets on starts, the last by the update.
  EXPECT_THAT(LiveOf(plan, "grad0"), ElementsAre(Pair(0, 4)));
  EXPECT_THAT(LiveOf(plan, "grad1"), ElementsAre(Pair(2, 6)));
  EXPECT_THAT(LiveOf(plan, "grad2"), ElementsAre(Pair(4, 8)));
  EXPECT_THAT(LiveOf(plan, "grad3"), ElementsAre(Pair(6, 8)));
  EXPECT_EQ(plan.device.live_peak_bytes, 2 * 1024 + 4 * 256);
  EXPECT_EQ(plan.device.fragmentation_bytes(), 0);
  CheckRaces(plan, buckets.t.program);
}

TEST(LivenessTest, AnUpdateThatOverlapsTheNextForwardWrapsAround) {
  TestProgram t;
  const VarId p = t.Add("p", 512, VarKind::kParam);
  const VarId q = t.Add("q", 512, VarKind::kParam);
  const VarId temp = t.Temp("temp", 256);
  t.Micro({p}, {});       // compute 0
  t.Micro({q}, {});       // compute 1, waits for the host
  t.Update({p}, {temp});  // compute 2
  t.Update({temp}, {q}, kHost);
  const Plan plan = t.Build();
  EXPECT_THAT(LiveOf(plan, "temp"), ElementsAre(Pair(0, 2), Pair(4, 6)));
  CheckRaces(plan, t.program);
}

TEST(LivenessTest, AMicroTempReleasedInTheNextRepetitionWrapsBothWays) {
  TestProgram t;
  t.program.accumulate_steps = 3;
  const VarId a = t.Temp("a", 256);
  const VarId s = t.State("s", 256);
  t.Micro({s}, {});  // compute 0: waits for the last write of s
  t.Micro({}, {a});  // compute 1
  t.Micro({a}, {s}, kComm);
  t.Update({s}, {});  // compute 2: waits as well
  t.Update({}, {});   // compute 3
  const Plan plan = t.Build();
  // Released at the start of compute 0 (next repetition) and of compute 2: the
  // boundary of the section in both cases.
  EXPECT_THAT(LiveOf(plan, "a"), ElementsAre(Pair(2, 4)));
  CheckRaces(plan, t.program);
}

TEST(LivenessTest, AMicroTempWithALateReleaseReachesIntoBothSections) {
  TestProgram t;
  t.program.accumulate_steps = 3;
  const VarId a = t.Temp("a", 256);
  const VarId s = t.State("s", 256);
  t.Micro({}, {});   // compute 0
  t.Micro({s}, {});  // compute 1: waits for the last write of s
  t.Micro({}, {a});  // compute 2
  t.Micro({a}, {s}, kComm);
  t.Update({}, {});   // compute 3
  t.Update({s}, {});  // compute 4: waits as well
  t.Update({}, {});   // compute 5
  const Plan plan = t.Build();
  EXPECT_THAT(LiveOf(plan, "a"), ElementsAre(Pair(0, 2), Pair(4, 8)));
  CheckRaces(plan, t.program);
}

TEST(LivenessTest, ATempReadByTheUpdateLivesAcross) {
  for (int steps : {1, 2, 5}) {
    TestProgram t;
    t.program.accumulate_steps = steps;
    const VarId a = t.Temp("a", 256);
    t.Micro({}, {});    // 0
    t.Micro({}, {a});   // 1
    t.Micro({}, {});    // 2
    t.Update({}, {});   // 3
    t.Update({a}, {});  // 4
    t.Update({}, {});   // 5
    const Plan plan = t.Build();
    EXPECT_THAT(LiveOf(plan, "a"), ElementsAre(Pair(steps == 1 ? 2 : 0, 9)))
        << steps;
    CheckRaces(plan, t.program);
  }
}

TEST(LivenessTest, WhatTheFirstMicroStepWritesLivesThroughTheOthers) {
  TestProgram t;
  t.program.accumulate_steps = 3;
  const VarId a = t.Temp("a", 256);
  const VarId b = t.Temp("b", 256);
  t.Micro({}, {});
  t.Op(Section::kMicro, StreamKind::kCompute, {}, {a}, "op", true);
  t.Op(Section::kMicro, StreamKind::kCompute, {}, {b}, "op", true);
  t.Op(Section::kMicro, StreamKind::kCompute, {b}, {}, "op", true);
  t.Micro({a}, {});
  t.Update({}, {});
  const Plan plan = t.Build();
  EXPECT_THAT(LiveOf(plan, "a"), ElementsAre(Pair(0, 10)));
  EXPECT_THAT(LiveOf(plan, "b"), ElementsAre(Pair(4, 7)));
  CheckRaces(plan, t.program);
}

TEST(LivenessTest, ATempReadBeforeItIsWrittenKeepsItsBytes) {
  TestProgram t;
  const VarId a = t.Temp("a", 256);
  t.Micro({a}, {});
  t.Micro({}, {a});
  t.Update({}, {});
  EXPECT_THAT(LiveOf(t.Build(), "a"), ElementsAre(Pair(0, 6)));
}

TEST(LivenessTest, AFeedLivesToItsLastReader) {
  for (int steps : {1, 4}) {
    TestProgram t;
    t.program.accumulate_steps = steps;
    const VarId x = t.Add("x", 64, VarKind::kFeed);
    const VarId a = t.Temp("a", 64);
    t.Micro({x}, {a});
    t.Micro({a}, {});
    t.Update({}, {});
    const Plan plan = t.Build();
    EXPECT_THAT(LiveOf(plan, "x"), ElementsAre(Pair(0, steps == 1 ? 3 : 6)));
    CheckRaces(plan, t.program);
  }
}

TEST(LivenessTest, AFetchedVarLivesToTheEndOfTheUpdate) {
  TestProgram t;
  const VarId a = t.Temp("a", 64);
  const VarId b = t.Temp("b", 64);
  t.Micro({}, {a});
  t.Micro({a}, {b});
  t.Update({}, {});
  PlanOptions options;
  options.fetches = {a};
  const Plan plan = t.Build(options);
  EXPECT_THAT(LiveOf(plan, "a"), ElementsAre(Pair(0, 7)));
  options.fetches = {b, VarId{77}};
  EXPECT_THROW(t.Build(options), Error);
}

TEST(LivenessTest, PaddingThatOnlyAClearingOpTouchesIsNoValue) {
  TestProgram t;
  const VarId bucket = t.Temp("bucket", 1024);
  const VarId w = t.View("w", bucket, 0, 600);
  const VarId v = t.View("v", bucket, 768, 256);
  t.Micro({}, {});
  t.Micro({}, {w});
  t.Micro({}, {v});
  t.Micro({bucket}, {bucket});  // clears 600..768
  t.Micro({bucket}, {});
  t.Micro({}, {});
  const Plan plan = t.Build();
  EXPECT_THAT(LiveOf(plan, "bucket"), ElementsAre(Pair(2, 9)));
  CheckRaces(plan, t.program);
}

TEST(LivenessTest, PinnedTempsArePackedToo) {
  TestProgram t;
  const VarId a = t.Pinned(t.Temp("a", 512));
  const VarId b = t.Pinned(t.Temp("b", 512));
  const VarId x = t.State("x", 512);
  t.Micro({x}, {a}, StreamKind::kCompute, "transfer");
  t.Micro({a}, {x}, StreamKind::kCompute, "transfer");
  t.Micro({x}, {b}, StreamKind::kCompute, "transfer");
  t.Micro({b}, {x}, StreamKind::kCompute, "transfer");
  const Plan plan = t.Build();
  EXPECT_EQ(plan.pinned.arena_bytes, 512);
  EXPECT_EQ(plan.pinned.live_peak_bytes, 512);
  EXPECT_EQ(plan.device.arena_bytes, 512);
  CheckRaces(plan, t.program);
}

// --- In place ---

TEST(InPlaceTest, AnOutputTakesOverADyingInput) {
  TestProgram t;
  const VarId a = t.Temp("a", 512);
  const VarId b = t.Temp("b", 512);
  const VarId c = t.Temp("c", 512);
  t.Micro({}, {a});
  t.Micro({a}, {b}, StreamKind::kCompute, "unary");
  t.Micro({b}, {c}, StreamKind::kCompute, "unary");
  t.Micro({c}, {});
  const Plan plan = t.Build();
  ASSERT_EQ(plan.storages.size(), 1u);
  EXPECT_EQ(plan.device.arena_bytes, 512);
  EXPECT_THAT(LiveOf(plan, "a"), ElementsAre(Pair(0, 7)));
  CheckRaces(plan, t.program);
}

TEST(InPlaceTest, NotWhenSomethingElseSeesTheInput) {
  const auto peak = [](auto&& change) {
    TestProgram t;
    const VarId a = t.Temp("a", 512);
    const VarId b = t.Temp("b", 512);
    const OpId write = t.Micro({}, {a});
    const OpId unary = t.Micro({a}, {b}, StreamKind::kCompute, "unary");
    const OpId read = t.Micro({b}, {});
    PlanOptions options;
    change(t, a, b, options);
    (void)write, (void)unary, (void)read;
    const Plan plan = t.Build(options);
    CheckRaces(plan, t.program);
    return plan.device.live_peak_bytes;
  };
  using T = TestProgram;
  using O = PlanOptions;
  EXPECT_EQ(peak([](T&, VarId, VarId, O&) {}), 512);
  EXPECT_EQ(peak([](T& t, VarId a, VarId, O&) { t.Micro({a}, {}); }), 1024);
  EXPECT_EQ(peak([](T& t, VarId a, VarId, O&) { t.Update({a}, {}); }), 1024);
  EXPECT_EQ(peak([](T&, VarId a, VarId, O& o) { o.fetches = {a}; }), 1024);
  EXPECT_EQ(peak([](T& t, VarId a, VarId, O&) {
              t.Micro({t.View("view", a, 0, 256)}, {});
            }),
            1024);
  EXPECT_EQ(peak([](T& t, VarId a, VarId, O&) {
              t.program.mutable_var(a).category = MemoryCategory::kGrads;
            }),
            1024);
  // Fetching the output is no obstacle... but it then lives into the update.
  EXPECT_EQ(peak([](T&, VarId, VarId b, O& o) { o.fetches = {b}; }), 1024);
}

TEST(InPlaceTest, OnlyOneOutputTakesOverAnInput) {
  TestProgram t;
  const VarId a = t.Temp("a", 512);
  const VarId b = t.Temp("b", 512);
  const VarId c = t.Temp("c", 512);
  t.Micro({}, {a});
  const OpId twins = t.Micro({a}, {}, StreamKind::kCompute, "twins");
  t.program.mutable_op(twins).outputs = {{"y", {b}}, {"z", {c}}};
  t.program.InvalidateIndex();
  t.Micro({b, c}, {});
  const Plan plan = t.Build();
  EXPECT_EQ(plan.storages.size(), 2u);
  EXPECT_EQ(plan.device.live_peak_bytes, 1024);
  CheckRaces(plan, t.program);
}

TEST(InPlaceTest, TwoOutputsTakeOverTwoInputs) {
  const auto peak = [](bool x_lives, bool w_lives) {
    TestProgram t;
    const VarId x = t.Temp("x", 512);
    const VarId w = t.Temp("w", 512);
    const VarId y = t.Temp("y", 512);
    const VarId z = t.Temp("z", 512);
    t.Micro({}, {x, w});
    const OpId both = t.Micro({}, {}, StreamKind::kCompute, "both");
    t.program.mutable_op(both).inputs = {{"x", {x}}, {"w", {w}}};
    t.program.mutable_op(both).outputs = {{"y", {y}}, {"z", {z}}};
    t.program.InvalidateIndex();
    t.Micro({y, z}, {});
    if (x_lives) t.Micro({x}, {});
    if (w_lives) t.Micro({w}, {});
    const Plan plan = t.Build();
    CheckRaces(plan, t.program);
    return plan.device.live_peak_bytes;
  };
  EXPECT_EQ(peak(false, false), 1024);
  // y goes where it can; z has no other place.
  EXPECT_EQ(peak(true, false), 1536);
  EXPECT_EQ(peak(false, true), 1536);
  EXPECT_EQ(peak(true, true), 2048);
}

TEST(InPlaceTest, NotWhenAnotherStreamReadsTheInput) {
  TestProgram t;
  const VarId a = t.Temp("a", 512);
  const VarId b = t.Temp("b", 512);
  const VarId s = t.Pinned(t.State("s", 512));
  t.Micro({}, {a});
  t.Micro({a}, {s}, StreamKind::kD2H);
  const OpId unary = t.Micro({a}, {b}, StreamKind::kCompute, "unary");
  const Plan plan = t.Build();
  EXPECT_EQ(plan.device.live_peak_bytes, 1024);
  EXPECT_THAT(WaitsOf(plan, unary), IsEmpty());  // sharing would add a wait
  CheckRaces(plan, t.program);
}

}  // namespace
}  // namespace plo
