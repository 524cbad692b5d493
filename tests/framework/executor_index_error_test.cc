// Errors of the data that kernels find: thrown at once by the CPU's, left in
// KernelEnv::device_error by those of an accelerator. The caller sees the same.
#include <cmath>

#include "framework/ir/error.h"
#include "framework/runtime/executor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/executor_harness.h"
#include "tests/framework/test_device.h"

namespace plo {
namespace {

using harness::Floats;
using harness::TestProgram;
using harness::Values;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

// y = x, w += y; x is checked.
struct Checked {
  TestProgram test;
  VarId x, y, w;
  Checked() {
    x = test.Feed("x", {3});
    y = test.Temp("y", {3});
    w = test.Param("w", {3});
    test.Fill(w, 0);
    test.Do(Section::kMicro, "test_index", {x}, y);
    test.Do(Section::kUpdate, "test_add", {w, y}, w);
  }
};

class ExecutorIndexErrorTest : public testing::Test {
 protected:
  std::unique_ptr<Executor> Create() {
    return Executor::Create(
        program_.test.program,
        harness::NaivePlan(program_.test.program, {program_.y}), *device_,
        nullptr);
  }
  static auto ThrowsTheError() {
    return ThrowsMessage<Error>(
        AllOf(HasSubstr("InvalidArgument: op 'test_index'"),
              HasSubstr("fp32 [3] 'x'"),
              HasSubstr("index 13 at position 1 is out of range [0, 10)")));
  }

  Checked program_;
  std::unique_ptr<Device> device_ = CreateTestDevice();
  const Feeds good_ = {{"x", Floats({3}, {1, 2, 3})}};
  const Feeds bad_ = {{"x", Floats({3}, {1, 13, 3})}};
};

TEST_F(ExecutorIndexErrorTest, FetchNamesOpOperandElementValueAndBound) {
  auto executor = Create();
  executor->RunStartup();
  executor->Fetch(executor->Run(good_));
  const StepId step = executor->Run(bad_);
  EXPECT_THAT([&] { executor->Fetch(step); }, ThrowsTheError());
  EXPECT_THAT([&] { executor->Fetch(step); },
              ThrowsMessage<Error>(HasSubstr("failed: it has no values")));
}

TEST_F(ExecutorIndexErrorTest, DrainAndRunThrowItOnceAndStayUsable) {
  auto executor = Create();
  executor->RunStartup();
  executor->Run(bad_);
  EXPECT_THAT([&] { executor->Drain(); }, ThrowsTheError());
  executor->Drain();
  executor->WriteVar("w", Floats({3}, {0, 0, 0}));
  executor->Fetch(executor->Run(good_));
  EXPECT_THAT(Values(*executor, "w"), ElementsAre(1, 2, 3));
  executor->Run(bad_);
  EXPECT_THAT(
      [&] {
        for (int i = 0; i < 4; ++i) executor->Run(good_);
      },
      ThrowsTheError());
}

TEST_F(ExecutorIndexErrorTest, TheNextExecutorStartsClean) {
  Create()->Run(bad_);
  auto executor = Create();
  executor->RunStartup();
  executor->Fetch(executor->Run(good_));
}

}  // namespace
}  // namespace plo
