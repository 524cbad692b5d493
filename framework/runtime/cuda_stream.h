// A stream of the CUDA device: tasks enqueue on a native stream, tickets are
// events of a pool of its own.
//
// Threads: all is the launching thread's, but workers of host streams poll the
// events that were handed to them.
#ifndef PLO_FRAMEWORK_RUNTIME_CUDA_STREAM_H_
#define PLO_FRAMEWORK_RUNTIME_CUDA_STREAM_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "framework/runtime/device.h"
#include "framework/runtime/ring_queue.h"
#include "framework/runtime/worker_stream.h"

namespace plo {

class CudaRecording : public Recording {
 public:
  explicit CudaRecording(cudaGraphExec_t graph) : graph_(graph) {}
  ~CudaRecording() override;
  CudaRecording(const CudaRecording&) = delete;
  CudaRecording& operator=(const CudaRecording&) = delete;

  cudaGraphExec_t graph() const { return graph_; }

 private:
  cudaGraphExec_t graph_;
};

class CudaStream {
 public:
  // Compute streams have normal priority, the others the highest: their work
  // is short and what follows waits for it.
  CudaStream(StreamKind kind, ErrorState* errors);
  // Waits for the work of the stream. No worker may poll any more.
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  Ticket Launch(const Task& task);
  // As Device's.
  std::unique_ptr<Recording> Record(std::span<const Task> tasks);
  Ticket Replay(const CudaRecording& recording, bool waited_on);
  // Later work of the waiter starts after `ticket` of this stream.
  void MakeWait(CudaStream& waiter, Ticket ticket);
  void MakeWait(WorkerStream& waiter, Ticket ticket);
  // Blocks the caller.
  void WaitFor(Ticket ticket);

  Ticket launched() const { return launched_; }
  cudaStream_t native() const { return native_; }
  // An error of the device that ends all work; `errors` keeps it for good.
  void Lost(cudaError_t status);

 private:
  // An event that marks the completion of the launches up to `ticket`. It may
  // be used again when it has passed and no worker is going to poll it.
  struct Mark {
    CudaStream* stream = nullptr;
    cudaEvent_t event = nullptr;
    Ticket ticket = 0;
    std::atomic<int> pollers{0};
  };

  Mark* PutMark();
  // The first mark at or after the ticket; null when it is known to be
  // complete. A launch that was not to be waited on has no mark of its own.
  Mark* Find(Ticket ticket);
  void Retire();
  void AddMarks(int count);
  void Poll(cudaEvent_t event);

  const StreamKind kind_;
  ErrorState* const errors_;
  cudaStream_t native_ = nullptr;
  Ticket launched_ = 0;
  Ticket completed_ = 0;        // known to be complete
  RingQueue<Mark*> in_flight_;  // tickets rise
  std::vector<Mark*> free_;
  std::vector<std::unique_ptr<Mark>> marks_;
};

}  // namespace plo

#endif  // PLO_FRAMEWORK_RUNTIME_CUDA_STREAM_H_
