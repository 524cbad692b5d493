#include "paddle_lite_offload/trainer.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <random>

#include "framework/runtime/trace.h"
#include "paddle_lite_offload/hasher.h"
#include "paddle_lite_offload/param_digest.h"
#include "paddle_lite_offload/run_check.h"
#include "paddle_lite_offload/sampler.h"
#include "paddle_lite_offload/streamed_fraction.h"

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

// Ranks of one host share its cores, unless the launcher says otherwise.
int ComputeThreads(int local_world_size) {
  if (const char* text = std::getenv("OMP_NUM_THREADS")) {
    const int threads = std::atoi(text);
    if (threads > 0) return threads;
  }
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return 1;
  return std::max(1, CPU_COUNT(&cores) / local_world_size);
}

// All that is known before the first step.
TrainReport MakeReport(const TrainConfig& config, int world_size,
                       DeviceKind device, const PreparedProgram& prepared) {
  TrainReport report;
  report.config = config;
  report.world_size = world_size;
  report.device = DeviceName(device);
  report.parameters = ParameterCount(prepared.program);
  report.plan_seconds = prepared.plan_seconds;
  const int owners = config.sharding_stage == 0 ? 1 : world_size;
  AddPlan(prepared.plan, report.parameters / owners, report);
  return report;
}

std::optional<double> EstimateStepMs(const std::optional<Rates>& rates,
                                     const PreparedProgram& prepared) {
  if (!rates) return std::nullopt;
  return SimulateStep(prepared.plan, prepared.program, *rates).step_ms;
}

// Of a rank: one folder of dumps is enough.
PreparedProgram PrepareRank(TrainConfig config, const TrainerOptions& options) {
  if (options.comm != nullptr && options.comm->rank() != 0) {
    config.dump_ir_dir.clear();
  }
  return PrepareRun(config, options.comm ? options.comm->size() : 1,
                    ResolveDevice(config.device));
}

}  // namespace

DeviceKind ResolveDevice(const std::string& name) {
  if (name == "cuda") return DeviceKind::kCuda;
  if (name == "cpu") return DeviceKind::kCpu;
  return CudaDeviceAvailable() ? DeviceKind::kCuda : DeviceKind::kCpu;
}

// None without rates that hold: those of a CPU differ by more than tenfold
// between machines and with what else they do, so that none are built in.
std::optional<Rates> ReadRates(const TrainConfig& config, DeviceKind device) {
  if (config.rates.empty()) {
    if (device == DeviceKind::kCpu) return std::nullopt;
    return Rates();
  }
  try {
    return LoadRates(config.rates);
  } catch (const Error& error) {
    throw error.WithContext("--rates");
  }
}

PreparedProgram PrepareRun(const TrainConfig& config, int world_size,
                           DeviceKind device) {
  ValidateTrainConfig(config, world_size);
  Program program = BuildModel(config);
  PrepareOptions options;
  DefaultPipelineOptions pipeline = MakePipelineOptions(config, world_size);
  if (pipeline.offload_optimizer && !StreamedFraction(config)) {
    pipeline.offload_streamed_fraction =
        FastestStreamedFraction(config, pipeline, ReadRates(config, device));
  }
  options.pipeline = DefaultPipeline(pipeline);
  options.dump_ir_dir = config.dump_ir_dir;
  options.device_memory_limit = config.device_memory_limit;
  options.host_memory_limit = config.host_memory_limit;
  options.device = device;
  std::vector<EvalProgram> evals;
  if (config.generate > 0) {
    evals.push_back({BuildModel(config, ModelMode::kGenerate),
                     MakeEvalPipeline(config),
                     {"logits"}});
  }
  return Prepare(std::move(program), options, std::move(evals));
}

std::string TracePath(const std::string& file, int rank) {
  return rank == 0 ? file : StrCat(file, ".rank", rank);
}

Trainer::Trainer(const TrainConfig& config, const TrainerOptions& options)
    : Trainer(config, PrepareRank(config, options), options) {}

Trainer::Trainer(const TrainConfig& config, PreparedProgram prepared,
                 const TrainerOptions& options)
    : config_(config),
      options_(options),
      rank_(options.comm ? options.comm->rank() : 0),
      world_size_(options.comm ? options.comm->size() : 1) {
  EngineOptions engine_options;
  engine_options.device = ResolveDevice(config_.device);
  source_ = MakeBatchSource(config_);
  if (options_.comm != nullptr) {
    CheckSameRun(*options_.comm,
                 RunFacts(config_, engine_options.device, *source_));
  }
  rates_ = ReadRates(config_, engine_options.device);
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
  engine_ = std::make_unique<Engine>(std::move(prepared), options_.comm,
                                     engine_options);
  const int64_t items_per_sample = config_.model == "gpt" ? config_.seq_len : 1;
  tokens_per_step_ = config_.micro_batch * config_.accumulate_steps *
                     world_size_ * items_per_sample;
}

Trainer::~Trainer() = default;

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
  WriteChromeTrace(TracePath(config_.trace, rank_),
                   engine_->executor().TakeTrace(), rank_);
}

TrainReport Trainer::Report() {
  const DeviceKind device = engine_->device().kind();
  TrainReport report =
      MakeReport(config_, world_size_, device, engine_->prepared());
  report.estimated_step_ms = EstimateStepMs(rates_, engine_->prepared());
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
  const std::optional<Rates> rates = ReadRates(config, device);
  const PreparedProgram prepared = PrepareRun(config, world_size, device);
  TrainReport report = MakeReport(config, world_size, device, prepared);
  report.estimated_step_ms = EstimateStepMs(rates, prepared);
  return report;
}

}  // namespace plo
