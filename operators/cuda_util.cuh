// Helpers that CUDA kernels share.
#ifndef PLO_OPERATORS_CUDA_UTIL_CUH_
#define PLO_OPERATORS_CUDA_UTIL_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "framework/ir/error.h"
#include "framework/ir/types.h"
#include "framework/runtime/cuda_status.h"
#include "framework/runtime/kernel.h"

namespace plo {

// After a kernel launch.
inline void CheckLaunch(const char* kernel) {
  CheckCuda(cudaGetLastError(), kernel);
}

inline cudaStream_t StreamOf(const KernelContext& context) {
  return static_cast<cudaStream_t>(context.native_stream());
}

// For kernels of libraries that may leave some of their workspace untouched:
// writes its last byte, so that the measured peak is the planned one.
inline void TouchWorkspaceEnd(const KernelContext& context) {
  const int64_t bytes = context.workspace_bytes();
  if (bytes == 0) return;
  CheckCuda(cudaMemsetAsync(static_cast<char*>(context.workspace()) + bytes - 1,
                            0, 1, StreamOf(context)),
            "cudaMemsetAsync");
}

inline int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The device's type of a dtype.
template <DType kDType>
struct DeviceType;
template <>
struct DeviceType<DType::kFp32> {
  using type = float;
};
template <>
struct DeviceType<DType::kBf16> {
  using type = __nv_bfloat16;
};
template <>
struct DeviceType<DType::kFp16> {
  using type = __half;
};

// Calls fn(T{}) with T = float, __nv_bfloat16 or __half.
template <typename Fn>
void DispatchDeviceFloat(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::kFp32:
      return fn(float{});
    case DType::kBf16:
      return fn(__nv_bfloat16{});
    case DType::kFp16:
      return fn(__half{});
    default:
      PLO_THROW(kInternal, "kernel for a float dtype got ", dtype);
  }
}

__device__ inline float ToFloat(float value) { return value; }
__device__ inline float ToFloat(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
__device__ inline float ToFloat(__half value) { return __half2float(value); }

// Round to nearest even.
template <typename T>
__device__ inline T FromFloat(float value);
template <>
__device__ inline float FromFloat<float>(float value) {
  return value;
}
template <>
__device__ inline __nv_bfloat16 FromFloat<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ inline __half FromFloat<__half>(float value) {
  return __float2half_rn(value);
}

// Leaves an error of the data for the executor to report; the first one wins.
__device__ inline void ReportIdOutOfRange(DeviceErrorSlot* slot, int32_t op,
                                          int64_t element, int64_t value,
                                          int64_t bound) {
  if (slot == nullptr) return;
  if (atomicCAS(&slot->op, -1, op) != -1) return;
  slot->element = element;
  slot->value = value;
  slot->bound = bound;
  __threadfence_system();
  *reinterpret_cast<volatile int32_t*>(&slot->kind) =
      DeviceErrorSlot::kIdOutOfRange;
}

}  // namespace plo

#endif  // PLO_OPERATORS_CUDA_UTIL_CUH_
