// NCCL between GPUs. A Gloo comm of the same ranks carries NCCL's id and what
// lies in host memory, and notices a peer that dies or stops; a watchdog thread
// turns such a failure, an error inside NCCL, or a collective that does not end
// within the time limit into an abort, so that no stream waits for good.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "framework/ir/error.h"
#include "framework/runtime/comm.h"
#include "framework/runtime/comm_common.h"
#include "framework/runtime/device.h"
#include "framework/runtime/kv_store.h"
#include "framework/runtime/nccl_session.h"
#include "framework/runtime/stream_marks.h"

namespace plo {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kTick(20);
constexpr double kStoreSeconds = 5;
// Collectives that may be enqueued and not complete: few enough that the
// stream's queue never fills, where a launch inside NCCL would block.
constexpr uint64_t kInFlight = 128;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

ncclDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFp32:
      return ncclFloat32;
    case DType::kFp16:
      return ncclFloat16;
    case DType::kBf16:
      return ncclBfloat16;
    case DType::kInt32:
      return ncclInt32;
    case DType::kInt64:
      return ncclInt64;
    case DType::kBool:
      return ncclUint8;
  }
  PLO_THROW(kInternal, "a dtype that NCCL lacks");
}

ncclRedOp_t OperationOf(const char* kind, DType dtype, Reduction reduction) {
  if (reduction == Reduction::kSum) {
    PLO_ENFORCE(dtype != DType::kBool, kInvalidArgument, kind,
                ": a sum of bools");
    return ncclSum;
  }
  PLO_ENFORCE(!IsFloat(dtype), kUnimplemented, kind, ": the max of ", dtype,
              " over NCCL, which would lose a NaN");
  return ncclMax;
}

// Tells the others, through the launcher's store, which collective this rank's
// stream has reached. Used by the watchdog alone.
class Progress {
 public:
  Progress(const LaunchInfo& info, double timeout_seconds)
      : rank_(info.rank),
        size_(info.world_size),
        interval_seconds_(std::min(1.0, timeout_seconds / 4)),
        store_(info.master_addr, info.master_port,
               std::min(timeout_seconds, kStoreSeconds)) {}

  // Does nothing when the store is gone: the control comm says why.
  void Publish(uint64_t started) {
    if (started == published_ || SecondsSince(at_) < interval_seconds_) return;
    at_ = Clock::now();
    try {
      store_.Set(Key(rank_), std::to_string(started));
      published_ = started;
    } catch (const Error&) {
    }
  }

  // The ranks that have not started collective `number`, as far as they say.
  std::vector<int> Behind(uint64_t number) {
    std::vector<int> ranks;
    try {
      for (int r = 0; r < size_; ++r) {
        if (r == rank_) continue;
        const auto value = store_.TryGet(Key(r), 0);
        if (!value || std::stoull(*value) < number) ranks.push_back(r);
      }
    } catch (const std::exception&) {
      return {};
    }
    return ranks;
  }

 private:
  static std::string Key(int rank) { return StrCat("nccl/", rank); }

  const int rank_, size_;
  const double interval_seconds_;
  KvClient store_;
  uint64_t published_ = 0;
  Clock::time_point at_{};
};

class NcclComm : public Comm {
 public:
  NcclComm(const LaunchInfo& info, const CommOptions& options)
      : timeout_seconds_(options.timeout_seconds),
        ordinal_(info.local_rank),
        control_(CreateGlooComm(info, options)) {
    if (size() > 1) progress_.emplace(info, timeout_seconds_);
    ncclUniqueId id{};
    if (rank() == 0) {
      const ncclResult_t result = ncclGetUniqueId(&id);
      PLO_ENFORCE(result == ncclSuccess, kUnavailable,
                  "ncclGetUniqueId: ", ncclGetErrorString(result));
    }
    control_->Broadcast(&id, sizeof(id), 0, nullptr);
    session_.emplace(id, rank(), size(), timeout_seconds_,
                     [this] { control_->ThrowIfFailed(); });
    watchdog_ = std::thread([this] { Watch(); });
  }

  ~NcclComm() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    watchdog_.join();
    cudaSetDevice(ordinal_);
    session_.reset();
  }

  DeviceKind device() const override { return DeviceKind::kCuda; }
  int rank() const override { return control_->rank(); }
  int size() const override { return control_->size(); }

  void AllReduce(void* data, int64_t count, DType dtype, Reduction reduction,
                 void* native_stream) override {
    CheckCollectiveArguments("all_reduce", data, count);
    const ncclRedOp_t operation = OperationOf("all_reduce", dtype, reduction);
    const cudaStream_t stream = static_cast<cudaStream_t>(native_stream);
    const Collective collective = {"all_reduce", count, dtype};
    const ncclDataType_t type = TypeOf(dtype);
    if (size() > 2 && IsFloat(dtype) && count % size() == 0) {
      // The order of a sum then is reduce_scatter's: sharding changes no bit.
      const size_t slice = static_cast<size_t>(count / size());
      char* own = static_cast<char*>(data) +
                  static_cast<int64_t>(slice) * SizeOf(dtype) * rank();
      return Run(collective, native_stream,
                 {[=](ncclComm_t comm) {
                    return ncclReduceScatter(data, own, slice, type, operation,
                                             comm, stream);
                  },
                  [=](ncclComm_t comm) {
                    return ncclAllGather(own, data, slice, type, comm, stream);
                  }});
    }
    Run(collective, native_stream, {[=](ncclComm_t comm) {
          return ncclAllReduce(data, data, static_cast<size_t>(count), type,
                               operation, comm, stream);
        }});
  }

  void ReduceScatter(const void* input, void* output, int64_t slice_count,
                     DType dtype, Reduction reduction,
                     void* native_stream) override {
    CheckCollectiveArguments("reduce_scatter", input, slice_count);
    CheckCollectiveArguments("reduce_scatter", output, slice_count);
    const ncclRedOp_t operation =
        OperationOf("reduce_scatter", dtype, reduction);
    Run({"reduce_scatter", slice_count, dtype}, native_stream,
        {[=](ncclComm_t comm) {
          return ncclReduceScatter(
              input, output, static_cast<size_t>(slice_count), TypeOf(dtype),
              operation, comm, static_cast<cudaStream_t>(native_stream));
        }});
  }

  void AllGather(const void* input, void* output, int64_t slice_count,
                 DType dtype, void* native_stream) override {
    CheckCollectiveArguments("all_gather", input, slice_count);
    CheckCollectiveArguments("all_gather", output, slice_count);
    Run({"all_gather", slice_count, dtype}, native_stream,
        {[=](ncclComm_t comm) {
          return ncclAllGather(input, output, static_cast<size_t>(slice_count),
                               TypeOf(dtype), comm,
                               static_cast<cudaStream_t>(native_stream));
        }});
  }

  void Broadcast(void* data, int64_t bytes, int root,
                 void* native_stream) override {
    CheckCollectiveArguments("broadcast", data, bytes);
    PLO_ENFORCE(root >= 0 && root < size(), kInvalidArgument,
                "broadcast: root is ", root, " of ", size(), " ranks");
    Run({"broadcast", bytes, DType::kBool}, native_stream,
        {[=](ncclComm_t comm) {
          return ncclBroadcast(data, data, static_cast<size_t>(bytes),
                               ncclUint8, root, comm,
                               static_cast<cudaStream_t>(native_stream));
        }});
  }

  void Barrier() override { control_->Barrier(); }
  Comm& host() override { return *control_; }

  void ThrowIfFailed() override {
    std::lock_guard lock(mutex_);
    if (!failure_.empty()) throw Error(ErrorCode::kUnavailable, failure_);
  }
  void Abort(const std::string& reason) override {
    Fail("aborted: " + reason, reason);
  }
  int64_t staging_bytes() const override { return control_->staging_bytes(); }

 private:
  struct Collective {
    const char* kind;
    int64_t count;
    DType dtype;
    std::string Name() const { return CollectiveName(kind, count, dtype); }
  };

  // Enqueues the calls, which together are one collective.
  void Run(const Collective& collective, void* native_stream,
           const std::vector<NcclSession::Call>& calls) {
    const std::lock_guard lock(run_mutex_);
    const auto check = [this] { ThrowIfFailed(); };
    try {
      check();
      if (collective.count == 0) return;
      AwaitRoom();
      const uint64_t number = ++last_number_;
      {
        std::lock_guard guard(mutex_);
        recent_[number % kInFlight] = collective;
      }
      marks_.EnqueueStarted(native_stream, number);
      for (const auto& call : calls) session_->Enqueue(call, check);
      marks_.EnqueueFinished(native_stream, number);
    } catch (const Error& error) {
      if (Fail(error.message(), NamedAsOurs(error.message()))) {
        throw error.WithContext(collective.Name());
      }
      // This one only follows from it.
      std::lock_guard guard(mutex_);
      throw Error(ErrorCode::kUnavailable, failure_)
          .WithContext(collective.Name());
    }
  }

  std::string NamedAsOurs(const std::string& text) const {
    return StrCat("rank ", rank(), ": ", text);
  }

  void AwaitRoom() {
    while (last_number_ >= marks_.finished() + kInFlight) {
      ThrowIfFailed();
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  // The first failure stays, and the watchdog ends what is under way. False if
  // the comm had failed before.
  bool Fail(const std::string& failure, const std::string& for_others) {
    {
      std::lock_guard lock(mutex_);
      if (!failure_.empty()) return false;
      failure_ = failure;
    }
    wake_.notify_all();
    control_->Abort(for_others);
    return true;
  }

  void Watch() {
    cudaSetDevice(ordinal_);
    uint64_t watched = 0;  // the collective that the stream is in
    Clock::time_point since = Clock::now();
    std::unique_lock lock(mutex_);
    while (!stopping_ && failure_.empty()) {
      wake_.wait_for(lock, kTick);
      if (stopping_ || !failure_.empty()) break;
      lock.unlock();
      const uint64_t started = marks_.started();
      if (started == marks_.finished() || started != watched) {
        watched = started;
        since = Clock::now();
      }
      CheckPeers();
      if (SecondsSince(since) > timeout_seconds_) NameMissing(watched);
      if (progress_) progress_->Publish(started);
      lock.lock();
    }
    const bool failed = !failure_.empty();
    lock.unlock();
    if (failed) session_->Abort();
  }

  void CheckPeers() {
    try {
      control_->ThrowIfFailed();
    } catch (const Error& error) {
      Fail(error.message(), error.message());
      return;
    }
    const std::string error = session_->AsyncError();
    if (!error.empty()) Fail(error, NamedAsOurs(error));
  }

  void NameMissing(uint64_t number) {
    const std::vector<int> missing =
        progress_ ? progress_->Behind(number) : std::vector<int>{};
    Collective collective;
    {
      std::lock_guard lock(mutex_);
      collective = recent_[number % kInFlight];
    }
    const std::string failure =
        missing.empty()
            ? StrCat(collective.Name(), " did not end within ",
                     timeout_seconds_, " s, though all ranks take part")
            : StrCat(collective.Name(), " got no answer from ",
                     RankList(missing), " within ", timeout_seconds_, " s");
    Fail(failure, NamedAsOurs(failure));
  }

  const double timeout_seconds_;
  const int ordinal_;
  const std::unique_ptr<Comm> control_;
  StreamMarks marks_;
  std::optional<Progress> progress_;  // none alone
  std::optional<NcclSession> session_;

  std::mutex run_mutex_;  // one collective at a time; guards last_number_
  uint64_t last_number_ = 0;

  std::mutex mutex_;     // guards what follows
  std::string failure_;  // empty while all is well
  bool stopping_ = false;
  std::array<Collective, kInFlight> recent_{};  // by number
  std::condition_variable wake_;
  std::thread watchdog_;
};

}  // namespace

std::unique_ptr<Comm> CreateNcclComm(const LaunchInfo& info,
                                     const CommOptions& options) {
  const std::string problem = CudaDeviceProblem();
  PLO_ENFORCE(problem.empty(), kFailedPrecondition, "rank ", info.rank,
              " asks for NCCL, but ", problem);
  int gpus = 0;
  cudaGetDeviceCount(&gpus);
  PLO_ENFORCE(info.local_world_size <= gpus && info.local_rank < gpus,
              kInvalidArgument, "this host has ", info.local_world_size,
              " ranks (LOCAL_RANK is ", info.local_rank, "), but ", gpus,
              gpus == 1 ? " GPU" : " GPUs", "; NCCL takes one GPU per rank");
  const cudaError_t status = cudaSetDevice(info.local_rank);
  PLO_ENFORCE(status == cudaSuccess, kFailedPrecondition, "GPU ",
              info.local_rank, ": ", cudaGetErrorString(status));
  return std::make_unique<NcclComm>(info, options);
}

}  // namespace plo
