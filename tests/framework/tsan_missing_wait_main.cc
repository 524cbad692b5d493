// Shows that ThreadSanitizer reports a plan that lacks a wait: run with
// "complete" it must stay silent, with "missing" it must not.
#include <cstdio>
#include <cstring>

#include "framework/runtime/executor.h"
#include "tests/framework/executor_harness.h"

namespace plo {
namespace {

void Run(bool complete) {
  harness::TestProgram test;
  const VarId x = test.Feed("x", {64});
  const VarId y = test.Temp("y", {64});
  const VarId host = test.State("host", {64}, Place::kPinned);
  test.Do(Section::kMicro, "test_add", {x, x}, y);
  const OpId copy =
      test.Do(Section::kUpdate, "copy_d2h", {y}, host, StreamKind::kD2H).id;
  Plan plan = BuildPlan(test.program);
  Launch& launch =
      plan.graphs[0]
          .launches[static_cast<size_t>(harness::FindLaunch(plan, copy))];
  if (launch.waits.empty()) {
    std::puts("the plan has no wait to remove");
    return;
  }
  if (!complete) launch.waits.clear();
  auto device = CreateCpuDevice();
  ExecutorOptions options;
  // Everything is enqueued before the first task ends, so that the queues
  // themselves order nothing.
  options.delay_us = [](StreamKind stream, OpId) {
    return stream == StreamKind::kCompute ? 50000 : 0;
  };
  auto executor = Executor::Create(test.program, std::move(plan), *device,
                                   nullptr, options);
  executor->Run({{"x", harness::Floats({64}, std::vector<float>(64, 1.0f))}});
  executor->Drain();
  std::puts("done");
}

}  // namespace
}  // namespace plo

int main(int argc, char** argv) {
  plo::Run(argc > 1 && std::strcmp(argv[1], "complete") == 0);
}
