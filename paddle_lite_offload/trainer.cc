#include "paddle_lite_offload/trainer.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <random>

#include "framework/plan/simulator.h"
#include "framework/runtime/trace.h"
#include "paddle_lite_offload/hasher.h"
#include "paddle_lite_offload/offload_choice.h"
#include "paddle_lite_offload/param_digest.h"
#include "paddle_lite_offload/plan_run.h"
#include "paddle_lite_offload/run_check.h"
#include "paddle_lite_offload/sampler.h"

namespace plo {
namespace {

// Steps of a run that a trace shows.
constexpr int64_t kTracedSteps = 4;

double NowMs() {
  using Ms = std::chrono::duration<double, std::milli>;
  return Ms(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string DeviceName(DeviceKind kind) {
  return kind == DeviceKind::kCuda ? "cuda" : "cpu";
}

// All that is known before the first step.
TrainReport MakeReport(const TrainConfig& config, int world_size,
                       DeviceKind device, const std::string& chosen,
                       const std::optional<NamedRates>& rates,
                       const PreparedProgram& prepared) {
  TrainReport report;
  report.config = config;
  report.world_size = world_size;
  report.device = DeviceName(device);
  report.parameters = ParameterCount(prepared.program);
  report.plan_seconds = prepared.plan_seconds;
  const int owners = config.sharding_stage == 0 ? 1 : world_size;
  AddPlan(prepared.plan, report.parameters / owners, report);
  report.chosen = chosen;
  if (rates) {
    report.rates = Describe(*rates);
    report.estimated_step_ms =
        SimulateStep(prepared.plan, prepared.program, rates->rates).step_ms;
  }
  return report;
}

Machine FindMachine(const TrainConfig& config, int world_size,
                    DeviceKind device, int local_rank) {
  Machine machine;
  machine.rates = FindRates(config, device, world_size);
  if (ChoosesByMemory(config)) {
    machine.device_memory = FreeDeviceMemory(device, local_rank);
  }
  return machine;
}

}  // namespace

DeviceKind ResolveDevice(const std::string& name) {
  if (name == "cuda") return DeviceKind::kCuda;
  if (name == "cpu") return DeviceKind::kCpu;
  return CudaDeviceAvailable() ? DeviceKind::kCuda : DeviceKind::kCpu;
}

int ComputeThreads(int local_world_size) {
  if (const char* text = std::getenv("OMP_NUM_THREADS")) {
    const int threads = std::atoi(text);
    if (threads > 0) return threads;
  }
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return 1;
  return std::max(1, CPU_COUNT(&cores) / local_world_size);
}

PreparedRun PrepareRun(const TrainConfig& config, int world_size,
                       DeviceKind device, const Machine& machine) {
  ValidateTrainConfig(config, world_size);
  PreparedRun run;
  run.config = ChooseOffload(config, world_size, device, machine);
  run.chosen = DescribeChoice(config, run.config);
  run.rates = machine.rates;
  run.prepared = PlanRun(run.config, world_size, device);
  return run;
}

PreparedRun PrepareRun(const TrainConfig& config, int world_size,
                       DeviceKind device, int local_rank) {
  return PrepareRun(config, world_size, device,
                    FindMachine(config, world_size, device, local_rank));
}

std::string TracePath(const std::string& file, int rank) {
  return rank == 0 ? file : StrCat(file, ".rank", rank);
}

Trainer::Trainer(const TrainConfig& config, const TrainerOptions& options)
    : Trainer(config, std::nullopt, options) {}

Trainer::Trainer(const TrainConfig& config, std::optional<PreparedRun> run,
                 const TrainerOptions& options)
    : config_(config),
      options_(options),
      rank_(options.comm ? options.comm->rank() : 0),
      world_size_(options.comm ? options.comm->size() : 1) {
  EngineOptions engine_options;
  engine_options.device = ResolveDevice(config_.device);
  ValidateTrainConfig(config_, world_size_);
  source_ = MakeBatchSource(config_);
  if (options_.comm != nullptr) {
    CheckSameRun(*options_.comm,
                 RunFacts(config_, engine_options.device, *source_));
  }
  if (!run) run = PrepareTogether(engine_options.device);
  config_ = std::move(run->config);
  chosen_ = std::move(run->chosen);
  rates_ = std::move(run->rates);
  if (!config_.log_dir.empty() && rank_ == 0) {
    metrics_log_ = std::make_unique<MetricsLog>(config_.log_dir);
  }
  engine_options.cuda.ordinal = options_.local_rank;
  engine_options.cuda.device_memory_limit = config_.device_memory_limit;
  engine_options.cuda.host_memory_limit = config_.host_memory_limit;
  engine_options.cpu.device_memory_limit = config_.device_memory_limit;
  engine_options.cpu.host_memory_limit = config_.host_memory_limit;
  engine_options.host_pool.local_rank = options_.local_rank;
  engine_options.host_pool.local_world_size = options_.local_world_size;
  engine_options.cpu.compute_threads =
      ComputeThreads(options_.local_world_size);
  engine_options.executor.trace = !config_.trace.empty();
  engine_options.executor.replay = config_.cuda_graphs;
  engine_ = std::make_unique<Engine>(std::move(run->prepared), options_.comm,
                                     engine_options);
  const int64_t items_per_sample = config_.model == "gpt" ? config_.seq_len : 1;
  tokens_per_step_ = config_.micro_batch * config_.accumulate_steps *
                     world_size_ * items_per_sample;
}

Trainer::~Trainer() = default;

PreparedRun Trainer::PrepareTogether(DeviceKind device) const {
  TrainConfig config = config_;
  if (rank_ != 0) config.dump_ir_dir.clear();  // one folder is enough
  Machine machine =
      FindMachine(config, world_size_, device, options_.local_rank);
  if (options_.comm != nullptr) AgreeOnMachine(*options_.comm, machine);
  return PrepareRun(config, world_size_, device, machine);
}

std::string Trainer::DescribeChoices() const {
  std::string text;
  if (rates_) text += "rates of " + Describe(*rates_) + "\n";
  if (!chosen_.empty()) text += "chosen: " + chosen_ + "\n";
  return text;
}

void Trainer::Run() {
  last_collected_ms_ = NowMs();
  StepId pending = -1;
  for (int64_t step = 0; step < config_.steps; ++step) {
    if (!config_.trace.empty() && step + kTracedSteps <= config_.steps) {
      engine_->executor().TakeTrace();  // drops the steps before
    }
    const StepId current =
        engine_->Enqueue(MakeBatch(*source_, engine_->program(), step, rank_));
    if (step > 0) Collect(pending);
    pending = current;
  }
  Collect(pending);
  engine_->executor().Drain();
  if (!config_.trace.empty()) SaveTrace();
}

void Trainer::Collect(StepId step) {
  const StepResult result = engine_->Result(step);
  const double now = NowMs();
  const double step_ms = now - last_collected_ms_;
  last_collected_ms_ = now;
  steps_ms_.push_back(step_ms);
  outcome_.losses.push_back(result.loss);
  outcome_.grad_norms.push_back(result.grad_norm);
  outcome_.loss_scales.push_back(result.loss_scale);
  outcome_.skipped_steps += result.skipped ? 1 : 0;
  StepMetrics metrics;
  metrics.step = static_cast<int64_t>(steps_ms_.size());
  metrics.result = result;
  metrics.step_ms = step_ms;
  metrics.tokens_per_second =
      1000.0 * static_cast<double>(tokens_per_step_) / world_size_ / step_ms;
  metrics.tokens_seen = metrics.step * tokens_per_step_;
  metrics.peak_bytes = engine_->prepared().plan.device.arena_bytes;
  if (metrics_log_) metrics_log_->Write(metrics);
  if (options_.on_step) options_.on_step(metrics);
}

void Trainer::SaveTrace() {
  const std::vector<TraceEvent> events = engine_->executor().TakeTrace();
  WriteChromeTrace(TracePath(config_.trace, rank_), events, rank_);
  outcome_.streams = SummarizeStreams(events);
}

TrainReport Trainer::Report() {
  const DeviceKind device = engine_->device().kind();
  TrainReport report = MakeReport(config_, world_size_, device, chosen_, rates_,
                                  engine_->prepared());
  const MemoryMeasurement measured = engine_->executor().MeasureMemory();
  report.memory.live_peak_bytes = measured.live_peak_bytes;
  report.memory.by_category = measured.by_category;
  report.memory.measured = {
      .peak_bytes = measured.measured_peak_bytes,
      .rss_peak_bytes = PeakResidentBytes(),
      .driver_used_bytes = measured.device.driver_used_bytes,
      .driver_context_bytes = measured.device.driver_context_bytes};
  outcome_.times = SummarizeSteps(steps_ms_, tokens_per_step_);
  const uint64_t digest = ParamDigest(engine_->executor());
  outcome_.param_digest = DigestText(digest);
  if (options_.comm != nullptr) {
    CheckSameOnAllRanks(*options_.comm, digest, "the params after training");
    ExchangeMemory(*options_.comm, report.memory);
  }
  report.outcome = outcome_;
  return report;
}

std::string Trainer::Generate() {
  PLO_ENFORCE(config_.generate > 0, kFailedPrecondition,
              "the config generates nothing");
  return SampleBytes(*engine_, {.count = config_.generate,
                                .temperature = config_.temperature,
                                .prompt = config_.prompt,
                                .seed = config_.seed});
}

TrainReport PlanReport(const TrainConfig& config, int world_size) {
  // "auto" means a GPU: plans are made on machines that have none.
  const DeviceKind device =
      config.device == "cpu" ? DeviceKind::kCpu : DeviceKind::kCuda;
  const PreparedRun run = PrepareRun(config, world_size, device);
  return MakeReport(run.config, world_size, device, run.chosen, run.rates,
                    run.prepared);
}

}  // namespace plo
