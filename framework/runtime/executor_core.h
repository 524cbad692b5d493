// Inside of the executor; included by the executor's own files only.
//
// Threads: everything is the calling thread's except what is marked "worker",
// which belongs to the worker of the launch's stream, and FailureState and
// TraceLog, which are shared. In particular two workers share nothing but the
// plan's waits, so that ThreadSanitizer sees a missing one.
#ifndef PLO_FRAMEWORK_RUNTIME_EXECUTOR_CORE_H_
#define PLO_FRAMEWORK_RUNTIME_EXECUTOR_CORE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/runtime/executor.h"

namespace plo {

class ExecutorCore;
class MemoryCheck;
struct BoundGraph;

// The bytes of an operand, for this rank.
struct BoundRange {
  std::byte* data = nullptr;
  int64_t bytes = 0;
  StorageIndex storage = -1;
  VarId var = kNoId;  // kNoId for a workspace or ring
  bool read = false;
  bool write = false;
};

// A launch with its kernel and addresses.
struct BoundLaunch {
  ExecutorCore* core = nullptr;
  const BoundGraph* graph = nullptr;
  const Launch* launch = nullptr;
  const Op* op = nullptr;  // feeds and fetches: a copy op made for them
  int index = 0;           // in its list
  int position = 0;        // on the compute axis: compute launches before it
  StreamId stream = -1;
  Kernel kernel = nullptr;
  std::vector<BoundRange> ranges;  // of slot 0 of a ring
  // One per ring slot; the n-th run uses number n modulo their count.
  std::vector<KernelContext> contexts;
  std::byte* ring = nullptr;  // slot 0; null for ops
  int64_t slot_bytes = 0;

  bool waited_on = false;  // another stream waits for it
  Ticket last_ticket = 0;  // 0: never issued
  uint64_t runs = 0;       // worker: times its turn came, skipped or not

  bool is_ring() const { return launch->kind != LaunchKind::kOp; }
  bool once_per_step() const { return launch->first_micro_only || is_ring(); }
  std::byte* slot(uint64_t run) const {
    return ring + static_cast<int64_t>(run % contexts.size()) * slot_bytes;
  }
  // Calls the kernel and notes when it ran.
  void RunTraced(KernelContext& context);
  // Start of one of `ranges` in that run.
  std::byte* AddressOf(const BoundRange& range, uint64_t run) const {
    return is_ring() && range.var == kNoId ? slot(run) : range.data;
  }
  // Place of run number `run` in the issue order of its graph.
  uint64_t Sequence(uint64_t run) const;
  // The task body.
  void Execute(const StepInfo& step, void* native_stream);
  // The op and its operands, for messages.
  std::string Describe() const;
  // The exception being handled, with the launch in front of its message.
  std::exception_ptr CaughtError() const;
};

// Launches next to each other in the issue order.
struct Segment {
  std::vector<BoundLaunch*> launches;
  // All on the compute stream and the same in every step, none but the first
  // waits and no other stream waits for one before the last.
  bool repeats = false;
  std::unique_ptr<Recording> recording;  // null: launched one by one
};

struct BoundGraph {
  const Program* program = nullptr;
  const GraphPlan* plan = nullptr;
  std::vector<BoundLaunch> startup;
  std::vector<BoundLaunch> launches;
  std::vector<BoundLaunch*> feeds;    // as GraphPlan::feeds
  std::vector<BoundLaunch*> fetches;  // as GraphPlan::fetches
  // The issue order: that of the first micro-step, of each later one, and of
  // the update.
  std::vector<Segment> first_micro, later_micro, update;
  uint64_t steps = 0;  // issued

  uint64_t launches_per_step() const;
};

// The first error of a run, and from where on nothing runs any more. Launches
// issued before the one that failed still run: an error in a micro-step leaves
// the update of the step before, which runs beside it, whole.
class FailureState {
 public:
  static constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();

  uint64_t sequence() const {
    return sequence_.load(std::memory_order_acquire);
  }
  bool failed() const { return sequence() != kNone; }
  void Set(uint64_t sequence, std::exception_ptr error);
  // Returns the error and forgets it.
  std::exception_ptr Take();

 private:
  std::atomic<uint64_t> sequence_{kNone};
  std::mutex mutex_;
  std::exception_ptr error_;
};

// What ran on one stream.
class TraceLog {
 public:
  struct Entry {
    const BoundLaunch* bound;
    double start_us;
    double duration_us;
    int64_t data_step;
    int64_t span;  // of Device::tracer(), which knows the times; -1: none
  };
  void Add(const Entry& entry) {
    std::lock_guard lock(mutex_);
    entries_.push_back(entry);
  }
  std::vector<Entry> Take() {
    std::lock_guard lock(mutex_);
    return std::exchange(entries_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<Entry> entries_;
};

class ExecutorCore {
 public:
  ExecutorCore(const Program& main_program, Plan the_plan, Device& the_device,
               Comm* the_comm, const ExecutorOptions& the_options,
               const std::vector<const Program*>& the_eval_programs);
  // Waits; errors still pending are logged.
  ~ExecutorCore();
  ExecutorCore(const ExecutorCore&) = delete;
  ExecutorCore& operator=(const ExecutorCore&) = delete;

  void RunStartup();
  StepId Run(const Feeds& feeds);
  std::vector<HostTensor> Fetch(StepId step);
  std::vector<HostTensor> RunEval(int index, const Feeds& feeds);
  void Drain();
  HostTensor ReadVar(std::string_view name);
  void WriteVar(std::string_view name, const HostTensor& value);
  MemoryMeasurement MeasureMemory();
  std::vector<TraceEvent> TakeTrace();

  // Called by workers. Also tells the other ranks.
  void Fail(const BoundLaunch& bound, uint64_t sequence,
            std::exception_ptr error);
  std::byte* arena(Place place) const {
    return place == Place::kDevice ? device_arena : pinned_arena;
  }

  Program program;
  std::vector<Program> eval_programs;
  Plan plan;
  Device& device;
  Comm* const comm;
  const ExecutorOptions options;
  KernelEnv env;

  std::byte* device_arena = nullptr;
  std::byte* pinned_arena = nullptr;
  int64_t guard_bytes = 0;  // canary after the device arena

  std::array<StreamId, kStreamCount> streams;
  std::vector<std::unique_ptr<BoundGraph>> graphs;  // as in the plan
  std::vector<std::unique_ptr<Op>> copy_ops;        // of feeds and fetches

  int64_t data_step = 0;
  FailureState failure;
  std::array<TraceLog, kStreamCount> trace;

 private:
  // What it takes to wait for a step and to tell whether it ran to its end.
  struct StepRecord {
    StepId step = -1;
    std::array<Ticket, kStreamCount> last_tickets{};
    std::array<Ticket, kStreamCount> fetch_tickets{};
    bool failed = false;
  };

  // --- executor_create.cc ---
  void CheckRanks();
  void CheckPlan() const;
  void AllocateArenas();
  void FreeArenas();
  void BindGraph(const Program& of_program, const GraphPlan& graph_plan);
  BoundLaunch Bind(const BoundGraph& graph, const Launch& launch, int index);
  KernelContext BindOp(const BoundGraph& graph, const BoundLaunch& bound) const;
  void BindRing(const BoundGraph& graph, BoundLaunch& bound);
  BoundRange RangeOf(const Operand& operand) const;
  StreamId StreamOf(StreamKind kind);

  // --- executor_issue.cc ---
  void MakeSegments(BoundGraph& graph) const;
  void IssueStep(BoundGraph& graph);
  void Issue(BoundGraph& graph, Segment& segment, int micro_index);
  void Issue(BoundGraph& graph, BoundLaunch& bound, int micro_index);
  void IssueWaits(const BoundGraph& graph, const BoundLaunch& bound);
  void Record(Segment& segment, int micro_index);
  void Replay(BoundGraph& graph, Segment& segment);
  Task MakeTask(BoundLaunch& bound, int micro_index) const;
  void IssueChecked(BoundLaunch& bound, const Task& task, uint64_t sequence);

  // --- executor_run.cc ---
  void WaitForTickets(const std::array<Ticket, kStreamCount>& tickets);
  // Waits for everything issued; errors stay pending.
  void Settle();
  // Fails the oldest step that may have made it, if a kernel left an error in
  // KernelEnv::device_error. The kernel also wrote NaN: the steps in flight
  // skip their updates.
  void CheckDeviceError();
  // The same if the comm failed after its collectives were enqueued.
  void CheckComm();
  // The step has been waited for.
  void NoteEnd(StepId step);
  // The pending error; nothing may be in flight.
  std::exception_ptr TakeFailure();
  void CheckFeeds(const BoundGraph& graph, const Feeds& feeds) const;
  void CopyFeeds(BoundGraph& graph, const Feeds& feeds);
  std::vector<HostTensor> ReadFetches(const BoundGraph& graph,
                                      uint64_t run) const;
  BoundRange PersistentRange(std::string_view name) const;

  std::array<Ticket, kStreamCount> issued_{};  // last ticket by stream
  std::array<StepRecord, kFetchSlots> steps_;
  const BoundGraph* running_ = nullptr;  // the graph last issued
  StepId steps_without_error_ = 0;       // known from device_error
  bool device_error_seen_ = false;
  std::unique_ptr<MemoryCheck> check_;  // null: asynchronous runs
};

}  // namespace plo

#endif  // PLO_FRAMEWORK_RUNTIME_EXECUTOR_CORE_H_
