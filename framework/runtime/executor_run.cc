// Executor: running launches, waiting for steps, and their errors.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>

#include "framework/ir/error.h"
#include "framework/runtime/executor_core.h"
#include "framework/runtime/memory_check.h"
#include "glog/logging.h"

#ifdef PLO_TSAN
// ThreadSanitizer cannot see into generated code (oneDNN); the executor says
// what each kernel is about to touch.
extern "C" {
void __tsan_read_range(void* address, unsigned long size);
void __tsan_write_range(void* address, unsigned long size);
}
#endif

namespace plo {
namespace {

double NowUs() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// What the message of the CPU's kernel calls an index of the op.
std::string_view IndexNoun(const Op& op) {
  for (const Slot& slot : op.inputs) {
    if (slot.name == "ids") return "token id";
    if (slot.name == "labels") return "label";
  }
  return "index";
}

}  // namespace

// --- Launches, on their workers ---

uint64_t BoundLaunch::Sequence(uint64_t run) const {
  if (launch->section == Section::kStartup) {
    return static_cast<uint64_t>(index);
  }
  const auto micro_count = static_cast<uint64_t>(graph->plan->micro_count);
  const auto repeats = static_cast<uint64_t>(graph->plan->accumulate_steps);
  const auto place = static_cast<uint64_t>(index);
  if (place >= micro_count) {
    return run * graph->launches_per_step() + repeats * micro_count +
           (place - micro_count);
  }
  const uint64_t per_step = once_per_step() ? 1 : repeats;
  return run / per_step * graph->launches_per_step() +
         run % per_step * micro_count + place;
}

void BoundLaunch::Execute(const StepInfo& step, void* native_stream) {
  const uint64_t run = runs++;
  const uint64_t sequence = Sequence(run);
  if (sequence >= core->failure.sequence()) return;
  const ExecutorOptions& options = core->options;
  try {
    if (options.delay_us) {
      const int us = options.delay_us(launch->stream, launch->op);
      if (us > 0) core->device.Delay(native_stream, us);
    }
#ifdef PLO_TSAN
    for (const BoundRange& range : ranges) {
      const auto size = static_cast<unsigned long>(range.bytes);
      if (range.write) {
        __tsan_write_range(AddressOf(range, run), size);
      } else {
        __tsan_read_range(AddressOf(range, run), size);
      }
    }
#endif
    KernelContext& context = contexts[run % contexts.size()];
    context.Begin(step, native_stream);
    if (options.trace) {
      RunTraced(context);
    } else {
      kernel(context);
    }
  } catch (...) {
    core->Fail(*this, sequence, CaughtError());
  }
}

void BoundLaunch::RunTraced(KernelContext& context) {
  TraceLog::Entry entry{this, NowUs(), 0, context.step().data_step, -1};
  void* const native_stream = context.native_stream();
  StreamTracer* const tracer =
      native_stream != nullptr ? core->device.tracer() : nullptr;
  if (tracer == nullptr) {
    kernel(context);
    entry.duration_us = NowUs() - entry.start_us;
  } else {
    entry.span = tracer->Begin(native_stream, op->type.c_str());
    try {
      kernel(context);
    } catch (...) {
      tracer->End(entry.span);
      throw;
    }
    tracer->End(entry.span);
  }
  core->trace[static_cast<size_t>(launch->stream)].Add(entry);
}

std::exception_ptr BoundLaunch::CaughtError() const {
  const auto make = [&](const Error& error) {
    return std::make_exception_ptr(error.WithContext(Describe()));
  };
  try {
    throw;
  } catch (const Error& error) {
    return make(error);
  } catch (const std::bad_alloc&) {
    return make(Error(ErrorCode::kOutOfMemory, "host memory is exhausted"));
  } catch (const std::exception& error) {
    return make(Error(ErrorCode::kInternal, error.what()));
  } catch (...) {
    return make(Error(ErrorCode::kInternal, "unknown exception"));
  }
}

std::string BoundLaunch::Describe() const {
  const Program& program = *graph->program;
  if (is_ring()) {
    return StrCat(launch->kind == LaunchKind::kFeed ? "feed " : "fetch ",
                  plo::Describe(program.var(launch->var)));
  }
  std::string out = plo::Describe(*op);
  const auto add = [&](const std::vector<Slot>& slots, std::string_view what) {
    const char* separator = " ";
    for (const Slot& slot : slots) {
      for (const VarId id : slot.vars) {
        if (*separator == ' ') out += what;
        out += separator + slot.name + "=" + plo::Describe(program.var(id));
        separator = ", ";
      }
    }
  };
  add(op->inputs, " of");
  add(op->outputs, " to");
  return out;
}

// --- Errors ---

void FailureState::Set(uint64_t sequence, std::exception_ptr error) {
  std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
  if (sequence < sequence_.load(std::memory_order_relaxed)) {
    sequence_.store(sequence, std::memory_order_release);
  }
}

std::exception_ptr FailureState::Take() {
  std::lock_guard lock(mutex_);
  sequence_.store(kNone, std::memory_order_release);
  return std::exchange(error_, nullptr);
}

void ExecutorCore::Fail(const BoundLaunch& bound, uint64_t sequence,
                        std::exception_ptr error) {
  failure.Set(sequence, std::move(error));
  if (comm == nullptr) return;
  // The ranks that wait for this one's part must not wait in vain.
  try {
    comm->Abort(StrCat("rank ", env.rank, " failed in ", bound.Describe()));
  } catch (const std::exception& abort_error) {
    LOG(ERROR) << "abort of the other ranks failed: " << abort_error.what();
  }
}

// --- Running ---

void ExecutorCore::RunStartup() {
  Drain();
  BoundGraph& graph = *graphs[0];
  running_ = &graph;
  for (BoundLaunch& bound : graph.startup) {
    // Serial: each waits for the one before, whatever its stream.
    const Task task = MakeTask(bound, 0);
    Ticket& issued = issued_[static_cast<size_t>(bound.launch->stream)];
    if (check_ != nullptr) {
      IssueChecked(bound, task, bound.Sequence(0));
    } else {
      issued = device.Launch(bound.stream, task);
      device.Synchronize(bound.stream, issued);
    }
    bound.last_ticket = issued;
    if (failure.failed()) break;
  }
  Settle();
  if (failure.failed()) std::rethrow_exception(TakeFailure());
}

StepId ExecutorCore::Run(const Feeds& feeds) {
  BoundGraph& graph = *graphs[0];
  CheckFeeds(graph, feeds);
  const auto step = static_cast<StepId>(graph.steps);
  if (step >= kStepsInFlight) {
    const StepId ended = step - kStepsInFlight;
    WaitForTickets(
        steps_[static_cast<size_t>(ended % kFetchSlots)].last_tickets);
    NoteEnd(ended);
  }
  if (failure.failed()) Drain();
  CopyFeeds(graph, feeds);
  IssueStep(graph);
  StepRecord& record = steps_[static_cast<size_t>(step % kFetchSlots)];
  record.step = step;
  record.last_tickets = issued_;
  record.failed = false;
  record.fetch_tickets.fill(0);
  for (const BoundLaunch* fetch : graph.fetches) {
    record.fetch_tickets[static_cast<size_t>(fetch->launch->stream)] =
        fetch->last_ticket;
  }
  ++data_step;
  return step;
}

// --- Waiting ---

void ExecutorCore::WaitForTickets(
    const std::array<Ticket, kStreamCount>& tickets) {
  for (size_t i = 0; i < streams.size(); ++i) {
    if (streams[i] < 0) continue;
    try {
      device.Synchronize(streams[i], tickets[i]);
    } catch (...) {
      // Kernels report through Fail(); this is the device itself.
      failure.Set(0, std::current_exception());
      device.ClearError();
    }
  }
  CheckDeviceError();
  CheckComm();
}

void ExecutorCore::CheckComm() {
  // On the CPU the collectives themselves throw.
  if (comm == nullptr || device.kind() == DeviceKind::kCpu) return;
  try {
    comm->ThrowIfFailed();
  } catch (const Error&) {
    failure.Set(static_cast<uint64_t>(steps_without_error_) *
                    graphs[0]->launches_per_step(),
                std::current_exception());
  }
}

void ExecutorCore::Settle() {
  WaitForTickets(issued_);
  NoteEnd(static_cast<StepId>(graphs[0]->steps) - 1);
}

void ExecutorCore::NoteEnd(StepId step) {
  if (!device_error_seen_) {
    steps_without_error_ = std::max(steps_without_error_, step + 1);
  }
}

void ExecutorCore::CheckDeviceError() {
  DeviceErrorSlot* const slot = env.device_error;
  if (slot == nullptr || device_error_seen_) return;
  const int32_t kind = std::atomic_ref(slot->kind).load();
  if (kind == DeviceErrorSlot::kNone) return;
  device_error_seen_ = true;
  const auto sequence = static_cast<uint64_t>(steps_without_error_) *
                        graphs[0]->launches_per_step();
  for (const auto* launches : {&running_->startup, &running_->launches}) {
    for (const BoundLaunch& bound : *launches) {
      if (bound.is_ring() || bound.op->id != slot->op) continue;
      const Error error(
          ErrorCode::kInvalidArgument,
          StrCat(IndexNoun(*bound.op), " ", slot->value, " at position ",
                 slot->element, " is out of range [0, ", slot->bound, ")"));
      Fail(bound, sequence,
           std::make_exception_ptr(error.WithContext(bound.Describe())));
      return;
    }
  }
  failure.Set(sequence, std::make_exception_ptr(
                            Error(ErrorCode::kInternal,
                                  StrCat("a kernel of unknown op ", slot->op,
                                         " reports an index out of range"))));
}

std::exception_ptr ExecutorCore::TakeFailure() {
  if (env.device_error != nullptr) *env.device_error = {};
  device_error_seen_ = false;
  return failure.Take();
}

void ExecutorCore::Drain() {
  Settle();
  if (!failure.failed()) return;
  // Steps that the failure reached have no values to fetch.
  const uint64_t per_step = graphs[0]->launches_per_step();
  for (StepRecord& record : steps_) {
    const auto end = static_cast<uint64_t>(record.step + 1) * per_step;
    if (record.step >= 0 && failure.sequence() < end) record.failed = true;
  }
  std::rethrow_exception(TakeFailure());
}

std::vector<HostTensor> ExecutorCore::Fetch(StepId step) {
  BoundGraph& graph = *graphs[0];
  const auto next = static_cast<StepId>(graph.steps);
  PLO_ENFORCE(step >= 0 && step < next, kFailedPrecondition, "step ", step,
              " has not been run; the next is ", next);
  PLO_ENFORCE(next - step <= kFetchSlots, kFailedPrecondition,
              "the values of step ", step, " are gone: only those of the last ",
              kFetchSlots, " steps are kept, and ", next, " have been run");
  const StepRecord& record = steps_[static_cast<size_t>(step % kFetchSlots)];
  WaitForTickets(record.fetch_tickets);
  NoteEnd(step);
  const uint64_t end =
      static_cast<uint64_t>(step + 1) * graph.launches_per_step();
  if (failure.sequence() < end) Drain();
  PLO_ENFORCE(!record.failed, kFailedPrecondition, "step ", step,
              " failed: it has no values");
  return ReadFetches(graph, static_cast<uint64_t>(step));
}

std::vector<HostTensor> ExecutorCore::RunEval(int index, const Feeds& feeds) {
  PLO_ENFORCE(index >= 0 && index < static_cast<int>(eval_programs.size()),
              kInvalidArgument, "eval program ", index, " of ",
              eval_programs.size());
  BoundGraph& graph = *graphs[static_cast<size_t>(index) + 1];
  CheckFeeds(graph, feeds);
  Drain();
  CopyFeeds(graph, feeds);
  IssueStep(graph);
  Settle();
  if (failure.failed()) std::rethrow_exception(TakeFailure());
  return ReadFetches(graph, graph.steps - 1);
}

// --- Data in and out ---

void ExecutorCore::CheckFeeds(const BoundGraph& graph,
                              const Feeds& feeds) const {
  for (const VarId id : graph.plan->feeds) {
    const Var& var = graph.program->var(id);
    const auto it = feeds.find(var.name);
    PLO_ENFORCE(it != feeds.end(), kInvalidArgument, "feed ", Describe(var),
                " of program '", graph.program->name, "' is missing");
    const HostTensor& value = it->second;
    PLO_ENFORCE(value.dtype == var.dtype && value.shape == var.shape &&
                    static_cast<int64_t>(value.data.size()) == var.bytes(),
                kInvalidArgument, "feed ", Describe(var), " is given ",
                value.dtype, " ", value.shape, " in ", value.data.size(),
                " bytes");
  }
  if (feeds.size() == graph.plan->feeds.size()) return;
  for (const auto& feed : feeds) {
    const VarId id = graph.program->FindVar(feed.first);
    bool known = false;
    for (const VarId feed_id : graph.plan->feeds) known |= feed_id == id;
    PLO_ENFORCE(known, kInvalidArgument, "program '", graph.program->name,
                "' has no feed '", feed.first, "'");
  }
}

void ExecutorCore::CopyFeeds(BoundGraph& graph, const Feeds& feeds) {
  for (BoundLaunch* feed : graph.feeds) {
    const Var& var = graph.program->var(feed->launch->var);
    const HostTensor& value = feeds.find(var.name)->second;
    std::byte* slot = feed->slot(graph.steps);
    if (!value.data.empty()) {
      std::memcpy(slot, value.data.data(), value.data.size());
    }
    if (check_ != nullptr) {
      BoundRange range = feed->ranges[0];
      range.data = slot;
      check_->NoteWrite(range);
    }
  }
}

std::vector<HostTensor> ExecutorCore::ReadFetches(const BoundGraph& graph,
                                                  uint64_t run) const {
  std::vector<HostTensor> values;
  values.reserve(graph.fetches.size());
  for (const BoundLaunch* fetch : graph.fetches) {
    const Var& var = graph.program->var(fetch->launch->var);
    HostTensor& value = values.emplace_back();
    value.dtype = var.dtype;
    value.shape = var.shape;
    const std::byte* slot = fetch->slot(run);
    value.data.assign(slot, slot + fetch->slot_bytes);
  }
  return values;
}

}  // namespace plo
