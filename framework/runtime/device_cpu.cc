// The CPU as a device: memory with limits of its own, and streams that are
// worker threads, so that what runs here is as asynchronous as on a GPU.
#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "framework/ir/error.h"
#include "framework/runtime/device.h"
#include "framework/runtime/host_pages.h"
#include "framework/runtime/worker_stream.h"

namespace plo {
namespace {

// OpenMP threads of the compute stream; `wanted` 0 means all cores.
int ComputeThreads([[maybe_unused]] int wanted) {
#ifdef PLO_TSAN  // ThreadSanitizer does not know OpenMP's barriers.
  return 1;
#else
  if (wanted > 0) return wanted;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return CPU_COUNT(&set);
#endif
}

class CpuDevice : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options) : options_(options) {
    PLO_ENFORCE(options.device_memory_limit >= 0 &&
                    options.host_memory_limit >= 0 &&
                    options.compute_threads >= 0,
                kInvalidArgument, "CPU device options must not be negative");
  }

  ~CpuDevice() override {
    for (auto& stream : streams_) stream->RequestStop();
    for (auto& stream : streams_) stream->Join();
    for (const auto& [data, block] : blocks_) UnmapHostPages(block.pages);
  }

  DeviceKind kind() const override { return DeviceKind::kCpu; }
  std::string name() const override { return "cpu"; }

  void* Allocate(Place place, int64_t bytes) override {
    const bool device = place == Place::kDevice;
    int64_t& used = device ? stats_.device_bytes : stats_.pinned_bytes;
    const int64_t limit =
        device ? options_.device_memory_limit : options_.host_memory_limit;
    CheckMemoryLimit(place, bytes, used, limit);
    const HostPages pages = MapHostPages(bytes);
    blocks_.emplace(pages.data, Block{place, bytes, pages});
    used += bytes;
    ++(device ? stats_.device_allocations : stats_.pinned_allocations);
    return pages.data;
  }

  void Free(Place place, void* data) override {
    auto it = blocks_.find(data);
    PLO_ENFORCE(it != blocks_.end() && it->second.place == place,
                kInvalidArgument, "Free of memory that is not allocated as ",
                Name(place));
    (place == Place::kDevice ? stats_.device_bytes : stats_.pinned_bytes) -=
        it->second.bytes;
    UnmapHostPages(it->second.pages);
    blocks_.erase(it);
  }

  StreamId CreateStream(StreamKind kind) override {
    const int threads = kind == StreamKind::kCompute
                            ? ComputeThreads(options_.compute_threads)
                            : 1;
    WorkerStream::Options options;
    options.kind = kind;
    options.start = [threads] { omp_set_num_threads(threads); };
    streams_.push_back(std::make_unique<WorkerStream>(options, &errors_));
    return static_cast<StreamId>(streams_.size()) - 1;
  }

  Ticket Launch(StreamId stream, const Task& task) override {
    return At(stream).Launch(task);
  }

  std::unique_ptr<Recording> Record(StreamId /*stream*/,
                                    std::span<const Task> /*tasks*/) override {
    return nullptr;
  }
  Ticket Replay(StreamId /*stream*/, Recording& /*recording*/,
                bool /*waited_on*/) override {
    PLO_THROW(kInternal, "the CPU device records nothing");
  }

  void Wait(StreamId waiter, StreamId of, Ticket ticket) override {
    WorkerStream& source = At(of);
    PLO_ENFORCE(ticket <= source.launched(), kInvalidArgument,
                "wait for ticket ", ticket, " of stream ", of,
                ", which has launched ", source.launched());
    if (waiter == of) return;
#ifndef PLO_TSAN  // Would order by luck what a missing wait leaves unordered.
    if (source.completed().value() >= ticket) return;
#endif
    At(waiter).EnqueueWait(&source, ticket);
  }

  void Synchronize(StreamId stream, Ticket ticket) override {
    PLO_ENFORCE(ticket <= At(stream).launched(), kInvalidArgument,
                "synchronize with ticket ", ticket, " of stream ", stream,
                ", which has launched ", At(stream).launched());
    At(stream).completed().WaitFor(ticket);
    errors_.Rethrow();
  }

  void SynchronizeAll() override {
    for (auto& stream : streams_) {
      stream->completed().WaitFor(stream->launched());
    }
    errors_.Rethrow();
  }

  void ClearError() override { errors_.Clear(); }
  bool has_error() const override { return errors_.failed(); }

  void Read(const void* src, void* dst, int64_t bytes) override {
    std::copy_n(static_cast<const std::byte*>(src), bytes,
                static_cast<std::byte*>(dst));
  }
  void Write(const void* src, void* dst, int64_t bytes) override {
    Read(src, dst, bytes);
  }

  void Delay(void*, int microseconds) override {
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
  }

  DeviceStats stats() const override { return stats_; }

 private:
  struct Block {
    Place place;
    int64_t bytes;
    HostPages pages;
  };

  WorkerStream& At(StreamId id) {
    PLO_ENFORCE(id >= 0 && id < static_cast<StreamId>(streams_.size()),
                kInvalidArgument, "no stream ", id);
    return *streams_[static_cast<size_t>(id)];
  }

  const CpuDeviceOptions options_;
  ErrorState errors_;
  std::vector<std::unique_ptr<WorkerStream>> streams_;
  std::map<void*, Block> blocks_;
  DeviceStats stats_;
};

}  // namespace

std::unique_ptr<Device> CreateCpuDevice(const CpuDeviceOptions& options) {
  return std::make_unique<CpuDevice>(options);
}

}  // namespace plo
