// The seam to an accelerator: memory, in-order streams, waits between them.
//
// A stream runs tasks one after the other and asynchronously to the caller. The
// CPU device gives each stream a worker thread; a CUDA device calls the task at
// once and the task enqueues on the native stream it is given, except on host
// streams, which are worker threads on every device.
#ifndef PLO_FRAMEWORK_RUNTIME_DEVICE_H_
#define PLO_FRAMEWORK_RUNTIME_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "framework/ir/types.h"

namespace plo {

// What changes from one issue of a launch to the next.
struct StepInfo {
  int64_t data_step = 0;  // counts skipped steps too
  int32_t micro_index = 0;
};

// A task is a function and a pointer, so that launching allocates nothing.
// `context` must stay valid until the task has run.
struct Task {
  void (*run)(void* context, const StepInfo& step,
              void* native_stream) = nullptr;
  void* context = nullptr;
  StepInfo step;
  // False promises that no Wait() will name this launch: a device may then
  // spare an event. Synchronize() may, and may then wait for later launches
  // too.
  bool waited_on = true;
};

using StreamId = int32_t;
// Counts the launches on a stream: ticket n is complete when the n-th launch
// is. Ticket 0 is always complete.
using Ticket = uint64_t;

struct DeviceStats {
  int64_t device_bytes = 0;  // allocated now
  int64_t pinned_bytes = 0;
  int64_t device_allocations = 0;  // number of Allocate calls ever
  int64_t pinned_allocations = 0;
  // Part of pinned_bytes that the driver refused to pin: its copies are slow.
  int64_t pageable_bytes = 0;
  // What the driver says is used of the whole GPU, by other processes too; null
  // on the CPU.
  std::optional<int64_t> driver_used_bytes;
  // The same before anything was allocated: the context, code, other processes.
  std::optional<int64_t> driver_context_bytes;
  std::optional<int64_t> driver_free_bytes = {};  // now, of the whole GPU
};

// Where kernels of an accelerator, which cannot throw, leave the first error of
// their data; in pinned memory. The executor reads it wherever it waits.
struct DeviceErrorSlot {
  enum Kind : int32_t { kNone, kIdOutOfRange };
  int32_t kind = kNone;  // written last
  int32_t op = -1;       // OpId; -1 while there is no error
  int64_t element = 0;   // of the op's index operand
  int64_t value = 0;
  int64_t bound = 0;
};

// Times of work that a task enqueues and that runs after the task has returned.
// Used by the launching thread alone.
class StreamTracer {
 public:
  struct Span {
    double start_us = 0;  // on std::chrono::steady_clock
    double duration_us = 0;
  };

  virtual ~StreamTracer() = default;
  // Around the enqueuing. Profilers show `name`.
  virtual int64_t Begin(void* native_stream, const char* name) = 0;
  virtual void End(int64_t span) = 0;
  // False while the work runs. Otherwise the span is forgotten.
  virtual bool Take(int64_t span, Span& result) = 0;
};

// What tasks enqueue, recorded once to be run again and again at the cost of
// one launch: a CUDA graph. Freed before its device, when it does not run.
class Recording {
 public:
  virtual ~Recording() = default;
};

// Thread-compatible; the tasks run on other threads.
class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  virtual std::string name() const = 0;

  // 4096-byte aligned. Throws OutOfMemory naming the place, the bytes and the
  // limit. kPinned memory is exactly `bytes`, rounded up to whole pages only.
  virtual void* Allocate(Place place, int64_t bytes) = 0;
  virtual void Free(Place place, void* data) = 0;

  virtual StreamId CreateStream(StreamKind kind) = 0;
  // Never blocks on the work of the stream.
  virtual Ticket Launch(StreamId stream, const Task& task) = 0;
  // Calls the tasks, which enqueue nothing: what they would have enqueued, one
  // after the other, is the recording. Null where the device has no such thing
  // or the driver refuses. Rethrows the first error of a task.
  virtual std::unique_ptr<Recording> Record(StreamId stream,
                                            std::span<const Task> tasks) = 0;
  // A launch, the work of which is that of a recording made for the stream.
  virtual Ticket Replay(StreamId stream, Recording& recording,
                        bool waited_on) = 0;
  // Later launches on `waiter` start after `ticket` of `of` is complete.
  virtual void Wait(StreamId waiter, StreamId of, Ticket ticket) = 0;
  // Blocks the caller. Rethrows the first error any task threw.
  virtual void Synchronize(StreamId stream, Ticket ticket) = 0;
  // Blocks until all streams are idle; rethrows like Synchronize.
  virtual void SynchronizeAll() = 0;
  // After a task throws, tasks launched on any stream complete without running
  // until this is called.
  virtual void ClearError() = 0;
  virtual bool has_error() const = 0;

  // Blocking copies between caller's memory and either place, or within them;
  // for feeds, fetches, params, checks. Not ordered with streams.
  virtual void Read(const void* src, void* dst, int64_t bytes) = 0;
  virtual void Write(const void* src, void* dst, int64_t bytes) = 0;

  // For tests, in a task: what it enqueues from now on starts that much later.
  // `native_stream` is the task's.
  virtual void Delay(void* native_stream, int microseconds) = 0;
  // Null where tasks do their work themselves: the caller can time them.
  virtual StreamTracer* tracer() { return nullptr; }
  // Null where kernels throw.
  virtual DeviceErrorSlot* error_slot() { return nullptr; }

  virtual DeviceStats stats() const = 0;
};

struct CpuDeviceOptions {
  int64_t device_memory_limit = 0;  // bytes; 0 means none
  int64_t host_memory_limit = 0;
  int compute_threads = 0;  // OpenMP threads of the compute stream; 0: cores
};
std::unique_ptr<Device> CreateCpuDevice(const CpuDeviceOptions& options = {});

struct CudaDeviceOptions {
  int ordinal = 0;
  int64_t device_memory_limit = 0;  // bytes of Allocate(); 0 means none
  int64_t host_memory_limit = 0;
  // Memory that the driver refuses to pin is an error; otherwise it stays
  // pageable, with a warning.
  bool require_pinned = false;
};
// Throws FailedPrecondition, with the reason, where plo is built without CUDA,
// no driver or GPU is present, or the GPU is older than sm_80.
std::unique_ptr<Device> CreateCudaDevice(const CudaDeviceOptions& options = {});
// Why the first GPU cannot be used; empty when it can.
std::string CudaDeviceProblem();
inline bool CudaDeviceAvailable() { return CudaDeviceProblem().empty(); }
// Its name, "NVIDIA H200"; empty where it cannot be used.
std::string CudaDeviceModel();

}  // namespace plo

#endif  // PLO_FRAMEWORK_RUNTIME_DEVICE_H_
