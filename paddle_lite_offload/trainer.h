// Trains the model of a config: what `plo train` and `plo plan` do.
#ifndef PLO_PADDLE_LITE_OFFLOAD_TRAINER_H_
#define PLO_PADDLE_LITE_OFFLOAD_TRAINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "framework/runtime/comm.h"
#include "paddle_lite_offload/batch_source.h"
#include "paddle_lite_offload/engine.h"
#include "paddle_lite_offload/machine.h"
#include "paddle_lite_offload/metrics_log.h"
#include "paddle_lite_offload/train_config.h"
#include "paddle_lite_offload/train_report.h"

namespace plo {

// What --device asks for: auto is the GPU where there is one.
DeviceKind ResolveDevice(const std::string& name);

struct TrainerOptions {
  // Null for one rank; must outlive the trainer.
  Comm* comm = nullptr;
  int local_rank = 0;
  int local_world_size = 1;
  // Called after each step, on every rank.
  std::function<void(const StepMetrics&)> on_step = {};
};

// OpenMP threads of a rank: ranks of one host share its cores, unless the
// launcher says otherwise.
int ComputeThreads(int local_world_size);

// A config that has been validated and planned.
struct PreparedRun {
  TrainConfig config;  // with numbers in the place of auto
  std::string chosen;  // the flags of these; may be none
  std::optional<NamedRates> rates;
  PreparedProgram prepared;
};

// Needs all that `config` lets the machine choose; see offload_choice.h. What
// is wrong with the config is InvalidArgument or Unimplemented, a limit that
// cannot be met OutOfMemory.
PreparedRun PrepareRun(const TrainConfig& config, int world_size,
                       DeviceKind device, const Machine& machine);
// On the machine of this rank, which no other has agreed to.
PreparedRun PrepareRun(const TrainConfig& config, int world_size,
                       DeviceKind device, int local_rank = 0);

// Where a rank of a run with --trace=FILE writes.
std::string TracePath(const std::string& file, int rank);

// One rank of a run. All ranks make the same calls. Thread-compatible.
class Trainer {
 public:
  // Plans and allocates; initial values are written.
  Trainer(const TrainConfig& config, const TrainerOptions& options = {});
  // With what PrepareRun returned for the config. Without it the ranks first
  // agree on what the machine chooses.
  Trainer(const TrainConfig& config, std::optional<PreparedRun> run,
          const TrainerOptions& options);
  ~Trainer();

  // Runs all steps of the config.
  void Run();
  // Of everything run so far; the same on every rank. Throws Internal if the
  // ranks do not hold the same params.
  TrainReport Report();
  // Continues config.prompt by config.generate sampled bytes. Needs no other
  // rank.
  std::string Generate();

  Engine& engine() { return *engine_; }
  // What was chosen and by which rates: lines of a log.
  std::string DescribeChoices() const;

 private:
  PreparedRun PrepareTogether(DeviceKind device) const;
  void Collect(StepId step);
  void SaveTrace();

  TrainConfig config_;
  TrainerOptions options_;
  int rank_;
  int world_size_;
  std::unique_ptr<BatchSource> source_;
  std::string chosen_;
  std::optional<NamedRates> rates_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<MetricsLog> metrics_log_;
  int64_t tokens_per_step_ = 0;  // of all ranks
  TrainOutcome outcome_;
  std::vector<double> steps_ms_;
  double last_collected_ms_ = 0;
};

// The report of a run of `world_size` ranks without running it: no device is
// touched and nothing of the model's size is allocated.
TrainReport PlanReport(const TrainConfig& config, int world_size);

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_TRAINER_H_
