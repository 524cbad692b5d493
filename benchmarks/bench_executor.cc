// What the executor adds to the kernels: empty kernels on one stream, and on
// two streams that wait for each other at every op.
//
//   bench_executor [steps] [ops per step]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "framework/ir/error.h"
#include "framework/runtime/executor.h"

namespace plo {
namespace {

using Clock = std::chrono::steady_clock;

void RegisterEmptyOp() {
  OpSchema schema;
  schema.type = "bench_empty";
  schema.inputs = {{"x"}};
  schema.outputs = {{"out"}};
  schema.where = OpSchema::Where::kDeviceOrHost;
  OpRegistry::Global().Register(std::move(schema));
  KernelRegistry::Global().Register("bench_empty", DeviceKind::kCpu,
                                    [](KernelContext& context) {
                                      context.In("x");
                                      context.Out("out");
                                    });
}

// A chain of ops, each reading what the one before wrote. Every
// `alternate`-th op runs on another stream; 0: none does.
Program MakeChain(int ops, int alternate) {
  Program program;
  Var var;
  var.shape = Shape{16};
  var.kind = VarKind::kState;
  var.category = MemoryCategory::kWorkspace;
  VarId last = kNoId;
  for (int i = 0; i <= ops; ++i) {
    var.name = StrCat("v", i);
    const VarId next = program.AddVar(var);
    if (i > 0) {
      OpSpec spec;
      spec.type = "bench_empty";
      spec.inputs = {{"x", {last}}};
      spec.outputs = {{"out", {next}}};
      if (alternate > 0 && i % alternate == 0) spec.stream = StreamKind::kComm;
      program.Append(Section::kMicro, std::move(spec));
    }
    last = next;
  }
  return program;
}

double MicrosecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin)
      .count();
}

void Measure(const char* name, int steps, int ops, int alternate) {
  const Program program = MakeChain(ops, alternate);
  auto device = CreateCpuDevice();
  auto executor =
      Executor::Create(program, BuildPlan(program), *device, nullptr);
  for (int step = 0; step < 3; ++step) executor->Run({});
  executor->Drain();
  std::vector<double> issue, whole;
  for (int step = 0; step < steps; ++step) {
    const auto begin = Clock::now();
    executor->Run({});
    issue.push_back(MicrosecondsSince(begin) / ops);
    executor->Drain();
    whole.push_back(MicrosecondsSince(begin) / ops);
  }
  const auto median = [](std::vector<double>& values) {
    std::nth_element(values.begin(), values.begin() + values.size() / 2,
                     values.end());
    return values[values.size() / 2];
  };
  std::printf("%-28s %8.3f %8.3f\n", name, median(issue), median(whole));
}

}  // namespace
}  // namespace plo

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 200;
  const int ops = argc > 2 ? std::atoi(argv[2]) : 2000;
  if (steps <= 0 || ops <= 0) {
    std::fprintf(stderr, "usage: bench_executor [steps] [ops per step]\n");
    return 2;
  }
  plo::RegisterEmptyOp();
  std::printf("us per op, median of %d steps  enqueue   done\n", steps);
  plo::Measure("one stream", steps, ops, 0);
  plo::Measure("a wait every 64 ops", steps, ops, 64);
  plo::Measure("a wait every 8 ops", steps, ops, 8);
  plo::Measure("a wait every op", steps, ops, 2);
}
