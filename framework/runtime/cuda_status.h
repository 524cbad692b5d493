// CUDA's error codes as plo::Error.
#ifndef PLO_FRAMEWORK_RUNTIME_CUDA_STATUS_H_
#define PLO_FRAMEWORK_RUNTIME_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include <string>

#include "framework/ir/error.h"

namespace plo {

inline std::string CudaErrorText(cudaError_t status) {
  return StrCat(cudaGetErrorName(status), ", ", cudaGetErrorString(status));
}

// Throws Internal naming the call that failed. The launch that failed is named
// by the executor.
inline void CheckCuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // or the next launch would report it again
  PLO_THROW(kInternal, what, ": ", CudaErrorText(status));
}

// For queries of events and streams: true when done, false while not.
// `failure` gets any other answer.
inline bool IsDone(cudaError_t status, cudaError_t& failure) {
  failure = cudaSuccess;
  if (status == cudaSuccess) return true;
  cudaGetLastError();  // "not ready" counts as one, too
  if (status != cudaErrorNotReady) failure = status;
  return false;
}

}  // namespace plo

#endif  // PLO_FRAMEWORK_RUNTIME_CUDA_STATUS_H_
