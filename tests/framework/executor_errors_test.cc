// Errors in kernels: carried, rethrown with context, and survived.
#include <chrono>
#include <mutex>
#include <thread>

#include "framework/ir/error.h"
#include "framework/runtime/executor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/executor_harness.h"

namespace plo {
namespace {

using harness::Attrs;
using harness::Floats;
using harness::NaivePlan;
using harness::TestProgram;
using harness::Values;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

// w += checked(x): the check throws where x[0] is 13.
struct Checked {
  TestProgram test;
  VarId x, w, y;
  OpId update_op;
  Checked() {
    x = test.Feed("x", {2});
    w = test.Param("w", {2});
    y = test.Temp("y", {2});
    const VarId pinned = test.State("pinned", {2}, Place::kPinned);
    test.Fill(w, 1);
    test.Do(Section::kMicro, "test_fail", {x}, y).region = "layer0/check";
    test.Do(Section::kUpdate, "copy_d2h", {y}, pinned, StreamKind::kD2H);
    update_op =
        test.Do(Section::kUpdate, "test_add", {w, pinned}, w, StreamKind::kHost)
            .id;
  }
  static Feeds Of(float value) { return {{"x", Floats({2}, {value, value})}}; }
};

// Says that it moves GPU memory, and does nothing.
class GpuMemoryComm : public Comm {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  DeviceKind device() const override { return DeviceKind::kCuda; }
  void AllReduce(void*, int64_t, DType, Reduction, void*) override {}
  void ReduceScatter(const void*, void*, int64_t, DType, Reduction,
                     void*) override {}
  void AllGather(const void*, void*, int64_t, DType, void*) override {}
  void Broadcast(void*, int64_t, int, void*) override {}
  void Barrier() override {}
  void ThrowIfFailed() override {}
  void Abort(const std::string&) override {}
  int64_t staging_bytes() const override { return 0; }
};

TEST(ExecutorErrorsTest, RefusesACommForOtherMemory) {
  Checked program;
  program.test.program.world_size = 2;
  auto device = CreateCpuDevice();
  GpuMemoryComm comm;
  EXPECT_THAT(
      [&] {
        Executor::Create(program.test.program,
                         NaivePlan(program.test.program, {program.w}), *device,
                         &comm);
      },
      ThrowsMessage<Error>(AllOf(HasSubstr("FailedPrecondition"),
                                 HasSubstr("takes GPU memory"),
                                 HasSubstr(device->name()))));
}

TEST(ExecutorErrorsTest, NamesTheOpAndItsOperandsAndStaysUsable) {
  Checked program;
  auto device = CreateCpuDevice();
  auto executor = Executor::Create(program.test.program,
                                   NaivePlan(program.test.program, {program.w}),
                                   *device, nullptr);
  executor->RunStartup();
  executor->Run(Checked::Of(1));
  executor->Run(Checked::Of(13));
  EXPECT_THAT([&] { executor->Drain(); },
              ThrowsMessage<Error>(AllOf(
                  HasSubstr("InvalidArgument: op 'test_fail'"),
                  HasSubstr("layer0/check"), HasSubstr("x=fp32 [2] 'x'"),
                  HasSubstr("out=fp32 [2] 'y'"), HasSubstr("x[0] is 13"))));
  executor->Drain();  // told once
  EXPECT_THAT(Values(*executor, "w"), ElementsAre(2, 2));
  EXPECT_THAT(executor->Fetch(0)[0].ToDoubles(), ElementsAre(2, 2));
  EXPECT_THAT([&] { executor->Fetch(1); },
              ThrowsMessage<Error>(HasSubstr("step 1 failed")));
  const StepId next = executor->Run(Checked::Of(5));
  EXPECT_EQ(next, 2);
  EXPECT_THAT(executor->Fetch(next)[0].ToDoubles(), ElementsAre(7, 7));
}

TEST(ExecutorErrorsTest, RunAndFetchRethrow) {
  Checked program;
  auto device = CreateCpuDevice();
  auto executor = Executor::Create(program.test.program,
                                   NaivePlan(program.test.program, {program.w}),
                                   *device, nullptr);
  executor->RunStartup();
  const StepId bad = executor->Run(Checked::Of(13));
  EXPECT_THAT([&] { executor->Fetch(bad); },
              ThrowsMessage<Error>(HasSubstr("x[0] is 13")));
  executor->Run(Checked::Of(13));
  EXPECT_THAT(
      [&] {
        // At the latest when the step's place is needed.
        for (int i = 0; i < 3; ++i) executor->Run(Checked::Of(1));
      },
      ThrowsMessage<Error>(HasSubstr("x[0] is 13")));
  executor->Run(Checked::Of(1));
  executor->Drain();
}

// The update of a step runs beside the micro-steps of the next: an error there
// must not cut it short.
TEST(ExecutorErrorsTest, AnErrorLeavesTheUpdateBeforeItWhole) {
  Checked program;
  // With its minimal waits the slow update does not hold up the next
  // micro-step.
  PlanOptions plan_options;
  plan_options.fetches = {program.w};
  Plan plan = BuildPlan(program.test.program, plan_options);
  auto device = CreateCpuDevice();
  ExecutorOptions options;
  options.delay_us = [&](StreamKind, OpId op) {
    return op == program.update_op ? 50000 : 0;
  };
  auto executor = Executor::Create(program.test.program, std::move(plan),
                                   *device, nullptr, options);
  executor->RunStartup();
  executor->Run(Checked::Of(4));
  executor->Run(Checked::Of(13));
  EXPECT_THROW(executor->Drain(), Error);
  EXPECT_THAT(Values(*executor, "w"), ElementsAre(5, 5));
  EXPECT_THAT(executor->Fetch(0)[0].ToDoubles(), ElementsAre(5, 5));
}

TEST(ExecutorErrorsTest, StartupAndEvalErrorsAreThrownAtOnce) {
  TestProgram test;
  const VarId w = test.Param("w", {2});
  const VarId v = test.State("v", {2});
  test.Fill(w, 13);
  test.Do(Section::kStartup, "test_fail", {w}, v);
  TestProgram eval("eval");
  const VarId x = eval.Feed("x", {2});
  const VarId result = eval.Temp("result", {2});
  eval.Do(Section::kMicro, "test_fail", {x}, result);
  auto device = CreateCpuDevice();
  auto executor = Executor::Create(test.program,
                                   NaivePlan(test.program, {}, {&eval.program}),
                                   *device, nullptr, {}, {&eval.program});
  EXPECT_THAT([&] { executor->RunStartup(); },
              ThrowsMessage<Error>(HasSubstr("x[0] is 13")));
  EXPECT_THAT([&] { executor->RunEval(0, Checked::Of(13)); },
              ThrowsMessage<Error>(HasSubstr("x[0] is 13")));
  EXPECT_THAT(executor->RunEval(0, Checked::Of(2))[0].ToDoubles(),
              ElementsAre(2, 2));
}

TEST(ExecutorErrorsTest, ErrorsOfTheDeviceItselfAreCarriedToo) {
  Checked program;
  auto device = CreateCpuDevice();
  auto executor = Executor::Create(
      program.test.program, NaivePlan(program.test.program), *device, nullptr);
  executor->RunStartup();
  Task task;
  task.run = [](void*, const StepInfo&, void*) {
    PLO_THROW(kInternal, "device lost");
  };
  const StreamId stream = device->CreateStream(StreamKind::kHost);
  const Ticket ticket = device->Launch(stream, task);
  EXPECT_THROW(device->Synchronize(stream, ticket), Error);
  executor->Run(Checked::Of(1));
  EXPECT_THAT([&] { executor->Drain(); },
              ThrowsMessage<Error>(HasSubstr("device lost")));
  executor->Run(Checked::Of(1));
  executor->Drain();
}

TEST(ExecutorErrorsTest, DestructionWithAnErrorPendingIsQuiet) {
  Checked program;
  auto device = CreateCpuDevice();
  auto executor = Executor::Create(
      program.test.program, NaivePlan(program.test.program), *device, nullptr);
  executor->RunStartup();
  executor->Run(Checked::Of(13));
  executor.reset();
  EXPECT_EQ(device->stats().device_bytes, 0);
}

// --- Ranks ---

// All-reduces the fed values; rank `bad` fails before it.
void RunRank(Comm& comm, float value, std::string* error) {
  TestProgram test;
  test.program.world_size = comm.size();
  const VarId x = test.Feed("x", {2});
  const VarId y = test.Temp("y", {2});
  test.Do(Section::kMicro, "test_fail", {x}, y);
  test.Do(Section::kMicro, "test_all_reduce", {y}, y, StreamKind::kComm);
  auto device = CreateCpuDevice();
  try {
    auto executor = Executor::Create(test.program, NaivePlan(test.program, {y}),
                                     *device, &comm);
    const StepId step = executor->Run(Checked::Of(value));
    *error = StrCat("none, ", executor->Fetch(step)[0].ToDoubles()[0]);
  } catch (const Error& caught) {
    *error = caught.what();
  }
}

std::vector<std::string> RunRanks(const std::vector<float>& values) {
  harness::RegisterTestOps();
  auto comms = CreateThreadComms(static_cast<int>(values.size()));
  std::vector<std::string> errors(values.size());
  std::vector<std::thread> ranks;
  for (size_t i = 0; i < values.size(); ++i) {
    ranks.emplace_back([&, i] { RunRank(*comms[i], values[i], &errors[i]); });
  }
  for (std::thread& rank : ranks) rank.join();
  return errors;
}

TEST(ExecutorErrorsTest, RanksReduceTogether) {
  EXPECT_THAT(RunRanks({1, 2, 4}),
              ElementsAre("none, 7", "none, 7", "none, 7"));
}

TEST(ExecutorErrorsTest, ALocalErrorStopsTheOtherRanks) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(RunRanks({1, 13, 4}),
              ElementsAre(HasSubstr("Unavailable"), HasSubstr("x[0] is 13"),
                          HasSubstr("Unavailable")));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(ExecutorErrorsTest, ARankThatCannotStartStopsTheOthers) {
  harness::RegisterTestOps();
  auto comms = CreateThreadComms(2);
  std::vector<std::string> errors(2);
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      TestProgram test;
      test.program.world_size = 2;
      const VarId w = test.Param("w", {1000});
      test.Do(Section::kMicro, "test_all_reduce", {w}, w, StreamKind::kComm);
      CpuDeviceOptions options;
      options.device_memory_limit = rank == 0 ? 0 : 100;
      auto device = CreateCpuDevice(options);
      try {
        auto executor = Executor::Create(test.program, NaivePlan(test.program),
                                         *device, comms[rank].get());
        executor->Run({});
        executor->Drain();
      } catch (const Error& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_THAT(errors,
              ElementsAre(HasSubstr("Unavailable"), HasSubstr("OutOfMemory")));
}

// What each rank says when its param starts as fills[rank], its data at
// steps[rank].
std::vector<std::string> CreateOnTwoRanks(const std::vector<double>& fills,
                                          const std::vector<int64_t>& steps) {
  harness::RegisterTestOps();
  auto comms = CreateThreadComms(2);
  std::vector<std::string> errors(2);
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      TestProgram test;
      test.program.world_size = 2;
      test.Fill(test.Param("w", {2}), fills[rank]);
      auto device = CreateCpuDevice();
      ExecutorOptions options;
      options.initial_data_step = steps[rank];
      try {
        Executor::Create(test.program, NaivePlan(test.program), *device,
                         comms[rank].get(), options);
      } catch (const Error& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return errors;
}

TEST(ExecutorErrorsTest, RanksThatDifferAreRefused) {
  for (const std::string& error : CreateOnTwoRanks({0, 1}, {0, 0})) {
    EXPECT_THAT(error, AllOf(HasSubstr("FailedPrecondition"),
                             HasSubstr("differ in program: rank 1 has ")));
  }
  for (const std::string& error : CreateOnTwoRanks({1, 1}, {0, 8})) {
    EXPECT_THAT(error, AllOf(HasSubstr("FailedPrecondition"),
                             HasSubstr("initial data step: rank 1 has 8")));
  }
  EXPECT_THAT(CreateOnTwoRanks({1, 1}, {8, 8}), ElementsAre("", ""));
}

}  // namespace
}  // namespace plo
