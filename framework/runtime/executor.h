// Runs plans: Create allocates everything once, Run only enqueues.
#ifndef PLO_FRAMEWORK_RUNTIME_EXECUTOR_H_
#define PLO_FRAMEWORK_RUNTIME_EXECUTOR_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "framework/ir/program.h"
#include "framework/plan/plan.h"
#include "framework/runtime/comm.h"
#include "framework/runtime/device.h"
#include "framework/runtime/kernel.h"

namespace plo {

// A tensor in the caller's memory.
struct HostTensor {
  DType dtype = DType::kFp32;
  Shape shape;
  std::vector<std::byte> data;

  template <typename T>
  static HostTensor Of(DType dtype, Shape shape, const std::vector<T>& values);
  // The elements converted to double, whatever the dtype.
  std::vector<double> ToDoubles() const;
};

using Feeds = std::map<std::string, HostTensor, std::less<>>;
using StepId = int64_t;

struct ExecutorOptions {
  bool check_races = false;  // CheckRaces at Create
  // Runs op by op, and after each compares all bytes of both arenas outside the
  // op's declared writes with what they were: an op that writes elsewhere, or
  // past its workspace, throws Internal naming it. For tests: slow.
  bool verify_writes = false;
  // Fills ranges with NaN bytes as soon as their storage is dead (serial runs).
  bool poison_freed = false;
  // Fills the device arena with a canary so that measured_peak_bytes can be
  // read back.
  bool canary = true;
  bool trace = false;
  // Records runs of compute ops in the first step and replays them afterwards,
  // where the device can (CUDA graphs). Not with verify_writes, poison_freed,
  // trace or delay_us, which look at single ops.
  bool replay = true;
  // For kernels that run on the host; must outlive the executor. Null: they run
  // on the worker of the host stream alone.
  HostPool* host_pool = nullptr;
  // For tests: microseconds to sleep before each task of a stream.
  std::function<int(StreamKind, OpId)> delay_us;
  int64_t initial_data_step = 0;
};

struct MemoryMeasurement {
  // Highest arena byte that no longer holds the canary, plus one.
  int64_t measured_peak_bytes = 0;
  // Most bytes live at once, recomputed from the operands actually launched.
  int64_t live_peak_bytes = 0;
  CategoryBytes by_category{};
  int64_t arena_bytes = 0;
  int64_t pinned_bytes = 0;
  DeviceStats device;
};

struct TraceEvent {
  std::string name;
  StreamKind stream;
  double start_us;
  double duration_us;
  int64_t data_step;
  // That a copy moves; of other launches, of the operands read and written.
  int64_t bytes = 0;
};

// Thread-compatible. Not movable: tasks in flight point into it.
class Executor {
 public:
  // `program` (and the eval programs the plan was made with) are copied;
  // `device` and `comm` must outlive the executor. `comm` may be null for one
  // rank. Throws OutOfMemory, FailedPrecondition (ranks with different
  // programs), Unimplemented (an op without a kernel here).
  static std::unique_ptr<Executor> Create(
      const Program& program, Plan plan, Device& device, Comm* comm,
      const ExecutorOptions& options = {},
      const std::vector<const Program*>& eval_programs = {});
  ~Executor();  // drains; errors still pending are logged

  // Writes the initial values.
  void RunStartup();

  // Enqueues one optimizer step (accumulate_steps micro-steps and the update).
  // Blocks only while kStepsInFlight steps are pending. `feeds` must hold every
  // feed, with the program's dtype and shape; they are copied before the call
  // returns. Throws InvalidArgument naming feed and shapes, and rethrows errors
  // of earlier steps; the executor stays usable: params and states are those
  // of the last complete update.
  StepId Run(const Feeds& feeds);

  // The fetched values of a step, in the order of PlanOptions::fetches. Waits
  // for them only. A step's values are kept for kFetchSlots steps; throws
  // FailedPrecondition after that.
  std::vector<HostTensor> Fetch(StepId step);

  // Runs eval program `index` on the current params and returns its fetches.
  std::vector<HostTensor> RunEval(int index, const Feeds& feeds);

  // Completes all pending work, the last update included.
  void Drain();

  // Drains, then copies a persistent var (param, state) out or in, by name.
  // Views and, on this rank, shards work too. Throws NotFound,
  // InvalidArgument.
  HostTensor ReadVar(std::string_view name);
  void WriteVar(std::string_view name, const HostTensor& value);

  int64_t data_step() const;
  void set_data_step(int64_t step);

  const Plan& plan() const;
  const Program& program() const;

  // Drains.
  MemoryMeasurement MeasureMemory();
  // Events since the last call, when tracing.
  std::vector<TraceEvent> TakeTrace();

 private:
  struct Impl;
  explicit Executor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace plo

#endif  // PLO_FRAMEWORK_RUNTIME_EXECUTOR_H_
