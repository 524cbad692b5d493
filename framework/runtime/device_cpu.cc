// The CPU as a device: memory with limits of its own, and streams that are
// worker threads, so that what runs here is as asynchronous as on a GPU.
//
// Threads: a stream's ring is filled by the caller of Launch and emptied by its
// worker, under a mutex. A stream counts the tasks it has completed; the
// release store of that counter is the only happens-before edge from a task to
// tasks of other streams, so that ThreadSanitizer sees a missing Wait.
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "framework/ir/error.h"
#include "framework/runtime/device.h"

namespace plo {
namespace {

constexpr int64_t kPageBytes = 4096;
constexpr int64_t kHugePageBytes = 2 << 20;
constexpr size_t kInitialRing = 1024;  // grows by doubling

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

// The first error of any stream.
class ErrorState {
 public:
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  void Set(std::exception_ptr error) {
    std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
    failed_.store(true, std::memory_order_release);
  }
  void Clear() {
    std::lock_guard lock(mutex_);
    error_ = nullptr;
    failed_.store(false, std::memory_order_release);
  }
  void Rethrow() const {
    if (!failed()) return;
    std::exception_ptr error;
    {
      std::lock_guard lock(mutex_);
      error = error_;
    }
    if (error) std::rethrow_exception(error);
  }

 private:
  mutable std::mutex mutex_;
  std::exception_ptr error_;
  std::atomic<bool> failed_{false};
};

// Counts up; threads wait for a value. Reaching a value nobody waits for costs
// two atomic operations and no system call.
class CompletionCounter {
 public:
  uint64_t value() const { return value_.load(std::memory_order_acquire); }

  void Advance() {
    // seq_cst on both sides: either the waiter sees the value or this sees the
    // waiter.
    value_.fetch_add(1, std::memory_order_seq_cst);
    if (waiters_.load(std::memory_order_seq_cst) == 0) return;
    { std::lock_guard lock(mutex_); }
    changed_.notify_all();
  }

  void WaitFor(uint64_t target) {
    if (value() >= target) return;
    std::unique_lock lock(mutex_);
    waiters_.fetch_add(1, std::memory_order_seq_cst);
    changed_.wait(
        lock, [&] { return value_.load(std::memory_order_seq_cst) >= target; });
    waiters_.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  std::atomic<uint64_t> value_{0};
  std::atomic<int> waiters_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

class CpuStream {
 public:
  CpuStream(StreamKind kind, int omp_threads, ErrorState* errors)
      : errors_(errors), ring_(kInitialRing) {
    worker_ = std::thread([this, omp_threads] { Work(omp_threads); });
    const std::string thread_name = StrCat("plo-", Name(kind));
    pthread_setname_np(worker_.native_handle(), thread_name.c_str());
  }

  Ticket Launch(const Task& task) {
    Push(Item{task, nullptr, 0});
    return ++launched_;
  }
  void EnqueueWait(CpuStream* of, Ticket ticket) {
    Push(Item{Task{}, of, ticket});
  }

  Ticket launched() const { return launched_; }
  CompletionCounter& completed() { return completed_; }

  // What is queued still runs.
  void RequestStop() {
    std::lock_guard lock(mutex_);
    stop_ = true;
    filled_.notify_one();
  }
  void Join() { worker_.join(); }

 private:
  // A task, or a wait for `ticket` of `wait_of`.
  struct Item {
    Task task;
    CpuStream* wait_of = nullptr;
    Ticket ticket = 0;
  };

  void Push(const Item& item) {
    bool wake = false;
    {
      std::lock_guard lock(mutex_);
      if (tail_ - head_ == ring_.size()) Grow();
      ring_[tail_++ & (ring_.size() - 1)] = item;
      wake = idle_;
      idle_ = false;
    }
    if (wake) filled_.notify_one();
  }

  void Grow() {
    std::vector<Item> larger(ring_.size() * 2);
    for (size_t i = head_; i != tail_; ++i) {
      larger[i & (larger.size() - 1)] = ring_[i & (ring_.size() - 1)];
    }
    ring_.swap(larger);
  }

  // False when stopped and empty.
  bool Pop(Item& item) {
    std::unique_lock lock(mutex_);
    while (head_ == tail_) {
      if (stop_) return false;
      idle_ = true;
      filled_.wait(lock);
    }
    idle_ = false;
    item = ring_[head_++ & (ring_.size() - 1)];
    return true;
  }

  void Work(int omp_threads) {
    omp_set_num_threads(omp_threads);
    Item item;
    while (Pop(item)) {
      if (item.wait_of != nullptr) {
        item.wait_of->completed_.WaitFor(item.ticket);
        continue;
      }
      if (!errors_->failed()) {
        try {
          item.task.run(item.task.context, item.task.step, nullptr);
        } catch (...) {
          errors_->Set(std::current_exception());
        }
      }
      completed_.Advance();
    }
  }

  ErrorState* errors_;
  Ticket launched_ = 0;  // the launching thread's
  CompletionCounter completed_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable filled_;
  std::vector<Item> ring_;  // power of two
  size_t head_ = 0;
  size_t tail_ = 0;
  bool idle_ = false;
  bool stop_ = false;

  std::thread worker_;
};

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
    for (const auto& [data, block] : blocks_) munmap(data, block.mapped);
  }

  DeviceKind kind() const override { return DeviceKind::kCpu; }
  std::string name() const override { return "cpu"; }

  void* Allocate(Place place, int64_t bytes) override {
    PLO_ENFORCE(bytes > 0, kInvalidArgument, "allocation of ", bytes, " bytes");
    const bool device = place == Place::kDevice;
    int64_t& used = device ? stats_.device_bytes : stats_.pinned_bytes;
    const int64_t limit =
        device ? options_.device_memory_limit : options_.host_memory_limit;
    PLO_ENFORCE(limit == 0 || bytes <= limit - used, kOutOfMemory, Name(place),
                " memory: ", bytes, " bytes asked for, ", used,
                " in use, the limit is ", limit);
    const size_t mapped =
        static_cast<size_t>((bytes + kPageBytes - 1) / kPageBytes * kPageBytes);
    void* data = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    PLO_ENFORCE(data != MAP_FAILED, kOutOfMemory, Name(place),
                " memory: ", bytes, " bytes asked for, the system has no more");
    if (bytes >= kHugePageBytes) madvise(data, mapped, MADV_HUGEPAGE);
    blocks_.emplace(data, Block{place, bytes, mapped});
    used += bytes;
    ++(device ? stats_.device_allocations : stats_.pinned_allocations);
    return data;
  }

  void Free(Place place, void* data) override {
    auto it = blocks_.find(data);
    PLO_ENFORCE(it != blocks_.end() && it->second.place == place,
                kInvalidArgument, "Free of memory that is not allocated as ",
                Name(place));
    (place == Place::kDevice ? stats_.device_bytes : stats_.pinned_bytes) -=
        it->second.bytes;
    munmap(data, it->second.mapped);
    blocks_.erase(it);
  }

  StreamId CreateStream(StreamKind kind) override {
    const int threads = kind == StreamKind::kCompute
                            ? ComputeThreads(options_.compute_threads)
                            : 1;
    streams_.push_back(std::make_unique<CpuStream>(kind, threads, &errors_));
    return static_cast<StreamId>(streams_.size()) - 1;
  }

  Ticket Launch(StreamId stream, const Task& task) override {
    return At(stream).Launch(task);
  }

  void Wait(StreamId waiter, StreamId of, Ticket ticket) override {
    CpuStream& source = At(of);
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

  DeviceStats stats() const override { return stats_; }

 private:
  struct Block {
    Place place;
    int64_t bytes;
    size_t mapped;
  };

  CpuStream& At(StreamId id) {
    PLO_ENFORCE(id >= 0 && id < static_cast<StreamId>(streams_.size()),
                kInvalidArgument, "no stream ", id);
    return *streams_[static_cast<size_t>(id)];
  }

  const CpuDeviceOptions options_;
  ErrorState errors_;
  std::vector<std::unique_ptr<CpuStream>> streams_;
  std::map<void*, Block> blocks_;
  DeviceStats stats_;
};

}  // namespace

std::unique_ptr<Device> CreateCpuDevice(const CpuDeviceOptions& options) {
  return std::make_unique<CpuDevice>(options);
}

}  // namespace plo
