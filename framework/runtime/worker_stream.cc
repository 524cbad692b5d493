#include "framework/runtime/worker_stream.h"

#include <pthread.h>
#include <sched.h>

#include <chrono>
#include <string>
#include <utility>

#include "framework/ir/error.h"

namespace plo {
namespace {

constexpr size_t kInitialRing = 1024;

// To sleep and be woken costs some 10 us, more than most waits last. So a
// waiter looks again and again first, and lets others have its core meanwhile.
constexpr int kLooks = 64;
constexpr std::chrono::microseconds kAwake{50};

inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

// Whether `ready` came true while awake.
template <typename Ready>
bool LookFor(const Ready& ready) {
  for (int i = 0; i < kLooks; ++i) {
    if (ready()) return true;
    Pause();
  }
  const auto begin = std::chrono::steady_clock::now();
  do {
    sched_yield();
    if (ready()) return true;
  } while (std::chrono::steady_clock::now() - begin < kAwake);
  return false;
}

}  // namespace

void ErrorState::Set(std::exception_ptr error) {
  std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
  failed_.store(true, std::memory_order_release);
}

void ErrorState::SetPermanent(std::exception_ptr error) {
  std::lock_guard lock(mutex_);
  if (permanent_) return;
  error_ = std::move(error);
  permanent_ = true;
  failed_.store(true, std::memory_order_release);
}

void ErrorState::Clear() {
  std::lock_guard lock(mutex_);
  if (permanent_) return;
  error_ = nullptr;
  failed_.store(false, std::memory_order_release);
}

void ErrorState::Rethrow() const {
  if (!failed()) return;
  std::exception_ptr error;
  {
    std::lock_guard lock(mutex_);
    error = error_;
  }
  if (error) std::rethrow_exception(error);
}

void CompletionCounter::Advance() {
  // seq_cst on both sides: either the waiter sees the value or this sees the
  // waiter.
  value_.fetch_add(1, std::memory_order_seq_cst);
  if (waiters_.load(std::memory_order_seq_cst) == 0) return;
  { std::lock_guard lock(mutex_); }
  changed_.notify_all();
}

void CompletionCounter::WaitFor(uint64_t target) {
  if (LookFor([&] { return value() >= target; })) return;
  std::unique_lock lock(mutex_);
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  changed_.wait(
      lock, [&] { return value_.load(std::memory_order_seq_cst) >= target; });
  waiters_.fetch_sub(1, std::memory_order_seq_cst);
}

WorkerStream::WorkerStream(const Options& options, ErrorState* errors)
    : options_(options), errors_(errors), ring_(kInitialRing) {
  worker_ = std::thread([this] { Work(); });
  const std::string thread_name = StrCat("plo-", Name(options.kind));
  pthread_setname_np(worker_.native_handle(), thread_name.c_str());
}

Ticket WorkerStream::Launch(const Task& task) {
  Push(Item{task, {}});
  return ++launched_;
}

void WorkerStream::EnqueueWait(const Awaited& awaited) {
  Push(Item{Task{}, awaited});
}

void WorkerStream::EnqueueWait(WorkerStream* of, Ticket ticket) {
  EnqueueWait(Awaited{[](void* source, Ticket wanted) {
                        static_cast<CompletionCounter*>(source)->WaitFor(
                            wanted);
                      },
                      &of->completed_, ticket});
}

void WorkerStream::RequestStop() {
  std::lock_guard lock(mutex_);
  stop_ = true;
  filled_.notify_one();
}

void WorkerStream::Push(const Item& item) {
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    ring_.Push(item);
    pushed_.store(pushed_.load(std::memory_order_relaxed) + 1,
                  std::memory_order_relaxed);
    wake = idle_;
    idle_ = false;
  }
  if (wake) filled_.notify_one();
}

bool WorkerStream::Pop(Item& item) {
  LookFor([&] { return pushed_.load(std::memory_order_relaxed) != popped_; });
  std::unique_lock lock(mutex_);
  while (ring_.empty()) {
    if (stop_) return false;
    idle_ = true;
    filled_.wait(lock);
  }
  idle_ = false;
  ++popped_;
  item = ring_.Pop();
  return true;
}

void WorkerStream::Work() {
  if (options_.start) options_.start();
  Item item;
  uint64_t completed = 0;
  while (Pop(item)) {
    if (item.awaited.wait != nullptr) {
      item.awaited.wait(item.awaited.source, item.awaited.ticket);
      continue;
    }
    if (!errors_->failed()) {
      try {
        item.task.run(item.task.context, item.task.step, nullptr);
      } catch (...) {
        errors_->Set(std::current_exception());
      }
    }
    ++completed;
    if (options_.mirror != nullptr) {
      options_.mirror->store(completed, std::memory_order_release);
    }
    completed_.Advance();
  }
}

}  // namespace plo
