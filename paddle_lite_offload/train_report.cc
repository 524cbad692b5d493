#include "paddle_lite_offload/train_report.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace plo {
namespace {

using nlohmann::json;

template <typename T>
json OrNull(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}

json ByCategory(const CategoryBytes& bytes) {
  json object = json::object();
  for (int i = 0; i < kMemoryCategoryCount; ++i) {
    object[std::string(Name(static_cast<MemoryCategory>(i)))] = bytes[i];
  }
  return object;
}

json MemoryJson(const MemoryReport& memory) {
  json device = {{"planned_peak_bytes", memory.planned_peak_bytes},
                 {"live_peak_bytes", memory.live_peak_bytes},
                 {"by_category", ByCategory(memory.by_category)},
                 {"peak_op", memory.peak_op}};
  json out = {{"pinned",
               {{"bytes", memory.pinned_bytes},
                {"by_category", ByCategory(memory.pinned_by_category)}}},
              {"host_state_bytes_per_param",
               OrNull(memory.host_state_bytes_per_param)}};
  if (memory.measured) {
    device["measured_peak_bytes"] = memory.measured->peak_bytes;
    out["driver_used_bytes"] = OrNull(memory.measured->driver_used_bytes);
    out["driver_context_bytes"] = OrNull(memory.measured->driver_context_bytes);
    out["rss_peak_bytes"] = memory.measured->rss_peak_bytes;
  }
  out["device"] = std::move(device);
  return out;
}

double Percentile(std::vector<double> values, double fraction) {
  std::sort(values.begin(), values.end());
  const double position = fraction * static_cast<double>(values.size() - 1);
  const size_t low = static_cast<size_t>(position);
  const size_t high = std::min(low + 1, values.size() - 1);
  const double weight = position - static_cast<double>(low);
  return values[low] + weight * (values[high] - values[low]);
}

// MemoryReport's numbers in a row, to be sent to other ranks.
std::vector<int64_t*> Numbers(MemoryReport& memory) {
  std::vector<int64_t*> numbers = {&memory.planned_peak_bytes,
                                   &memory.live_peak_bytes,
                                   &memory.pinned_bytes};
  for (int64_t& bytes : memory.by_category) numbers.push_back(&bytes);
  for (int64_t& bytes : memory.pinned_by_category) numbers.push_back(&bytes);
  if (memory.measured) numbers.push_back(&memory.measured->peak_bytes);
  return numbers;
}

int64_t MaxOverRanks(Comm& comm, int64_t value) {
  comm.host().AllReduce(&value, 1, DType::kInt64, Reduction::kMax, nullptr);
  return value;
}

}  // namespace

json ToJson(const TrainReport& report) {
  json out = {
      {"config", ToJson(report.config)},
      {"world_size", report.world_size},
      {"device", report.device},
      {"parameters", report.parameters},
      {"rates", OrNull(report.rates)},
      {"estimated_step_ms", OrNull(report.estimated_step_ms)},
      {"memory", MemoryJson(report.memory)},
      {"transfers",
       {{"d2h_bytes_per_step", report.d2h_bytes_per_step},
        {"h2d_bytes_per_step", report.h2d_bytes_per_step},
        {"collective_bytes_per_step", report.collective_bytes_per_step}}},
      {"plan_seconds", report.plan_seconds}};
  if (!report.outcome) return out;
  const TrainOutcome& run = *report.outcome;
  json scales = json::array();
  for (const auto& scale : run.loss_scales) scales.push_back(OrNull(scale));
  out["losses"] = run.losses;
  out["grad_norms"] = run.grad_norms;
  out["loss_scales"] = std::move(scales);
  out["skipped_steps"] = run.skipped_steps;
  out["step_ms"] = {{"median", run.times.median_ms}, {"p90", run.times.p90_ms}};
  out["tokens_per_second"] = run.times.tokens_per_second;
  out["param_digest"] = run.param_digest;
  out["streams"] = nullptr;
  for (const StreamUse& use : run.streams) {
    out["streams"][std::string(Name(use.stream))] = {
        {"busy_ms", use.busy_ms},
        {"exposed_ms", use.exposed_ms},
        {"gigabytes_per_second", use.gigabytes_per_second}};
  }
  out["sample"] = OrNull(report.sample);
  return out;
}

void AddPlan(const Plan& plan, int64_t owned_params, TrainReport& report) {
  MemoryReport& memory = report.memory;
  memory.planned_peak_bytes = plan.device.arena_bytes;
  memory.live_peak_bytes = plan.device.live_peak_bytes;
  memory.by_category = plan.device.by_category;
  memory.peak_op = plan.device.peak_op;
  memory.pinned_bytes = plan.pinned.arena_bytes;
  memory.pinned_by_category = plan.pinned.by_category;
  if (owned_params > 0) {
    memory.host_state_bytes_per_param =
        static_cast<double>(plan.host_state_bytes) /
        static_cast<double>(owned_params);
  }
  report.d2h_bytes_per_step = plan.d2h_bytes_per_step;
  report.h2d_bytes_per_step = plan.h2d_bytes_per_step;
  report.collective_bytes_per_step = plan.collective_bytes_per_step;
}

void ExchangeMemory(Comm& comm, MemoryReport& memory) {
  if (memory.measured) {
    memory.measured->rss_peak_bytes =
        MaxOverRanks(comm, memory.measured->rss_peak_bytes);
    if (auto& used = memory.measured->driver_used_bytes) {
      used = MaxOverRanks(comm, *used);
    }
  }
  const int64_t peak =
      memory.measured ? memory.measured->peak_bytes : memory.planned_peak_bytes;
  const bool worst = MaxOverRanks(comm, peak) == peak;
  const int root =
      static_cast<int>(MaxOverRanks(comm, worst ? comm.rank() : int64_t{-1}));
  std::vector<int64_t> row;
  for (int64_t* number : Numbers(memory)) row.push_back(*number);
  comm.host().Broadcast(row.data(),
                        static_cast<int64_t>(row.size() * sizeof(int64_t)),
                        root, nullptr);
  size_t next = 0;
  for (int64_t* number : Numbers(memory)) *number = row[next++];
}

StepTimes SummarizeSteps(const std::vector<double>& steps_ms,
                         int64_t tokens_per_step) {
  StepTimes times;
  if (steps_ms.empty()) return times;
  const bool warmed_up = steps_ms.size() > 1;
  const std::vector<double> counted(steps_ms.begin() + (warmed_up ? 1 : 0),
                                    steps_ms.end());
  times.median_ms = Percentile(counted, 0.5);
  times.p90_ms = Percentile(counted, 0.9);
  double total_ms = 0;
  for (double ms : counted) total_ms += ms;
  if (total_ms > 0) {
    times.tokens_per_second = 1000.0 * static_cast<double>(tokens_per_step) *
                              static_cast<double>(counted.size()) / total_ms;
  }
  return times;
}

int64_t PeakResidentBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * int64_t{1024};
}

}  // namespace plo
