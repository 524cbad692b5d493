// A fixed pool of threads on cores of their own, for the host Adam.
#ifndef PLO_FRAMEWORK_RUNTIME_HOST_POOL_H_
#define PLO_FRAMEWORK_RUNTIME_HOST_POOL_H_

#include <cstdint>
#include <functional>
#include <memory>

namespace plo {

struct HostPoolOptions {
  // 0: the physical cores of this process's affinity mask divided by
  // local_world_size, at least one. OMP_NUM_THREADS plays no part.
  int threads = 0;
  int local_rank = 0;  // ranks of one host take disjoint cores
  int local_world_size = 1;
  bool pin = true;
};

class HostPool {
 public:
  explicit HostPool(const HostPoolOptions& options = {});
  ~HostPool();
  int threads() const;
  // Calls fn(begin, end) on disjoint ranges that cover [0, count). Range
  // boundaries are multiples of `grain`. Blocks; rethrows the first exception.
  // One caller at a time; further callers wait.
  void ParallelFor(int64_t count, int64_t grain,
                   const std::function<void(int64_t, int64_t)>& fn);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace plo

#endif  // PLO_FRAMEWORK_RUNTIME_HOST_POOL_H_
