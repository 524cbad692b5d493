#include "framework/runtime/cuda_memory.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "framework/ir/error.h"
#include "framework/runtime/cuda_status.h"
#include "glog/logging.h"

namespace plo {
namespace {

constexpr uintptr_t kAlignment = 4096;

void AskDriver(int64_t& used, int64_t& free) {
  size_t free_bytes = 0;
  size_t total = 0;
  CheckCuda(cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo");
  used = static_cast<int64_t>(total - free_bytes);
  free = static_cast<int64_t>(free_bytes);
}

void* AlignUp(void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return reinterpret_cast<void*>((address + kAlignment - 1) / kAlignment *
                                 kAlignment);
}

}  // namespace

CudaMemory::CudaMemory(const CudaDeviceOptions& options, std::string gpu)
    : options_(options), gpu_(std::move(gpu)) {
  int64_t free = 0;
  AskDriver(stats_.driver_context_bytes.emplace(), free);
}

CudaMemory::~CudaMemory() {
  for (const auto& [data, block] : blocks_) Release(block);
  cudaGetLastError();  // of a lost device
}

void* CudaMemory::Allocate(Place place, int64_t bytes) {
  const bool device = place == Place::kDevice;
  int64_t& used = device ? stats_.device_bytes : stats_.pinned_bytes;
  CheckMemoryLimit(
      place, bytes, used,
      device ? options_.device_memory_limit : options_.host_memory_limit);
  Block block;
  block.place = place;
  block.bytes = bytes;
  void* const data = device ? AllocateDevice(block) : AllocatePinned(block);
  used += bytes;
  ++(device ? stats_.device_allocations : stats_.pinned_allocations);
  if (!device && !block.registered) stats_.pageable_bytes += bytes;
  blocks_.emplace(data, block);
  return data;
}

void* CudaMemory::AllocateDevice(Block& block) const {
  const auto size = static_cast<size_t>(block.bytes);
  cudaError_t status = cudaMalloc(&block.base, size);
  if (status == cudaSuccess && AlignUp(block.base) != block.base) {
    // Small allocations share pages.
    cudaFree(block.base);
    status = cudaMalloc(&block.base, size + kAlignment);
  }
  if (status == cudaSuccess) return AlignUp(block.base);
  cudaGetLastError();
  PLO_ENFORCE(status == cudaErrorMemoryAllocation, kInternal,
              "cudaMalloc: ", CudaErrorText(status));
  size_t free = 0;
  size_t total = 0;
  CheckCuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  PLO_THROW(kOutOfMemory, "device memory: ", block.bytes, " bytes asked for, ",
            stats_.device_bytes, " in use, ", gpu_, " has ", free, " of ",
            total, " bytes left");
}

void* CudaMemory::AllocatePinned(Block& block) const {
  block.pages = MapHostPages(block.bytes);
  TouchHostPages(block.pages);
  const cudaError_t status = cudaHostRegister(
      block.pages.data, block.pages.mapped, cudaHostRegisterPortable);
  block.registered = status == cudaSuccess;
  if (block.registered) return block.pages.data;
  cudaGetLastError();
  const std::string reason =
      StrCat("the driver refuses to pin ", block.bytes,
             " bytes of host memory: ", CudaErrorText(status));
  if (options_.require_pinned) {
    UnmapHostPages(block.pages);
    PLO_THROW(kOutOfMemory, "pinned memory: ", reason);
  }
  LOG(WARNING) << reason << "; they stay pageable and copies will be slow";
  return block.pages.data;
}

void CudaMemory::Release(const Block& block) {
  if (block.place == Place::kDevice) {
    cudaFree(block.base);
    return;
  }
  if (block.registered) cudaHostUnregister(block.pages.data);
  UnmapHostPages(block.pages);
}

void CudaMemory::Free(Place place, void* data) {
  const auto it = blocks_.find(data);
  PLO_ENFORCE(it != blocks_.end() && it->second.place == place,
              kInvalidArgument, "Free of memory that is not allocated as ",
              Name(place));
  const Block& block = it->second;
  (place == Place::kDevice ? stats_.device_bytes : stats_.pinned_bytes) -=
      block.bytes;
  if (place == Place::kPinned && !block.registered) {
    stats_.pageable_bytes -= block.bytes;
  }
  Release(block);
  blocks_.erase(it);
}

bool CudaMemory::OnDevice(const void* data) const {
  auto it = blocks_.upper_bound(data);
  if (it == blocks_.begin()) return false;
  --it;
  const auto* begin = static_cast<const std::byte*>(it->first);
  return it->second.place == Place::kDevice &&
         static_cast<const std::byte*>(data) < begin + it->second.bytes;
}

DeviceStats CudaMemory::stats() const {
  DeviceStats stats = stats_;
  AskDriver(stats.driver_used_bytes.emplace(),
            stats.driver_free_bytes.emplace());
  return stats;
}

}  // namespace plo
