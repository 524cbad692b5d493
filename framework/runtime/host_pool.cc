#include "framework/runtime/host_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "framework/ir/error.h"

namespace plo {
namespace {

// Reads one number of a CPU's topology; `otherwise` where there is none.
int ReadTopology(int cpu, const char* file, int otherwise) {
  std::ifstream in(
      StrCat("/sys/devices/system/cpu/cpu", cpu, "/topology/", file));
  int value = otherwise;
  in >> value;
  return in ? value : otherwise;
}

// One CPU of each physical core this process may run on, by package and core,
// so that neighbours share a NUMA node.
std::vector<int> PhysicalCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::map<std::pair<int, int>, int> first_cpu;  // (package, core) -> CPU
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &set)) continue;
      first_cpu.emplace(std::pair(ReadTopology(cpu, "physical_package_id", 0),
                                  ReadTopology(cpu, "core_id", cpu)),
                        cpu);
    }
  }
  std::vector<int> cpus;
  for (const auto& entry : first_cpu) cpus.push_back(entry.second);
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

thread_local bool inside_pool = false;

}  // namespace

struct HostPool::Impl {
  using Function = std::function<void(int64_t, int64_t)>;

  int threads = 1;
  std::vector<std::thread> workers;  // none for a pool of one: runs inline

  std::mutex caller_mutex;  // one ParallelFor at a time

  std::mutex mutex;  // guards what follows
  std::condition_variable started;
  std::condition_variable finished;
  uint64_t generation = 0;
  bool stop = false;
  int running = 0;
  const Function* fn = nullptr;
  int64_t count = 0;
  int64_t grain = 1;
  std::vector<std::exception_ptr> errors;  // by worker

  // Worker i's range: a function of count, grain and threads alone, so that a
  // thread touches the same bytes every time.
  std::pair<int64_t, int64_t> RangeOf(int index) const {
    const int64_t grains = (count + grain - 1) / grain;
    const int64_t base = grains / threads;
    const int64_t extra = grains % threads;
    const int64_t begin = index * base + std::min<int64_t>(index, extra);
    const int64_t end = begin + base + (index < extra ? 1 : 0);
    return {std::min(begin * grain, count), std::min(end * grain, count)};
  }

  void Work(int index) {
    inside_pool = true;
    uint64_t seen = 0;
    std::unique_lock lock(mutex);
    while (true) {
      started.wait(lock, [&] { return stop || generation != seen; });
      if (stop) return;
      seen = generation;
      const auto [begin, end] = RangeOf(index);
      const Function* function = fn;
      lock.unlock();
      std::exception_ptr error;
      if (begin < end) {
        try {
          (*function)(begin, end);
        } catch (...) {
          error = std::current_exception();
        }
      }
      lock.lock();
      errors[static_cast<size_t>(index)] = std::move(error);
      if (--running == 0) finished.notify_one();
    }
  }
};

HostPool::HostPool(const HostPoolOptions& options)
    : impl_(std::make_unique<Impl>()) {
  PLO_ENFORCE(options.threads >= 0 && options.local_world_size >= 1 &&
                  options.local_rank >= 0 &&
                  options.local_rank < options.local_world_size,
              kInvalidArgument, "host pool of ", options.threads,
              " threads for local rank ", options.local_rank, " of ",
              options.local_world_size);
  const std::vector<int> cores = PhysicalCores();
  const int core_count = static_cast<int>(cores.size());
  const int share = std::max(1, core_count / options.local_world_size);
  impl_->threads = options.threads > 0 ? options.threads : share;
  impl_->errors.resize(static_cast<size_t>(impl_->threads));
  if (impl_->threads == 1) return;
  for (int i = 0; i < impl_->threads; ++i) {
    std::thread worker([this, i] { impl_->Work(i); });
    pthread_setname_np(worker.native_handle(), StrCat("plo-pool", i).c_str());
    // More threads than the rank's share would double up on cores: those stay
    // free to move.
    if (options.pin && i < share) {
      cpu_set_t set;
      CPU_ZERO(&set);
      const int core = (options.local_rank * share + i) % core_count;
      CPU_SET(cores[static_cast<size_t>(core)], &set);
      pthread_setaffinity_np(worker.native_handle(), sizeof(set), &set);
    }
    impl_->workers.push_back(std::move(worker));
  }
}

HostPool::~HostPool() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->started.notify_all();
  for (auto& worker : impl_->workers) worker.join();
}

int HostPool::threads() const { return impl_->threads; }

void HostPool::ParallelFor(int64_t count, int64_t grain,
                           const std::function<void(int64_t, int64_t)>& fn) {
  PLO_ENFORCE(count >= 0 && grain > 0, kInvalidArgument, "ParallelFor over ",
              count, " by ", grain);
  if (count == 0) return;
  if (impl_->workers.empty() || inside_pool || count <= grain) {
    fn(0, count);
    return;
  }
  std::lock_guard caller(impl_->caller_mutex);
  std::unique_lock lock(impl_->mutex);
  impl_->fn = &fn;
  impl_->count = count;
  impl_->grain = grain;
  impl_->running = impl_->threads;
  ++impl_->generation;
  impl_->started.notify_all();
  impl_->finished.wait(lock, [&] { return impl_->running == 0; });
  for (auto& error : impl_->errors) {
    if (error) std::rethrow_exception(std::exchange(error, nullptr));
  }
}

}  // namespace plo
