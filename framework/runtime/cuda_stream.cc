#include "framework/runtime/cuda_stream.h"

#include <chrono>
#include <exception>
#include <thread>

#include "framework/ir/error.h"
#include "framework/runtime/cuda_status.h"
#include "glog/logging.h"

namespace plo {
namespace {

constexpr int kInitialMarks = 256;
constexpr int kMoreMarks = 64;
constexpr size_t kInitialRing = 1024;
// A poller spins this long, then sleeps between its looks.
constexpr std::chrono::microseconds kSpin(50);
constexpr std::chrono::microseconds kSleep(10);

// Of a recording, without which all is as right and slower.
bool Refused(cudaError_t status) {
  if (status == cudaSuccess) return false;
  cudaGetLastError();
  LOG(WARNING) << "no CUDA graph, its ops are launched one by one: "
               << CudaErrorText(status);
  return true;
}

}  // namespace

CudaRecording::~CudaRecording() {
  if (cudaGraphExecDestroy(graph_) != cudaSuccess) cudaGetLastError();
}

CudaStream::CudaStream(StreamKind kind, ErrorState* errors)
    : kind_(kind), errors_(errors), in_flight_(kInitialRing) {
  int lowest = 0;
  int highest = 0;
  CheckCuda(cudaDeviceGetStreamPriorityRange(&lowest, &highest),
            "cudaDeviceGetStreamPriorityRange");
  CheckCuda(cudaStreamCreateWithPriority(
                &native_, cudaStreamNonBlocking,
                kind == StreamKind::kCompute ? lowest : highest),
            "cudaStreamCreateWithPriority");
  AddMarks(kInitialMarks);
}

CudaStream::~CudaStream() {
  cudaStreamSynchronize(native_);
  for (const auto& mark : marks_) cudaEventDestroy(mark->event);
  cudaStreamDestroy(native_);
  cudaGetLastError();  // of a lost device
}

void CudaStream::AddMarks(int count) {
  for (int i = 0; i < count; ++i) {
    auto mark = std::make_unique<Mark>();
    mark->stream = this;
    CheckCuda(cudaEventCreateWithFlags(&mark->event, cudaEventDisableTiming),
              "cudaEventCreateWithFlags");
    free_.push_back(mark.get());
    marks_.push_back(std::move(mark));
  }
}

Ticket CudaStream::Launch(const Task& task) {
  ++launched_;
  if (!errors_->failed()) {
    try {
      task.run(task.context, task.step, native_);
    } catch (...) {
      errors_->Set(std::current_exception());
    }
  }
  if (task.waited_on) PutMark();
  return launched_;
}

std::unique_ptr<Recording> CudaStream::Record(std::span<const Task> tasks) {
  // Workers may go on polling: what this thread must not call meanwhile, they
  // may.
  if (Refused(
          cudaStreamBeginCapture(native_, cudaStreamCaptureModeThreadLocal))) {
    return nullptr;
  }
  std::exception_ptr error;
  try {
    for (const Task& task : tasks) task.run(task.context, task.step, native_);
  } catch (...) {
    error = std::current_exception();
  }
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(native_, &graph);
  cudaGraphExec_t executable = nullptr;
  cudaError_t made = ended;
  if (!error && ended == cudaSuccess) {
    made = cudaGraphInstantiate(&executable, graph, 0);
  }
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (error) {
    cudaGetLastError();
    std::rethrow_exception(error);
  }
  if (Refused(made)) return nullptr;
  auto recording = std::make_unique<CudaRecording>(executable);
  // Allocates now what it needs on the device.
  if (Refused(cudaGraphUpload(executable, native_))) return nullptr;
  return recording;
}

Ticket CudaStream::Replay(const CudaRecording& recording, bool waited_on) {
  ++launched_;
  if (!errors_->failed()) {
    const cudaError_t status = cudaGraphLaunch(recording.graph(), native_);
    if (status != cudaSuccess) Lost(status);
  }
  if (waited_on) PutMark();
  return launched_;
}

CudaStream::Mark* CudaStream::PutMark() {
  if (free_.empty()) Retire();
  if (free_.empty()) AddMarks(kMoreMarks);
  Mark* mark = free_.back();
  free_.pop_back();
  mark->ticket = launched_;
  in_flight_.Push(mark);
  const cudaError_t status = cudaEventRecord(mark->event, native_);
  if (status != cudaSuccess) Lost(status);
  return mark;
}

void CudaStream::Retire() {
  while (!in_flight_.empty()) {
    Mark* mark = in_flight_.front();
    if (mark->pollers.load(std::memory_order_acquire) > 0) return;
    cudaError_t failure;
    if (!IsDone(cudaEventQuery(mark->event), failure)) {
      if (failure != cudaSuccess) Lost(failure);
      return;
    }
    completed_ = mark->ticket;
    free_.push_back(in_flight_.Pop());
  }
}

CudaStream::Mark* CudaStream::Find(Ticket ticket) {
  if (ticket <= completed_) return nullptr;
  size_t low = 0;
  size_t high = in_flight_.size();
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (in_flight_[middle]->ticket < ticket) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < in_flight_.size() ? in_flight_[low] : PutMark();
}

void CudaStream::MakeWait(CudaStream& waiter, Ticket ticket) {
  const Mark* mark = Find(ticket);
  if (mark == nullptr) return;
  // Waits for the event as recorded now: it may be recorded again at any time.
  const cudaError_t status =
      cudaStreamWaitEvent(waiter.native_, mark->event, cudaEventWaitDefault);
  if (status != cudaSuccess) Lost(status);
}

void CudaStream::MakeWait(WorkerStream& waiter, Ticket ticket) {
  Mark* mark = Find(ticket);
  if (mark == nullptr) return;
  mark->pollers.fetch_add(1, std::memory_order_relaxed);
  waiter.EnqueueWait({[](void* source, Ticket) {
                        Mark* polled = static_cast<Mark*>(source);
                        polled->stream->Poll(polled->event);
                        polled->pollers.fetch_sub(1, std::memory_order_release);
                      },
                      mark, ticket});
}

void CudaStream::WaitFor(Ticket ticket) {
  if (const Mark* mark = Find(ticket)) Poll(mark->event);
}

// Not cudaEventSynchronize: that holds locks of the driver that launches need.
void CudaStream::Poll(cudaEvent_t event) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point spin_end = Clock::now() + kSpin;
  cudaError_t failure;
  while (!IsDone(cudaEventQuery(event), failure)) {
    if (failure != cudaSuccess) {
      Lost(failure);
      return;
    }
    if (Clock::now() < spin_end) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kSleep);
    }
  }
}

void CudaStream::Lost(cudaError_t status) {
  cudaGetLastError();
  errors_->SetPermanent(std::make_exception_ptr(
      Error(ErrorCode::kInternal,
            StrCat(Name(kind_), " stream: ", CudaErrorText(status),
                   "; the GPU cannot be used any more by this process"))));
}

}  // namespace plo
