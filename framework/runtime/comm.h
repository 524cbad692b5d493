// Collectives among the ranks of a run.
//
// Calls block the calling thread (the worker of the comm stream) until this
// rank's part is complete; a CUDA comm enqueues on `native_stream` and returns.
// All ranks make the same calls in the same order. Reductions of floating data
// exchange slices, sum in rank order in fp32 and round once, so that a result
// depends on neither timing nor topology: element i of any reduction is
// round(((x0 + x1) + x2) + ...). NCCL's sums are as good a function of operands
// and ranks, but with more than two ranks the order is its own.
#ifndef PLO_FRAMEWORK_RUNTIME_COMM_H_
#define PLO_FRAMEWORK_RUNTIME_COMM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "framework/ir/types.h"

namespace plo {

enum class Reduction : uint8_t { kSum, kMax };

// Every call throws Unavailable, naming the collective and the ranks missing
// or failed, when a peer is gone, aborted, or silent past the timeout.
class Comm {
 public:
  virtual ~Comm() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Whose memory the collectives take.
  virtual DeviceKind device() const { return DeviceKind::kCpu; }

  // In place over `count` elements.
  virtual void AllReduce(void* data, int64_t count, DType dtype,
                         Reduction reduction, void* native_stream) = 0;
  // `input` holds size() slices of `slice_count`; `output` gets this rank's
  // reduced one. `output` may be the rank's own slice of `input`.
  virtual void ReduceScatter(const void* input, void* output,
                             int64_t slice_count, DType dtype,
                             Reduction reduction, void* native_stream) = 0;
  // `input` may be the rank's own slice of `output`.
  virtual void AllGather(const void* input, void* output, int64_t slice_count,
                         DType dtype, void* native_stream) = 0;
  virtual void Broadcast(void* data, int64_t bytes, int root,
                         void* native_stream) = 0;
  // All ranks have made the call; not: what they enqueued before is complete.
  virtual void Barrier() = 0;
  // The comm of the same ranks for data in host memory; this one unless its
  // collectives run on an accelerator.
  virtual Comm& host() { return *this; }
  // Throws Unavailable once the comm has failed. Collectives that were only
  // enqueued report nothing by themselves: whoever waits for them looks here.
  virtual void ThrowIfFailed() = 0;
  // Makes pending and later calls of every rank throw Unavailable. Callable
  // from any thread, idempotent.
  virtual void Abort(const std::string& reason) = 0;
  // Host bytes held for staging; part of the framework overhead in reports.
  virtual int64_t staging_bytes() const = 0;
};

struct CommOptions {
  double timeout_seconds = 30;
};

// `size` comms for threads of this process, one per rank.
std::vector<std::unique_ptr<Comm>> CreateThreadComms(
    int size, const CommOptions& options = {});

// What torchrun, mpirun and srun wrappers put into the environment.
struct LaunchInfo {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr;
  int master_port = 0;
};
// Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
// MASTER_PORT. One rank if WORLD_SIZE is absent. Throws InvalidArgument naming
// the variable that is missing, malformed or out of range.
LaunchInfo ReadLaunchInfo();

// Gloo over TCP between processes; rank 0 serves the key-value store at
// master_addr:master_port. Throws Unavailable when the port is in use or a
// rank does not appear in time.
std::unique_ptr<Comm> CreateGlooComm(const LaunchInfo& info,
                                     const CommOptions& options = {});

// NCCL between GPUs, one rank each: LOCAL_RANK names the GPU. Collectives take
// device memory and are not to be captured into CUDA graphs; what concerns host
// memory, and the watch over the peers, is Gloo's (host()). Throws
// FailedPrecondition where no usable GPU or CUDA build is present and
// InvalidArgument when this host has more ranks than GPUs.
std::unique_ptr<Comm> CreateNcclComm(const LaunchInfo& info,
                                     const CommOptions& options = {});

// Throws FailedPrecondition unless all ranks pass the same value; the message
// names a rank that differs and what `what` is.
void CheckSameOnAllRanks(Comm& comm, uint64_t value, const std::string& what);

}  // namespace plo

#endif  // PLO_FRAMEWORK_RUNTIME_COMM_H_
