// Steps, feeds, fetches, micro-steps, eval, params: what the executor computes.
#include "framework/runtime/executor.h"

#include <chrono>
#include <thread>

#include "framework/ir/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/executor_harness.h"
#include "tests/framework/test_device.h"

namespace plo {
namespace {

using harness::Attrs;
using harness::FindLaunch;
using harness::Floats;
using harness::NaivePlan;
using harness::TestProgram;
using harness::Values;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

// A step with every stream in it: w += 2 * (x + w), the doubling on the host,
// and y = x + w (of before) to fetch.
struct Offloaded {
  TestProgram test;
  VarId x, w, y;
  OpId host_op, update_op;
  Offloaded() {
    x = test.Feed("x", {2});
    w = test.Param("w", {2});
    y = test.Temp("y", {2});
    const VarId down = test.State("down", {2}, Place::kPinned);
    const VarId up = test.Temp("up", {2});
    test.Fill(w, 1);
    test.Do(Section::kMicro, "test_add", {x, w}, y);
    test.Do(Section::kUpdate, "copy_d2h", {y}, down, StreamKind::kD2H);
    host_op = test.Do(Section::kUpdate, "test_scale", {down}, down,
                      StreamKind::kHost, Attrs("factor", 2.0))
                  .id;
    test.Do(Section::kUpdate, "copy_h2d", {down}, up, StreamKind::kH2D);
    update_op = test.Do(Section::kUpdate, "test_add", {w, up}, w).id;
  }
};

TEST(ExecutorTest, RunsStepsAndFetchesTheirValues) {
  Offloaded program;
  auto device = CreateTestDevice();
  auto executor = Executor::Create(program.test.program,
                                   NaivePlan(program.test.program, {program.y}),
                                   *device, nullptr);
  executor->RunStartup();
  float w = 1;
  for (int step = 0; step < 30; ++step) {
    const auto x = static_cast<float>(step % 5 - 2);
    EXPECT_EQ(executor->Run({{"x", Floats({2}, {x, -x})}}), step);
    if (step % 3 == 0) {
      const auto values = executor->Fetch(step);
      ASSERT_EQ(values.size(), 1u);
      EXPECT_EQ(values[0].ToDoubles()[0], x + w);
    }
    w += 2 * (x + w);
  }
  EXPECT_EQ(Values(*executor, "w")[0], w);
  EXPECT_EQ(executor->data_step(), 30);
}

TEST(ExecutorTest, KeepsTheValuesOfTheLastStepsOnly) {
  Offloaded program;
  auto device = CreateTestDevice();
  auto executor = Executor::Create(program.test.program,
                                   NaivePlan(program.test.program, {program.y}),
                                   *device, nullptr);
  executor->RunStartup();
  const Feeds feeds = {{"x", Floats({2}, {0, 1})}};
  EXPECT_THAT([&] { executor->Fetch(0); },
              ThrowsMessage<Error>(HasSubstr("step 0 has not been run")));
  for (int step = 0; step < 4; ++step) executor->Run(feeds);
  EXPECT_THAT([&] { executor->Fetch(0); },
              ThrowsMessage<Error>(HasSubstr("the values of step 0 are gone")));
  EXPECT_THAT(executor->Fetch(1)[0].ToDoubles(), ElementsAre(3, 6));
  EXPECT_THAT(executor->Fetch(3)[0].ToDoubles(), ElementsAre(27, 54));
  EXPECT_THAT(executor->Fetch(2)[0].ToDoubles(), ElementsAre(9, 18));
  EXPECT_THROW(executor->Fetch(4), Error);
}

TEST(ExecutorTest, RefusesWrongFeedsByName) {
  Offloaded program;
  auto device = CreateTestDevice();
  auto executor = Executor::Create(
      program.test.program, NaivePlan(program.test.program), *device, nullptr);
  executor->RunStartup();
  EXPECT_THAT([&] { executor->Run({}); },
              ThrowsMessage<Error>(HasSubstr("feed fp32 [2] 'x' of program "
                                             "'main' is missing")));
  EXPECT_THAT(
      [&] {
        executor->Run({{"x", Floats({3}, {1, 2, 3})}});
      },
      ThrowsMessage<Error>(HasSubstr("feed fp32 [2] 'x' is given fp32 [3]")));
  const HostTensor ints =
      HostTensor::Of(DType::kInt32, Shape{2}, std::vector<int32_t>{1, 2});
  EXPECT_THAT(
      [&] {
        executor->Run({{"x", ints}});
      },
      ThrowsMessage<Error>(HasSubstr("is given int32 [2]")));
  const HostTensor good = Floats({2}, {1, 2});
  EXPECT_THAT(
      [&] {
        executor->Run({{"x", good}, {"z", good}});
      },
      ThrowsMessage<Error>(HasSubstr("has no feed 'z'")));
  // Nothing was enqueued by the refused calls.
  EXPECT_EQ(executor->Run({{"x", good}}), 0);
  EXPECT_THAT(Values(*executor, "w"), ElementsAre(5, 7));
}

TEST(ExecutorTest, RepeatsMicroAndRunsSomeOpsOnce) {
  TestProgram test;
  test.program.accumulate_steps = 3;
  const VarId x = test.Feed("x", {3, 2});
  const VarId part = test.Temp("part", {2});
  const VarId sum = test.State("sum", {2});
  const VarId total = test.State("total", {2});
  const VarId once = test.State("once", {2});
  const VarId info = test.State("info", {2});
  test.Fill(total, 0);
  test.Fill(once, 0);
  test.Fill(sum, 0);
  test.Do(Section::kMicro, "test_slice", {x}, part);
  test.Do(Section::kMicro, "test_accumulate", {part, sum}, sum);
  test.Do(Section::kMicro, "test_add", {once, part}, once).first_micro_only =
      true;
  test.Do(Section::kMicro, "test_step", {part}, info);
  test.Do(Section::kUpdate, "test_add", {total, sum}, total);
  auto device = CreateTestDevice();
  ExecutorOptions options;
  options.initial_data_step = 5;
  auto executor = Executor::Create(test.program, NaivePlan(test.program),
                                   *device, nullptr, options);
  executor->RunStartup();
  executor->Run({{"x", Floats({3, 2}, {1, 2, 3, 4, 5, 6})}});
  executor->Run({{"x", Floats({3, 2}, {10, 20, 30, 40, 50, 60})}});
  EXPECT_THAT(Values(*executor, "sum"), ElementsAre(90, 120));
  EXPECT_THAT(Values(*executor, "total"), ElementsAre(99, 132));
  EXPECT_THAT(Values(*executor, "once"), ElementsAre(11, 22));
  EXPECT_THAT(Values(*executor, "info"), ElementsAre(6, 2));
  executor->set_data_step(100);
  executor->Run({{"x", Floats({3, 2}, {0, 0, 0, 0, 0, 0})}});
  EXPECT_THAT(Values(*executor, "info"), ElementsAre(100, 2));
}

TEST(ExecutorTest, RunBlocksOnlyWithTwoStepsPending) {
  Offloaded program;
  auto device = CreateTestDevice();
  ExecutorOptions options;
  options.delay_us = [&](StreamKind, OpId op) {
    return op == program.host_op ? 1000000 : 0;
  };
  auto executor =
      Executor::Create(program.test.program, NaivePlan(program.test.program),
                       *device, nullptr, options);
  executor->RunStartup();
  const Feeds feeds = {{"x", Floats({2}, {0, 0})}};
  const auto begin = steady_clock::now();
  executor->Run(feeds);
  executor->Run(feeds);
  EXPECT_LT(steady_clock::now() - begin, milliseconds(900));
  executor->Run(feeds);
  EXPECT_GE(steady_clock::now() - begin, milliseconds(1000));
  EXPECT_THAT(Values(*executor, "w"), ElementsAre(27, 27));
}

TEST(ExecutorTest, DelaysOnAnyStreamChangeNothing) {
  const auto run = [](StreamKind slow, int us) {
    Offloaded program;
    auto device = CreateTestDevice();
    ExecutorOptions options;
    options.delay_us = [=](StreamKind stream, OpId) {
      return stream == slow ? us : 0;
    };
    auto executor =
        Executor::Create(program.test.program, NaivePlan(program.test.program),
                         *device, nullptr, options);
    executor->RunStartup();
    for (int step = 0; step < 8; ++step) {
      executor->Run({{"x", Floats({2}, {0.25f, 0.5f})}});
    }
    return Values(*executor, "w");
  };
  const auto expected = run(StreamKind::kCompute, 0);
  for (int stream = 0; stream < kStreamCount; ++stream) {
    EXPECT_EQ(run(static_cast<StreamKind>(stream), 2000), expected);
  }
}

TEST(ExecutorTest, ReadsAndWritesPersistentVarsAndViews) {
  TestProgram test;
  const VarId w = test.Param("w", {4});
  Var view;
  view.name = "w_tail";
  view.kind = VarKind::kParam;
  view.shape = Shape{2};
  view.view_of = w;
  view.byte_offset = 8;
  test.program.AddVar(view);
  const VarId y = test.Temp("y", {4});
  test.Fill(w, 3);
  test.Do(Section::kMicro, "test_add", {w, w}, y);
  auto device = CreateTestDevice();
  auto executor =
      Executor::Create(test.program, NaivePlan(test.program), *device, nullptr);
  executor->RunStartup();
  executor->WriteVar("w_tail", Floats({2}, {7, 8}));
  EXPECT_THAT(Values(*executor, "w"), ElementsAre(3, 3, 7, 8));
  executor->WriteVar("w", Floats({4}, {1, 2, 3, 4}));
  EXPECT_THAT(Values(*executor, "w_tail"), ElementsAre(3, 4));
  EXPECT_THAT([&] { executor->ReadVar("nope"); },
              ThrowsMessage<Error>(HasSubstr("NotFound")));
  EXPECT_THAT([&] { executor->ReadVar("y"); },
              ThrowsMessage<Error>(HasSubstr("does not outlive a step")));
  EXPECT_THAT(
      [&] {
        executor->WriteVar("w", Floats({2}, {1, 2}));
      },
      ThrowsMessage<Error>(HasSubstr("fp32 [4] 'w' is given fp32 [2]")));
}

TEST(ExecutorTest, EvalProgramsRunOnTheCurrentParams) {
  Offloaded program;
  TestProgram eval("eval");
  const VarId x = eval.Feed("x", {2});
  const VarId w = eval.Param("w", {2});
  const VarId result = eval.Temp("result", {2});
  eval.Do(Section::kMicro, "test_add", {x, w}, result);
  auto device = CreateTestDevice();
  auto executor =
      Executor::Create(program.test.program,
                       NaivePlan(program.test.program, {}, {&eval.program}),
                       *device, nullptr, {}, {&eval.program});
  executor->RunStartup();
  const Feeds feeds = {{"x", Floats({2}, {10, 20})}};
  EXPECT_THAT(executor->RunEval(0, feeds)[0].ToDoubles(), ElementsAre(11, 21));
  executor->Run({{"x", Floats({2}, {0, 0})}});
  // The update of the step just enqueued is in.
  EXPECT_THAT(executor->RunEval(0, feeds)[0].ToDoubles(), ElementsAre(13, 23));
  executor->Run({{"x", Floats({2}, {0, 0})}});
  EXPECT_THAT(executor->RunEval(0, feeds)[0].ToDoubles(), ElementsAre(19, 29));
  EXPECT_THROW(executor->RunEval(1, feeds), Error);
  EXPECT_THROW(executor->RunEval(0, {}), Error);
}

TEST(ExecutorTest, CreateRefusesWhatItCannotRun) {
  auto device = CreateTestDevice();
  {
    TestProgram test;
    const VarId w = test.Param("w", {2});
    test.Do(Section::kMicro, "test_unheard_of", {w}, w);
    EXPECT_THAT(
        [&] {
          Executor::Create(test.program, NaivePlan(test.program), *device,
                           nullptr);
        },
        ThrowsMessage<Error>(HasSubstr("Unimplemented: op 'test_unheard_of' "
                                       "has no kernel for device ")));
  }
  Offloaded program;
  Plan plan = NaivePlan(program.test.program);
  harness::FindStorage(plan, "w").offset += 1 << 20;
  EXPECT_THAT(
      [&] { Executor::Create(program.test.program, plan, *device, nullptr); },
      ThrowsMessage<Error>(HasSubstr("storage 'w' of 8 bytes at offset")));
  program.test.program.world_size = 2;
  EXPECT_THAT(
      [&] {
        Executor::Create(program.test.program, NaivePlan(program.test.program),
                         *device, nullptr);
      },
      ThrowsMessage<Error>(HasSubstr("is made for 2 ranks, this run has 1")));
  EXPECT_EQ(device->stats().device_bytes, 0);
  EXPECT_EQ(device->stats().pinned_bytes, 0);
}

TEST(ExecutorTest, GivesItsMemoryBack) {
  Offloaded program;
  auto device = CreateTestDevice();
  Plan plan = NaivePlan(program.test.program, {program.y});
  auto executor =
      Executor::Create(program.test.program, plan, *device, nullptr);
  EXPECT_EQ(device->stats().pinned_bytes, plan.pinned.arena_bytes);
  executor->RunStartup();
  executor->Run({{"x", Floats({2}, {0, 0})}});
  executor.reset();
  EXPECT_EQ(device->stats().device_bytes, 0);
  EXPECT_EQ(device->stats().pinned_bytes, 0);
}

}  // namespace
}  // namespace plo
