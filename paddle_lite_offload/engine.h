// From a program to running steps: passes, plan, executor.
//
//   plo::Engine engine(g.Build(), plo::AdamW({.lr = 1e-2}));
//   for (int step = 0; step < 100; ++step) {
//     plo::StepResult result = engine.Step({{"x", x}, {"y", y}});
//   }
#ifndef PLO_PADDLE_LITE_OFFLOAD_ENGINE_H_
#define PLO_PADDLE_LITE_OFFLOAD_ENGINE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "framework/ir/program.h"
#include "framework/plan/plan.h"
#include "framework/runtime/comm.h"
#include "framework/runtime/device.h"
#include "framework/runtime/executor.h"
#include "framework/runtime/host_pool.h"
#include "paddle_lite_offload/optimizer.h"
#include "passes/pipeline.h"

namespace plo {

// A program with only forward ops that shares the params by name.
struct EvalProgram {
  Program program;
  std::string pipeline;              // "" or apply_amp
  std::vector<std::string> fetches;  // names of vars
};

struct PrepareOptions {
  std::string pipeline;
  std::string dump_ir_dir = {};  // the program after each pass; "": nowhere
  int64_t device_memory_limit = 0;
  int64_t host_memory_limit = 0;
  DeviceKind device = DeviceKind::kCpu;
};

// Programs rewritten by their pipelines, and the plan that runs them. The plan
// fetches the mean loss and the step record.
struct PreparedProgram {
  Program program;
  std::vector<Program> eval_programs;
  Plan plan;
  double pass_seconds = 0;
  double plan_seconds = 0;
};
// Pure: needs no device. Errors are those of the passes and of BuildPlan.
PreparedProgram Prepare(Program program, const PrepareOptions& options,
                        std::vector<EvalProgram> evals = {});

// What a step computed.
struct StepResult {
  double loss = 0;       // mean over the valid items of the global batch
  double grad_norm = 0;  // of the averaged gradient, before clipping
  double lr = 0;
  std::optional<double> loss_scale;  // the scale this step used
  bool skipped = false;       // no finite update could be made, so none was
  int64_t applied_steps = 0;  // updates so far
};

struct EngineOptions {
  DeviceKind device = DeviceKind::kCpu;
  CpuDeviceOptions cpu;
  CudaDeviceOptions cuda;
  ExecutorOptions executor;
  // Threads of the host Adam; made when the program updates on the host.
  HostPoolOptions host_pool;
};

// Owns device and executor. Thread-compatible.
class Engine {
 public:
  // Trains on one rank of the CPU with the default pipeline, in which
  // `optimizer` takes its place.
  Engine(Program program, const Optimizer& optimizer,
         DefaultPipelineOptions pipeline = {});
  // `comm`, which may be null for one rank, must outlive the engine. All ranks
  // do the same.
  Engine(PreparedProgram prepared, Comm* comm,
         const EngineOptions& options = {});
  ~Engine();

  // Enqueue() and Result() of one step.
  StepResult Step(const Feeds& feeds);
  // Returns once the step is enqueued; see Executor::Run.
  StepId Enqueue(const Feeds& feeds);
  // Waits for the step. Kept for the last kFetchSlots steps.
  StepResult Result(StepId step);

  // A param or state by name, after all pending work.
  HostTensor Read(std::string_view name);
  void Write(std::string_view name, const HostTensor& value);

  Executor& executor() { return *executor_; }
  Device& device() { return *device_; }
  const Program& program() const { return prepared_.program; }
  const PreparedProgram& prepared() const { return prepared_; }

 private:
  void Start(Comm* comm, const EngineOptions& options);

  PreparedProgram prepared_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<HostPool> host_pool_;  // outlives the executor's tasks
  std::unique_ptr<Executor> executor_;
};

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_ENGINE_H_
