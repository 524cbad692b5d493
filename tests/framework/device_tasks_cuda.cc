#include <cuda_runtime_api.h>

#include <cstring>

#include "framework/runtime/cuda_status.h"
#include "tests/framework/device_tasks.h"

namespace plo {

void CopyInTask(void* dst, const void* src, int64_t bytes,
                void* native_stream) {
  const auto size = static_cast<size_t>(bytes);
  if (native_stream == nullptr) {
    std::memcpy(dst, src, size);
    return;
  }
  CheckCuda(cudaMemcpyAsync(dst, src, size, cudaMemcpyDefault,
                            static_cast<cudaStream_t>(native_stream)),
            "cudaMemcpyAsync");
}

}  // namespace plo
