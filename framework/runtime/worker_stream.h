// A stream that is a worker thread: all streams of the CPU device and the host
// stream of every device.
//
// Threads: a stream's ring is filled by the caller of Launch and emptied by its
// worker, under a mutex. A stream counts the tasks it has completed; the
// release store of that counter is the only happens-before edge from a task to
// tasks of other streams, so that ThreadSanitizer sees a missing Wait.
#ifndef PLO_FRAMEWORK_RUNTIME_WORKER_STREAM_H_
#define PLO_FRAMEWORK_RUNTIME_WORKER_STREAM_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "framework/runtime/device.h"
#include "framework/runtime/ring_queue.h"

namespace plo {

// The first error of any stream of a device.
class ErrorState {
 public:
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  void Set(std::exception_ptr error);
  // An error that Clear() cannot mend: the device itself is lost.
  void SetPermanent(std::exception_ptr error);
  void Clear();
  void Rethrow() const;

 private:
  mutable std::mutex mutex_;
  std::exception_ptr error_;
  bool permanent_ = false;
  std::atomic<bool> failed_{false};
};

// Counts up; threads wait for a value. Reaching a value nobody sleeps for costs
// two atomic operations and no system call; what comes within some microseconds
// is waited for without sleeping.
class CompletionCounter {
 public:
  uint64_t value() const { return value_.load(std::memory_order_acquire); }
  void Advance();
  void WaitFor(uint64_t target);

 private:
  std::atomic<uint64_t> value_{0};
  std::atomic<int> waiters_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

class WorkerStream {
 public:
  // Blocks a worker until a ticket of another stream is complete.
  struct Awaited {
    void (*wait)(void* source, Ticket ticket) = nullptr;
    void* source = nullptr;
    Ticket ticket = 0;
  };

  struct Options {
    StreamKind kind = StreamKind::kHost;
    std::function<void()> start;  // runs first on the worker
    // Where the count of completed tasks is also written; may be null.
    std::atomic<uint64_t>* mirror = nullptr;
  };

  WorkerStream(const Options& options, ErrorState* errors);

  Ticket Launch(const Task& task);
  // `awaited.source` must stay valid until the wait has returned.
  void EnqueueWait(const Awaited& awaited);
  void EnqueueWait(WorkerStream* of, Ticket ticket);

  Ticket launched() const { return launched_; }
  CompletionCounter& completed() { return completed_; }

  // What is queued still runs.
  void RequestStop();
  void Join() { worker_.join(); }

 private:
  struct Item {
    Task task;
    Awaited awaited;  // a wait, where it has a function
  };

  void Push(const Item& item);
  // False when stopped and empty.
  bool Pop(Item& item);
  void Work();

  const Options options_;
  ErrorState* errors_;
  Ticket launched_ = 0;  // the launching thread's
  CompletionCounter completed_;

  std::mutex mutex_;  // guards what follows, but for reads of pushed_
  std::condition_variable filled_;
  RingQueue<Item> ring_;
  std::atomic<uint64_t> pushed_{0};
  uint64_t popped_ = 0;  // the worker's
  bool idle_ = false;
  bool stop_ = false;

  std::thread worker_;
};

}  // namespace plo

#endif  // PLO_FRAMEWORK_RUNTIME_WORKER_STREAM_H_
