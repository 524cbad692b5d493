// A GPU as a device: streams of the driver for what runs on the GPU, a worker
// thread for what runs on the host.
//
// Neither waits for the other by a callback of the driver. Workers poll events;
// the GPU compares a count of completed tasks, which the worker keeps in pinned
// memory, with the one it waits for.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <omp.h>
#include <sys/prctl.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "framework/ir/error.h"
#include "framework/runtime/cuda_driver.h"
#include "framework/runtime/cuda_memory.h"
#include "framework/runtime/cuda_status.h"
#include "framework/runtime/cuda_stream.h"
#include "framework/runtime/cuda_tracer.h"
#include "framework/runtime/device.h"
#include "framework/runtime/worker_stream.h"

namespace plo {
namespace {

constexpr int kOldestMajor = 8;  // sm_80
constexpr int kMostHostStreams = 16;

// Before the driver starts: streams that share a connection wait for one
// another.
void PrepareEnvironment() { setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); }

std::string VersionText(int version) {
  return StrCat(version / 1000, ".", version % 1000 / 10);
}

// Why the GPU cannot be used; empty when it can.
std::string WhyUnusable(int ordinal, cudaDeviceProp& properties) {
  PrepareEnvironment();
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) cudaGetLastError();
  if (status == cudaErrorInsufficientDriver) {
    int driver = 0;
    int runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (driver == 0) return "there is no GPU: no NVIDIA driver is installed";
    return StrCat("the NVIDIA driver is for CUDA ", VersionText(driver),
                  ", plo is built with CUDA ", VersionText(runtime));
  }
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) {
    return "there is no GPU that the NVIDIA driver shows to this process";
  }
  if (status != cudaSuccess) return CudaErrorText(status);
  if (ordinal < 0 || ordinal >= count) {
    return StrCat("this process sees ", count, count == 1 ? " GPU" : " GPUs");
  }
  const cudaError_t asked = cudaGetDeviceProperties(&properties, ordinal);
  if (asked != cudaSuccess) return CudaErrorText(asked);
  if (properties.major < kOldestMajor) {
    return StrCat(properties.name, " is sm_", properties.major,
                  properties.minor, ", plo needs sm_", kOldestMajor,
                  "0 or newer");
  }
  return "";
}

// What GPU and host both look at, in one pinned page of its own.
struct SharedPage {
  struct alignas(64) Counter {
    std::atomic<uint64_t> completed{0};
  };
  std::array<Counter, kMostHostStreams> counters;
  alignas(64) DeviceErrorSlot error;
};

class CudaDevice : public Device {
 public:
  CudaDevice(const CudaDeviceOptions& options, const cudaDeviceProp& properties)
      : ordinal_(options.ordinal),
        name_(StrCat(properties.name, " (sm_", properties.major,
                     properties.minor, ")")),
        memory_(options, properties.name),
        wait_value_(DriverFunction<PFN_cuStreamWaitValue64_v11070>(
            "cuStreamWaitValue64")) {
    int supported = 0;
    DriverFunction<PFN_cuDeviceGetAttribute_v2000>("cuDeviceGetAttribute")(
        &supported, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
        ordinal_);
    can_wait_for_host_ = supported != 0;
    void* page = nullptr;
    CheckCuda(cudaHostAlloc(&page, sizeof(SharedPage),
                            cudaHostAllocPortable | cudaHostAllocMapped),
              "cudaHostAlloc");
    shared_ = new (page) SharedPage;
    CheckCuda(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking),
              "cudaStreamCreateWithFlags");
  }

  ~CudaDevice() override {
    cudaSetDevice(ordinal_);
    for (Stream& stream : streams_) {
      if (stream.host) stream.host->RequestStop();
    }
    for (Stream& stream : streams_) {
      if (stream.host) stream.host->Join();
    }
    streams_.clear();  // waits for the GPU
    tracer_.reset();
    cudaStreamDestroy(copies_);
    cudaFreeHost(shared_);
    cudaGetLastError();
  }

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::string name() const override { return name_; }

  void* Allocate(Place place, int64_t bytes) override {
    Enter();
    return memory_.Allocate(place, bytes);
  }
  void Free(Place place, void* data) override {
    Enter();
    memory_.Free(place, data);
  }

  StreamId CreateStream(StreamKind kind) override {
    Enter();
    Stream stream;
    if (kind == StreamKind::kHost) {
      PLO_ENFORCE(host_streams_ < kMostHostStreams, kInternal, "more than ",
                  kMostHostStreams, " host streams");
      stream.counter =
          &shared_->counters[static_cast<size_t>(host_streams_++)].completed;
      WorkerStream::Options options;
      options.kind = kind;
      options.mirror = stream.counter;
      options.start = [ordinal = ordinal_] {
        cudaSetDevice(ordinal);
        omp_set_num_threads(1);  // as on the CPU device
        // The default would turn each short sleep of a poll into 60 us.
        prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
      };
      stream.host = std::make_unique<WorkerStream>(options, &errors_);
    } else {
      stream.gpu = std::make_unique<CudaStream>(kind, &errors_);
    }
    streams_.push_back(std::move(stream));
    return static_cast<StreamId>(streams_.size()) - 1;
  }

  Ticket Launch(StreamId id, const Task& task) override {
    Stream& stream = At(id);
    if (stream.host) return stream.host->Launch(task);
    Enter();
    return stream.gpu->Launch(task);
  }

  std::unique_ptr<Recording> Record(StreamId id,
                                    std::span<const Task> tasks) override {
    Stream& stream = At(id);
    if (stream.host) return nullptr;
    Enter();
    return stream.gpu->Record(tasks);
  }

  Ticket Replay(StreamId id, Recording& recording, bool waited_on) override {
    Stream& stream = At(id);
    PLO_ENFORCE(stream.gpu != nullptr, kInvalidArgument, "stream ", id,
                " runs on the host: it replays nothing");
    Enter();
    return stream.gpu->Replay(static_cast<CudaRecording&>(recording),
                              waited_on);
  }

  void Wait(StreamId waiter_id, StreamId of_id, Ticket ticket) override {
    Stream& waiter = At(waiter_id);
    Stream& of = At(of_id);
    PLO_ENFORCE(ticket <= of.launched(), kInvalidArgument, "wait for ticket ",
                ticket, " of stream ", of_id, ", which has launched ",
                of.launched());
    if (waiter_id == of_id) return;
    if (of.host) {
      if (of.host->completed().value() >= ticket) return;
      if (waiter.host) {
        waiter.host->EnqueueWait(of.host.get(), ticket);
      } else {
        Enter();
        WaitOnGpu(*waiter.gpu, of, ticket);
      }
      return;
    }
    Enter();
    if (waiter.host) {
      of.gpu->MakeWait(*waiter.host, ticket);
    } else {
      of.gpu->MakeWait(*waiter.gpu, ticket);
    }
  }

  void Synchronize(StreamId id, Ticket ticket) override {
    Stream& stream = At(id);
    PLO_ENFORCE(ticket <= stream.launched(), kInvalidArgument,
                "synchronize with ticket ", ticket, " of stream ", id,
                ", which has launched ", stream.launched());
    WaitFor(stream, ticket);
    errors_.Rethrow();
  }

  void SynchronizeAll() override {
    for (Stream& stream : streams_) WaitFor(stream, stream.launched());
    errors_.Rethrow();
  }

  void ClearError() override { errors_.Clear(); }
  bool has_error() const override { return errors_.failed(); }

  void Read(const void* src, void* dst, int64_t bytes) override {
    const auto size = static_cast<size_t>(bytes);
    if (size == 0) return;
    if (!memory_.OnDevice(src) && !memory_.OnDevice(dst)) {
      std::memcpy(dst, src, size);
      return;
    }
    Enter();
    CheckCuda(cudaMemcpyAsync(dst, src, size, cudaMemcpyDefault, copies_),
              "cudaMemcpyAsync");
    CheckCuda(cudaStreamSynchronize(copies_), "cudaStreamSynchronize");
  }
  void Write(const void* src, void* dst, int64_t bytes) override {
    Read(src, dst, bytes);
  }

  void Delay(void* native_stream, int microseconds) override {
    const std::chrono::microseconds duration(microseconds);
    if (native_stream == nullptr) {
      std::this_thread::sleep_for(duration);
      return;
    }
    // For tests only, where a callback of the driver does no harm.
    CheckCuda(
        cudaLaunchHostFunc(
            static_cast<cudaStream_t>(native_stream),
            [](void* count) {
              std::this_thread::sleep_for(
                  std::chrono::microseconds(reinterpret_cast<intptr_t>(count)));
            },
            reinterpret_cast<void*>(static_cast<intptr_t>(duration.count()))),
        "cudaLaunchHostFunc");
  }

  StreamTracer* tracer() override {
    if (!tracer_) {
      Enter();
      tracer_ = std::make_unique<CudaTracer>();
    }
    return tracer_.get();
  }
  DeviceErrorSlot* error_slot() override { return &shared_->error; }

  DeviceStats stats() const override {
    Enter();
    return memory_.stats();
  }

 private:
  // One of the two.
  struct Stream {
    std::unique_ptr<CudaStream> gpu;
    std::unique_ptr<WorkerStream> host;
    std::atomic<uint64_t>* counter = nullptr;  // of a host stream

    Ticket launched() const {
      return host ? host->launched() : gpu->launched();
    }
  };

  // The caller's thread may have used another GPU since.
  void Enter() const { CheckCuda(cudaSetDevice(ordinal_), "cudaSetDevice"); }

  Stream& At(StreamId id) {
    PLO_ENFORCE(id >= 0 && id < static_cast<StreamId>(streams_.size()),
                kInvalidArgument, "no stream ", id);
    return streams_[static_cast<size_t>(id)];
  }

  void WaitFor(Stream& stream, Ticket ticket) {
    if (stream.host) {
      stream.host->completed().WaitFor(ticket);
    } else {
      Enter();
      stream.gpu->WaitFor(ticket);
    }
  }

  // A callback of the driver in its place could deadlock: callbacks of all
  // streams may share one thread.
  void WaitOnGpu(CudaStream& waiter, const Stream& of, Ticket ticket) {
    PLO_ENFORCE(can_wait_for_host_, kFailedPrecondition, name_,
                " cannot wait for host work: its driver has no 64-bit stream "
                "memory operations");
    const CUresult result =
        wait_value_(waiter.native(), reinterpret_cast<CUdeviceptr>(of.counter),
                    ticket, CU_STREAM_WAIT_VALUE_GEQ);
    // The two enumerations have the same values.
    if (result != CUDA_SUCCESS) waiter.Lost(static_cast<cudaError_t>(result));
  }

  const int ordinal_;
  const std::string name_;
  ErrorState errors_;
  CudaMemory memory_;
  const PFN_cuStreamWaitValue64_v11070 wait_value_;
  bool can_wait_for_host_ = false;
  SharedPage* shared_ = nullptr;
  cudaStream_t copies_ = nullptr;
  int host_streams_ = 0;
  std::vector<Stream> streams_;
  std::unique_ptr<CudaTracer> tracer_;
};

}  // namespace

std::unique_ptr<Device> CreateCudaDevice(const CudaDeviceOptions& options) {
  PLO_ENFORCE(
      options.device_memory_limit >= 0 && options.host_memory_limit >= 0,
      kInvalidArgument, "CUDA device options must not be negative");
  cudaDeviceProp properties;
  const std::string reason = WhyUnusable(options.ordinal, properties);
  PLO_ENFORCE(reason.empty(), kFailedPrecondition, "CUDA device ",
              options.ordinal, " asked for, but ", reason);
  cudaError_t status = cudaSetDevice(options.ordinal);
  if (status == cudaSuccess) status = cudaFree(nullptr);  // makes the context
  PLO_ENFORCE(status == cudaSuccess, kFailedPrecondition, "CUDA device ",
              options.ordinal, " (", properties.name,
              ") cannot be used: ", CudaErrorText(status));
  return std::make_unique<CudaDevice>(options, properties);
}

std::string CudaDeviceProblem() {
  cudaDeviceProp properties;
  return WhyUnusable(0, properties);
}

std::string CudaDeviceModel() {
  cudaDeviceProp properties;
  return WhyUnusable(0, properties).empty() ? properties.name : "";
}

}  // namespace plo
