#include "paddle_lite_offload/engine.h"

#include <chrono>

#include "operators/register_ops.h"
#include "passes/pass.h"

namespace plo {
namespace {

// Elements of the step record; see operators/step_record.cc.
enum RecordIndex {
  kRecordSkip = 0,
  kRecordLr = 1,
  kRecordGradNorm = 6,
  kRecordLossScale = 7,
  kRecordAppliedSteps = 8,
};

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

void RunPipeline(Program& program, const std::string& pipeline,
                 const std::string& dump_dir) {
  if (pipeline.empty()) return;
  PassManager manager = PassManager::Parse(pipeline);
  if (!dump_dir.empty()) manager.set_dump_dir(dump_dir);
  manager.Run(program);
}

}  // namespace

PreparedProgram Prepare(Program program, const PrepareOptions& options,
                        std::vector<EvalProgram> evals) {
  RegisterBuiltinOps();
  RegisterBuiltinPasses();
  const auto start = std::chrono::steady_clock::now();
  RunPipeline(program, options.pipeline, options.dump_ir_dir);
  PLO_ENFORCE(program.mean_loss != kNoId && program.step_record != kNoId,
              kFailedPrecondition, "the pipeline '", options.pipeline,
              "' makes no training program: it needs append_backward, "
              "shard_optimizer, check_gradients and insert_optimizer");
  PreparedProgram prepared;
  PlanOptions plan_options;
  plan_options.fetches = {program.mean_loss, program.step_record};
  plan_options.device_memory_limit = options.device_memory_limit;
  plan_options.host_memory_limit = options.host_memory_limit;
  plan_options.device = options.device;
  for (EvalProgram& eval : evals) {
    RunPipeline(eval.program, eval.pipeline, "");
    std::vector<VarId> fetches;
    for (const std::string& name : eval.fetches) {
      fetches.push_back(eval.program.GetVar(name));
    }
    plan_options.eval_fetches.push_back(std::move(fetches));
    prepared.eval_programs.push_back(std::move(eval.program));
  }
  prepared.program = std::move(program);
  for (const Program& eval : prepared.eval_programs) {
    plan_options.eval_programs.push_back(&eval);
  }
  prepared.pass_seconds = SecondsSince(start);
  prepared.plan = BuildPlan(prepared.program, plan_options);
  prepared.plan_seconds = SecondsSince(start);
  return prepared;
}

namespace {

bool UpdatesOnHost(const Program& program) {
  for (const auto& op : program.ops(Section::kUpdate)) {
    if (op->stream == StreamKind::kHost) return true;
  }
  return false;
}

}  // namespace

Engine::Engine(Program program, const Optimizer& optimizer,
               DefaultPipelineOptions pipeline) {
  optimizer.ApplyGroups(program);
  pipeline.insert_optimizer = optimizer.PipelineEntry();
  prepared_ =
      Prepare(std::move(program), {.pipeline = DefaultPipeline(pipeline)});
  Start(nullptr, {});
}

Engine::Engine(PreparedProgram prepared, Comm* comm,
               const EngineOptions& options)
    : prepared_(std::move(prepared)) {
  Start(comm, options);
}

Engine::~Engine() = default;

void Engine::Start(Comm* comm, const EngineOptions& options) {
  device_ = options.device == DeviceKind::kCuda ? CreateCudaDevice(options.cuda)
                                                : CreateCpuDevice(options.cpu);
  std::vector<const Program*> evals;
  for (const Program& eval : prepared_.eval_programs) evals.push_back(&eval);
  ExecutorOptions executor_options = options.executor;
  if (executor_options.host_pool == nullptr &&
      UpdatesOnHost(prepared_.program)) {
    host_pool_ = std::make_unique<HostPool>(options.host_pool);
    executor_options.host_pool = host_pool_.get();
  }
  executor_ = Executor::Create(prepared_.program, prepared_.plan, *device_,
                               comm, executor_options, evals);
  executor_->RunStartup();
}

StepId Engine::Enqueue(const Feeds& feeds) { return executor_->Run(feeds); }

StepResult Engine::Result(StepId step) {
  const std::vector<HostTensor> fetched = executor_->Fetch(step);
  const std::vector<double> record = fetched[1].ToDoubles();
  StepResult result;
  result.loss = fetched[0].ToDoubles()[0];
  result.grad_norm = record[kRecordGradNorm];
  result.lr = record[kRecordLr];
  if (program().loss_scale != kNoId) {
    result.loss_scale = record[kRecordLossScale];
  }
  result.skipped = record[kRecordSkip] != 0;
  result.applied_steps = static_cast<int64_t>(record[kRecordAppliedSteps]);
  return result;
}

StepResult Engine::Step(const Feeds& feeds) { return Result(Enqueue(feeds)); }

HostTensor Engine::Read(std::string_view name) {
  return executor_->ReadVar(name);
}

void Engine::Write(std::string_view name, const HostTensor& value) {
  executor_->WriteVar(name, value);
}

}  // namespace plo
