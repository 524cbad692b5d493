// Functions of the CUDA driver, reached through the runtime: machines that only
// build have no driver library to link to.
#ifndef PLO_FRAMEWORK_RUNTIME_CUDA_DRIVER_H_
#define PLO_FRAMEWORK_RUNTIME_CUDA_DRIVER_H_

#include <cudaTypedefs.h>

#include "framework/runtime/cuda_status.h"

namespace plo {

// DriverFunction<PFN_cuStreamWaitValue64_v11070>("cuStreamWaitValue64"). Throws
// FailedPrecondition where the driver is too old.
template <typename Function>
Function DriverFunction(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  CheckCuda(cudaGetDriverEntryPointByVersion(name, &function, CUDART_VERSION,
                                             cudaEnableDefault, &found),
            "cudaGetDriverEntryPointByVersion");
  PLO_ENFORCE(found == cudaDriverEntryPointSuccess && function != nullptr,
              kFailedPrecondition, "the NVIDIA driver lacks ", name);
  return reinterpret_cast<Function>(function);
}

}  // namespace plo

#endif  // PLO_FRAMEWORK_RUNTIME_CUDA_DRIVER_H_
