// Steps that are replayed from recordings do what single launches do.
#include "framework/ir/error.h"
#include "framework/runtime/executor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/executor_harness.h"
#include "tests/framework/replaying_device.h"
#include "tests/framework/test_device.h"

namespace plo {
namespace {

using harness::Attrs;
using harness::Floats;
using harness::TestProgram;
using harness::Values;
using testing::ElementsAre;
using testing::ThrowsMessage;

// Three micro-steps with every stream, ops that differ by step among others:
//   feed x, slice, 4 ops, accumulate | twice later without the feed
//   update: 4 ops; through the host; 5 ops on what comes back
struct Accumulating {
  TestProgram test;
  VarId x, w, sum, seen;

  Accumulating() {
    test.program.accumulate_steps = 3;
    x = test.Feed("x", {3, 4});
    w = test.Param("w", {4});
    sum = test.State("sum", {4});
    seen = test.Temp("seen", {4});
    const VarId part = test.Temp("part", {4});
    test.Fill(w, 1);
    test.Do(Section::kMicro, "test_slice", {x}, part);
    test.Do(Section::kMicro, "test_accumulate",
            {Chain(Section::kMicro, part, 4, 0.5), sum}, sum);
    const VarId down = test.State("down", {4}, Place::kPinned);
    const VarId up = test.Temp("up", {4});
    const VarId scaled = Chain(Section::kUpdate, sum, 4, 0.75);
    test.Do(Section::kUpdate, "copy_d2h", {scaled}, down, StreamKind::kD2H);
    test.Do(Section::kUpdate, "test_scale", {down}, down, StreamKind::kHost,
            Attrs("factor", 2.0));
    test.Do(Section::kUpdate, "copy_h2d", {down}, up, StreamKind::kH2D);
    const VarId change = Chain(Section::kUpdate, up, 5, 0.5);
    test.Do(Section::kUpdate, "test_add", {w, change}, w);
    test.Do(Section::kUpdate, "test_step", {w}, seen);
  }

  // `count` ops, each the one before times `factor`, plus w.
  VarId Chain(Section section, VarId from, int count, double factor) {
    for (int i = 0; i < count; ++i) {
      const std::string name = "c" + std::to_string(next_++);
      const VarId to = test.Temp(name, {4});
      if (i % 2 == 0) {
        test.Do(section, "test_scale", {from}, to, StreamKind::kCompute,
                Attrs("factor", factor));
      } else {
        test.Do(section, "test_add", {from, w}, to);
      }
      from = to;
    }
    return from;
  }

  Feeds FeedsOf(int step) const {
    std::vector<float> values;
    for (int i = 0; i < 12; ++i) {
      values.push_back(static_cast<float>((step * 5 + i * 3) % 7 - 3));
    }
    return {{"x", Floats({3, 4}, values)}};
  }

  Plan MakePlan() const {
    PlanOptions options;
    options.fetches = {sum, seen};
    return BuildPlan(test.program, options);
  }

  // All that 20 steps compute.
  std::vector<double> Run(Device& device, const ExecutorOptions& options) {
    auto executor =
        Executor::Create(test.program, MakePlan(), device, nullptr, options);
    executor->RunStartup();
    std::vector<double> all;
    for (int step = 0; step < 20; ++step) {
      for (const HostTensor& value :
           executor->Fetch(executor->Run(FeedsOf(step)))) {
        for (const double each : value.ToDoubles()) all.push_back(each);
      }
    }
    for (const double each : Values(*executor, "w")) all.push_back(each);
    return all;
  }

 private:
  int next_ = 0;
};

TEST(ExecutorReplayTest, ReplaysComputeWhatSingleLaunchesDo) {
  ExecutorOptions single;
  single.replay = false;
  auto device = CreateTestDevice();
  const auto wanted = Accumulating().Run(*device, single);
  EXPECT_EQ(Accumulating().Run(*device, {}), wanted);

  ReplayingDevice replaying(CreateTestDevice());
  if (replaying.kind() != DeviceKind::kCpu) return;
  EXPECT_EQ(Accumulating().Run(replaying, {}), wanted);
  // The first micro-step's chain, that of the later ones, and the update's two:
  // not the slice or the step number, nor across the way through the host.
  EXPECT_THAT(replaying.recorded, ElementsAre(5, 5, 4, 6));
  // The later micro-steps replay what the second of the first step recorded.
  EXPECT_EQ(replaying.replays, 20 * (1 + 2 + 2) - 4);
}

TEST(ExecutorReplayTest, StepsInFlightStayInOrder) {
  Accumulating program;
  ReplayingDevice device(CreateCpuDevice());
  auto executor = Executor::Create(program.test.program, program.MakePlan(),
                                   device, nullptr);
  executor->RunStartup();
  for (int step = 0; step < 200; ++step) executor->Run(program.FeedsOf(step));
  const auto replayed = Values(*executor, "w");

  ExecutorOptions single;
  single.replay = false;
  Accumulating again;
  auto cpu = CreateCpuDevice();
  auto reference = Executor::Create(again.test.program, again.MakePlan(), *cpu,
                                    nullptr, single);
  reference->RunStartup();
  for (int step = 0; step < 200; ++step) reference->Run(again.FeedsOf(step));
  EXPECT_EQ(replayed, Values(*reference, "w"));
}

TEST(ExecutorReplayTest, ADeviceThatRefusesLaunchesOneByOne) {
  ReplayingDevice device(CreateCpuDevice());
  const auto wanted = Accumulating().Run(device, {});
  device.refuses = true;
  device.replays = 0;
  EXPECT_EQ(Accumulating().Run(device, {}), wanted);
  EXPECT_EQ(device.replays, 0);
}

TEST(ExecutorReplayTest, OptionsThatLookAtSingleOpsRecordNothing) {
  std::vector<ExecutorOptions> all(4);
  all[0].trace = true;
  all[1].verify_writes = true;
  all[2].poison_freed = true;
  all[3].delay_us = [](StreamKind, OpId) { return 0; };
  for (const ExecutorOptions& options : all) {
    ReplayingDevice device(CreateCpuDevice());
    Accumulating().Run(device, options);
    EXPECT_EQ(device.recorded.size(), 0u);
  }
}

// test_fail on the host stream fails while recordings replay around it. What
// was enqueued before it is known runs on a GPU, replayed or not.
TEST(ExecutorReplayTest, ReplaysGoOnAfterAFailure) {
  TestProgram test;
  const VarId x = test.Feed("x", {1});
  const VarId w = test.Param("w", {1});
  const VarId down = test.State("down", {1}, Place::kPinned);
  const VarId up = test.Temp("up", {1});
  VarId last = x;
  const auto chain = [&](Section section) {
    for (int i = 0; i < 4; ++i) {
      const VarId next = test.Temp("t" + std::to_string(last), {1});
      test.Do(section, "test_scale", {last}, next, StreamKind::kCompute,
              Attrs("factor", 1.0));
      last = next;
    }
  };
  test.Fill(w, 1);
  chain(Section::kMicro);
  test.Do(Section::kUpdate, "copy_d2h", {last}, down, StreamKind::kD2H);
  test.Do(Section::kUpdate, "test_fail", {down}, down, StreamKind::kHost);
  test.Do(Section::kUpdate, "copy_h2d", {down}, up, StreamKind::kH2D);
  last = up;
  chain(Section::kUpdate);
  test.Do(Section::kUpdate, "test_add", {w, last}, w);

  ReplayingDevice device(CreateCpuDevice());
  auto executor =
      Executor::Create(test.program, BuildPlan(test.program), device, nullptr);
  executor->RunStartup();
  const auto feed = [](float value) {
    return Feeds{{"x", Floats({1}, {value})}};
  };
  for (int step = 0; step < 5; ++step) executor->Run(feed(1));
  executor->Drain();
  ASSERT_EQ(device.recorded.size(), 2u);
  ASSERT_THAT(Values(*executor, "w"), ElementsAre(6));
  executor->Run(feed(13));
  EXPECT_THAT([&] { executor->Drain(); },
              ThrowsMessage<Error>(testing::HasSubstr("test_fail")));
  executor->WriteVar("w", Floats({1}, {6}));
  const int replays = device.replays;
  executor->Run(feed(2));
  EXPECT_THAT(Values(*executor, "w"), ElementsAre(8));
  EXPECT_EQ(device.replays, replays + 2);
}

}  // namespace
}  // namespace plo
