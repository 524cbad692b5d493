// What a run or a plan found out, and its JSON.
#ifndef PLO_PADDLE_LITE_OFFLOAD_TRAIN_REPORT_H_
#define PLO_PADDLE_LITE_OFFLOAD_TRAIN_REPORT_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "framework/plan/plan.h"
#include "framework/runtime/comm.h"
#include "framework/runtime/trace.h"
#include "paddle_lite_offload/train_config.h"

namespace plo {

// What only a run knows of its memory.
struct MeasuredMemory {
  int64_t peak_bytes = 0;
  int64_t rss_peak_bytes = 0;
  // Of the whole GPU, so that other processes count, too; none on the CPU.
  std::optional<int64_t> driver_used_bytes;
  // The same before the arena was allocated.
  std::optional<int64_t> driver_context_bytes = {};
};

struct MemoryReport {
  int64_t planned_peak_bytes = 0;
  int64_t live_peak_bytes = 0;
  CategoryBytes by_category{};
  std::string peak_op;
  int64_t pinned_bytes = 0;
  CategoryBytes pinned_by_category{};
  std::optional<double> host_state_bytes_per_param;  // of an owned param
  std::optional<MeasuredMemory> measured;
};

struct StepTimes {
  double median_ms = 0;
  double p90_ms = 0;
  double tokens_per_second = 0;  // without the first step
};

// What only a run knows.
struct TrainOutcome {
  std::vector<double> losses;
  std::vector<double> grad_norms;
  std::vector<std::optional<double>> loss_scales;
  int64_t skipped_steps = 0;
  StepTimes times;
  std::string param_digest;
  std::vector<StreamUse> streams;  // this rank's, of the traced steps
};

struct TrainReport {
  TrainConfig config;
  int world_size = 1;
  std::string device;  // "cpu" or "cuda"
  int64_t parameters = 0;
  std::string chosen;                // flags in the place of auto; may be none
  std::optional<std::string> rates;  // which ones, for the estimate
  std::optional<double> estimated_step_ms;
  MemoryReport memory;  // the worst rank's
  int64_t d2h_bytes_per_step = 0;
  int64_t h2d_bytes_per_step = 0;
  int64_t collective_bytes_per_step = 0;
  double plan_seconds = 0;
  std::optional<TrainOutcome> outcome;
  std::optional<std::string> sample;  // bytes that the model generated
};

// The keys that scripts rely on. Floats round-trip; what does not apply is
// null; without an outcome the keys of a run are absent.
nlohmann::json ToJson(const TrainReport& report);

// Fills in what the plan says. `owned_params` are the elements whose optimizer
// state one rank holds.
void AddPlan(const Plan& plan, int64_t owned_params, TrainReport& report);

// On return every rank has the memory of the rank with the highest peak, and
// the highest resident set and driver-level use of any rank.
void ExchangeMemory(Comm& comm, MemoryReport& memory);

// `steps_ms` are the durations of steps 1, 2, ...; the median is that of all
// but the first, unless there is no other.
StepTimes SummarizeSteps(const std::vector<double>& steps_ms,
                         int64_t tokens_per_step);

// Most bytes this process ever had in memory.
int64_t PeakResidentBytes();

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_TRAIN_REPORT_H_
