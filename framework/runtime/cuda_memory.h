// Device and pinned memory of the CUDA device.
#ifndef PLO_FRAMEWORK_RUNTIME_CUDA_MEMORY_H_
#define PLO_FRAMEWORK_RUNTIME_CUDA_MEMORY_H_

#include <cstdint>
#include <map>
#include <string>

#include "framework/runtime/device.h"
#include "framework/runtime/host_pages.h"

namespace plo {

class CudaMemory {
 public:
  // `gpu` is the GPU's name, for messages.
  CudaMemory(const CudaDeviceOptions& options, std::string gpu);
  ~CudaMemory();  // frees all; no work may be in flight
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  void* Allocate(Place place, int64_t bytes);
  void Free(Place place, void* data);
  // Whether the pointer is into device memory allocated here.
  bool OnDevice(const void* data) const;
  DeviceStats stats() const;

 private:
  struct Block {
    Place place = Place::kDevice;
    int64_t bytes = 0;
    void* base = nullptr;  // of device memory: what cudaMalloc returned
    HostPages pages;       // of pinned memory
    bool registered = false;
  };

  void* AllocateDevice(Block& block) const;
  void* AllocatePinned(Block& block) const;
  static void Release(const Block& block);

  const CudaDeviceOptions options_;
  const std::string gpu_;
  std::map<const void*, Block> blocks_;
  DeviceStats stats_;
};

}  // namespace plo

#endif  // PLO_FRAMEWORK_RUNTIME_CUDA_MEMORY_H_
