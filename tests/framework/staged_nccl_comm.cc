#include "tests/framework/staged_nccl_comm.h"

#include <cstring>
#include <vector>

#include "framework/ir/error.h"

namespace plo {
namespace {

using Call = std::function<void(void* stream)>;

void RunCall(void* context, const StepInfo&, void* stream) {
  (*static_cast<const Call*>(context))(stream);
}

}  // namespace

std::string WhyTooFewGpus(int count) {
  // ctest looks for these words.
  if (!CudaDeviceAvailable()) return "no usable GPU";
  try {
    CreateCudaDevice({count - 1});
  } catch (const Error&) {
    return StrCat("fewer than ", count, " GPUs");
  }
  return "";
}

StagedNcclComm::StagedNcclComm(const LaunchInfo& info,
                               const CommOptions& options)
    : device_(CreateCudaDevice({info.local_rank})),
      comm_(CreateNcclComm(info, options)),
      stream_(device_->CreateStream(StreamKind::kComm)) {}

StagedNcclComm::~StagedNcclComm() = default;

void StagedNcclComm::AllReduce(void* data, int64_t count, DType dtype,
                               Reduction reduction, void*) {
  Staged(data, count * SizeOf(dtype), [&](char* on_gpu, void* stream) {
    comm_->AllReduce(on_gpu, count, dtype, reduction, stream);
  });
}

void StagedNcclComm::ReduceScatter(const void* input, void* output,
                                   int64_t slice_count, DType dtype,
                                   Reduction reduction, void*) {
  const int64_t slice = slice_count * SizeOf(dtype);
  const int64_t all = slice * size();
  const char* from = static_cast<const char*>(input);
  const int64_t at = rank() * slice;
  if (output == from + at) {
    Staged(const_cast<void*>(input), all, [&](char* on_gpu, void* stream) {
      comm_->ReduceScatter(on_gpu, on_gpu + at, slice_count, dtype, reduction,
                           stream);
    });
    return;
  }
  std::vector<char> both(from, from + all);
  both.resize(static_cast<size_t>(all + slice));
  Staged(both.data(), all + slice, [&](char* on_gpu, void* stream) {
    comm_->ReduceScatter(on_gpu, on_gpu + all, slice_count, dtype, reduction,
                         stream);
  });
  if (slice > 0) {
    std::memcpy(output, both.data() + all, static_cast<size_t>(slice));
  }
}

void StagedNcclComm::AllGather(const void* input, void* output,
                               int64_t slice_count, DType dtype, void*) {
  // Its own checks, before anything here reads the operands.
  const bool bad = slice_count < 0 ||
                   (slice_count > 0 && (input == nullptr || output == nullptr));
  if (bad) return comm_->AllGather(input, output, slice_count, dtype, nullptr);
  const int64_t slice = slice_count * SizeOf(dtype);
  const int64_t all = slice * size();
  char* to = static_cast<char*>(output);
  const int64_t at = rank() * slice;
  if (input == to + at) {
    Staged(output, all, [&](char* on_gpu, void* stream) {
      comm_->AllGather(on_gpu + at, on_gpu, slice_count, dtype, stream);
    });
    return;
  }
  const char* from = static_cast<const char*>(input);
  std::vector<char> both(from, from + slice);
  both.resize(static_cast<size_t>(slice + all));
  Staged(both.data(), slice + all, [&](char* on_gpu, void* stream) {
    comm_->AllGather(on_gpu, on_gpu + slice, slice_count, dtype, stream);
  });
  if (all > 0) {
    std::memcpy(output, both.data() + slice, static_cast<size_t>(all));
  }
}

void StagedNcclComm::Broadcast(void* data, int64_t bytes, int root, void*) {
  Staged(data, bytes, [&](char* on_gpu, void* stream) {
    comm_->Broadcast(on_gpu, bytes, root, stream);
  });
}

void StagedNcclComm::Staged(
    void* data, int64_t bytes,
    const std::function<void(char* data, void* stream)>& call) {
  if (bytes <= 0) {
    OnStream([&](void* stream) { call(static_cast<char*>(data), stream); });
    return;
  }
  void* on_gpu = device_->Allocate(Place::kDevice, bytes);
  const auto free = [&] { device_->Free(Place::kDevice, on_gpu); };
  try {
    device_->Write(data, on_gpu, bytes);
    OnStream([&](void* stream) { call(static_cast<char*>(on_gpu), stream); });
    device_->Read(on_gpu, data, bytes);
  } catch (...) {
    free();
    throw;
  }
  free();
}

void StagedNcclComm::OnStream(const Call& call) {
  Call copy = call;
  Task task;
  task.run = RunCall;
  task.context = &copy;
  try {
    device_->Synchronize(stream_, device_->Launch(stream_, task));
  } catch (...) {
    device_->ClearError();
    throw;
  }
  comm_->ThrowIfFailed();
}

}  // namespace plo
