// Limits, transfers, eval programs, startup and the text form of plans.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/framework/plan_test_util.h"

namespace plo {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

template <typename F>
std::string MessageOf(ErrorCode code, F&& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.message();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TestProgram Chain() {
  TestProgram t;
  const VarId p = t.Add("p", 1024, VarKind::kParam);
  const VarId a = t.Temp("a", 4096);
  const VarId b = t.Temp("b", 2048);
  t.Micro({p}, {a});
  t.Micro({a}, {b});
  t.Micro({b}, {});
  return t;
}

TEST(LimitTest, ALimitThatHoldsChangesNothing) {
  const TestProgram t = Chain();
  PlanOptions options;
  options.device_memory_limit = 1024 + 4096 + 2048;
  EXPECT_EQ(t.Build(options).ToString(t.program),
            t.Build().ToString(t.program));
}

TEST(LimitTest, TheErrorNamesOpTensorsAndTheSmallestLimit) {
  const TestProgram t = Chain();
  PlanOptions options;
  options.device_memory_limit = 7167;
  EXPECT_THAT(
      MessageOf(ErrorCode::kOutOfMemory, [&] { t.Build(options); }),
      AllOf(HasSubstr("7168 bytes"), HasSubstr("of device memory"),
            HasSubstr("1 bytes (0.0 MiB) more than the limit of 7167 bytes"),
            HasSubstr("the peak is at op 'op' #1"),
            HasSubstr("'a' (activations) 4096 bytes"),
            HasSubstr("'p' (params) 1024 bytes"),
            HasSubstr("the smallest device_memory_limit that would do is "
                      "7168")));
}

// --- Sizes that 64 bits do not hold ---

constexpr int64_t kExabyte = int64_t{1} << 60;

TEST(OverflowTest, TensorsBeyondAnyMachineAreRefused) {
  TestProgram t;
  t.Micro({t.State("a", kExabyte / 2)}, {t.Temp("b", kExabyte / 4)});
  EXPECT_GT(t.Build().device.arena_bytes, kExabyte / 2);
  t.Micro({}, {t.Temp("c", kExabyte / 2)});
  EXPECT_THAT(MessageOf(ErrorCode::kInvalidArgument, [&] { t.Build(); }),
              AllOf(HasSubstr("the tensors of program 'main' take more than"),
                    HasSubstr("'c'")));
}

TEST(OverflowTest, PinnedRingsCount) {
  TestProgram t;
  t.Add("x", int64_t{1} << 62, VarKind::kFeed);
  EXPECT_THAT(MessageOf(ErrorCode::kInvalidArgument, [&] { t.Build(); }),
              HasSubstr("the bytes of x@feed_ring overflow 64 bits"));
}

TEST(OverflowTest, MicroStepsMultiplyTransfers) {
  for (const char* type : {"all_reduce", "transfer"}) {
    TestProgram t;
    t.program.world_size = 2;
    t.program.accumulate_steps = 1 << 20;
    const VarId x = t.State("x", int64_t{1} << 44);
    const bool copy = std::string(type) == "transfer";
    const VarId y = copy ? t.Pinned(t.State("y", int64_t{1} << 44)) : x;
    t.Micro({x}, {y}, copy ? StreamKind::kD2H : StreamKind::kComm, type);
    EXPECT_THAT(MessageOf(ErrorCode::kInvalidArgument, [&] { t.Build(); }),
                HasSubstr("per step overflow 64 bits: 1048576 * "))
        << type;
    t.program.accumulate_steps = 1 << 16;
    const Plan plan = t.Build();
    EXPECT_EQ(copy ? plan.d2h_bytes_per_step : plan.collective_bytes_per_step,
              int64_t{1} << 60)
        << type;
  }
}

TEST(LimitTest, OnlyTheTenLargestAreListed) {
  TestProgram t;
  for (int i = 1; i <= 12; ++i) {
    t.State(StrCat("s", i), 256 * i);
  }
  PlanOptions options;
  options.device_memory_limit = 1;
  const std::string message =
      MessageOf(ErrorCode::kOutOfMemory, [&] { t.Build(options); });
  EXPECT_THAT(message, AllOf(HasSubstr("'s12'"), HasSubstr("'s3'")));
  EXPECT_EQ(message.find("'s2'"), std::string::npos);
}

TEST(LimitTest, HostMemoryHasItsOwnLimit) {
  TestProgram t;
  t.Pinned(t.State("master", 4096));
  PlanOptions options;
  options.device_memory_limit = 1;  // no device bytes at all
  options.host_memory_limit = 4000;
  EXPECT_THAT(MessageOf(ErrorCode::kOutOfMemory, [&] { t.Build(options); }),
              HasSubstr("the smallest host_memory_limit that would do is "
                        "4096"));
  options.host_memory_limit = 4096;
  t.Build(options);
}

TEST(ReportTest, CountsTransfersAndCollectivesPerStep) {
  TestProgram t;
  t.program.world_size = 4;
  t.program.accumulate_steps = 3;
  const VarId grad = t.Temp("grad", 4096);
  const VarId shard = t.Temp("shard", 1024);
  const VarId param = t.Add("param", 4096, VarKind::kParam);
  const VarId slice = t.View("slice", param, 0, 1024, 1024);
  const VarId master = t.Pinned(t.State("master", 2048));
  t.program.mutable_var(master).category = MemoryCategory::kOptimizerState;
  const VarId staging = t.Pinned(t.State("staging", 1024));
  t.program.mutable_var(staging).category = MemoryCategory::kGrads;
  t.Micro({}, {grad});
  t.Micro({grad}, {shard}, StreamKind::kComm, "reduce_scatter");
  t.Op(Section::kMicro, StreamKind::kComm, {grad}, {grad}, "all_reduce", true);
  t.Update({shard}, {staging}, StreamKind::kD2H, "transfer");
  t.Update({staging, master}, {master}, StreamKind::kHost);
  t.Update({staging}, {slice}, StreamKind::kH2D, "transfer");
  t.Update({slice}, {param}, StreamKind::kComm, "all_gather");
  const Plan plan = t.Build();
  EXPECT_EQ(plan.d2h_bytes_per_step, 1024);
  EXPECT_EQ(plan.h2d_bytes_per_step, 1024);
  EXPECT_EQ(plan.collective_bytes_per_step,
            3 * 3072 + 2 * 3072 /* all_reduce */ + 3072);
  EXPECT_EQ(plan.host_state_bytes, 2048 + 1024);
  EXPECT_EQ(plan.pinned.arena_bytes, 2048 + 1024);
  for (int rank = 0; rank < 4; ++rank) CheckRaces(plan, t.program, rank);
}

TEST(ReportTest, OneRankSendsNothing) {
  TestProgram t;
  const VarId grad = t.State("grad", 4096);
  t.Micro({grad}, {grad}, StreamKind::kComm, "all_reduce");
  EXPECT_EQ(t.Build().collective_bytes_per_step, 0);
}

TEST(StartupTest, RunsSeriallyInTheSharedTempArea) {
  TestProgram t;
  const VarId p = t.Add("p", 256, VarKind::kParam);
  const VarId wide = t.Temp("wide", 2048);
  const VarId more = t.Temp("more", 1024);
  t.Op(Section::kStartup, StreamKind::kCompute, {}, {wide});
  t.Op(Section::kStartup, StreamKind::kCompute, {wide}, {more});
  t.Op(Section::kStartup, StreamKind::kD2H, {more}, {p});
  const VarId a = t.Temp("a", 512);
  t.Micro({p}, {a});
  t.Micro({a}, {});
  const Plan plan = t.Build();
  EXPECT_EQ(StorageOf(plan, "wide").graph, kStartupGraph);
  EXPECT_THAT(LiveOf(plan, "wide"), ElementsAre(Pair(0, 3)));
  EXPECT_THAT(LiveOf(plan, "more"), ElementsAre(Pair(2, 5)));
  EXPECT_EQ(plan.graphs[0].startup.size(), 3u);
  EXPECT_EQ(plan.device.arena_bytes, 256 + 2048 + 1024);
  EXPECT_EQ(plan.device.live_peak_bytes, 256 + 2048 + 1024);
  EXPECT_EQ(plan.device.peak_op, "op 'op' #1");
  CheckRaces(plan, t.program);
}

struct EvalCase {
  TestProgram train, eval;
  VarId logits = kNoId;
  EvalCase() {
    const VarId bucket = train.State("bucket", 1024);
    const VarId w = train.View("w", bucket, 512, 256);
    train.program.mutable_var(w).kind = VarKind::kParam;
    const VarId a = train.Temp("a", 512);
    train.Micro({w}, {a});
    train.Micro({a}, {});
    eval.program.name = "eval";
    const VarId shared = eval.Add("w", 256, VarKind::kParam);
    const VarId x = eval.Add("x", 64, VarKind::kFeed);
    const VarId count = eval.State("count", 4);
    logits = eval.Temp("logits", 4096);
    eval.Micro({x}, {count});
    eval.Micro({x, shared, count}, {logits});
  }
  Plan Build() {
    PlanOptions options;
    options.eval_programs = {&eval.program};
    options.eval_fetches = {{logits}};
    return train.Build(options);
  }
};

TEST(EvalTest, SharesParamsByNameAndTheTempArea) {
  EvalCase c;
  const Plan plan = c.Build();
  ASSERT_EQ(plan.graphs.size(), 2u);
  const GraphPlan& graph = plan.graphs[1];
  EXPECT_EQ(graph.name, "eval");
  EXPECT_EQ(graph.launches.size(), 4u);
  EXPECT_EQ(graph.micro_count, 3);
  const Operand& w = graph.launches[2].operands[1];
  EXPECT_EQ(plan.storages[w.storage].name, "bucket");
  EXPECT_EQ(w.offset, 512);
  EXPECT_EQ(StorageOf(plan, "logits").graph, 1);
  EXPECT_FALSE(StorageOf(plan, "count").persistent);
  EXPECT_EQ(StorageOf(plan, "logits").offset, 1024);
  EXPECT_EQ(StorageOf(plan, "a").offset, 1024);
  EXPECT_EQ(plan.device.live_peak_bytes, 1024 + 4096 + 64 + 4);
  EXPECT_THAT(plan.device.peak_op, HasSubstr("op 'op' #1"));
  CheckRaces(plan, c.train.program);
}

TEST(EvalTest, AParamThatTrainingDoesNotHaveIsNotFound) {
  EvalCase c;
  c.eval.program.RenameVar(c.eval.program.GetVar("w"), "other");
  EXPECT_THAT(MessageOf(ErrorCode::kNotFound, [&] { c.Build(); }),
              AllOf(HasSubstr("'other'"), HasSubstr("'eval'")));
}

TEST(EvalTest, AParamOfAnotherShapeIsRefused) {
  EvalCase c;
  c.eval.program.mutable_var(c.eval.program.GetVar("w")).shape = Shape{32};
  EXPECT_THAT(MessageOf(ErrorCode::kInvalidArgument, [&] { c.Build(); }),
              AllOf(HasSubstr("fp32 [32] 'w'"), HasSubstr("fp32 [64] 'w'")));
}

TEST(PlanTextTest, ListsStoragesAndLaunches) {
  TestProgram t;
  t.program.accumulate_steps = 2;
  t.program.world_size = 2;
  const VarId p = t.Add("p", 512, VarKind::kParam);
  const VarId half = t.View("half", p, 0, 256, 256);
  const VarId a = t.Temp("a", 128);
  t.Micro({p}, {a});
  t.Micro({a}, {half}, StreamKind::kComm);
  PlanOptions options;
  options.fetches = {a};
  EXPECT_EQ(
      t.Build(options).ToString(t.program),
      R"(device: arena 640, live peak 640, fragmentation 0, params 512, activations 128, at op 'op' #0
pinned: arena 384, live peak 384, fragmentation 0, communication 384
per step: d2h 0, h2d 0, collective 0
host state: 0
storages:
  %0 'p' device params [0, 512) persistent
  %1 'a' device activations [512, 640) live [0, 4)
  %2 'a@fetch_ring' pinned communication [0, 384) persistent
graph 0 'main':
  micro, 2 per step:
    0: compute op#0 %0 -> %1 after 1
    1: comm op#1 %1 -> %0+0+rank*256 after 0
  update:
    2: compute fetch %1 -> %2
)");
}

}  // namespace
}  // namespace plo
