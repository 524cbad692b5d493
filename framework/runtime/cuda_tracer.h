// Times of launches on CUDA streams, by events around them.
#ifndef PLO_FRAMEWORK_RUNTIME_CUDA_TRACER_H_
#define PLO_FRAMEWORK_RUNTIME_CUDA_TRACER_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "framework/runtime/device.h"

namespace plo {

class CudaTracer : public StreamTracer {
 public:
  CudaTracer();
  // No work may be in flight.
  ~CudaTracer() override;
  CudaTracer(const CudaTracer&) = delete;
  CudaTracer& operator=(const CudaTracer&) = delete;

  int64_t Begin(void* native_stream, const char* name) override;
  void End(int64_t span) override;
  bool Take(int64_t span, Span& result) override;

 private:
  struct Pending {
    cudaStream_t stream = nullptr;
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    size_t base = 0;
  };
  // A moment that both clocks know. CUDA counts milliseconds in a float: spans
  // far from their base would lose their microseconds.
  struct Base {
    cudaEvent_t event = nullptr;
    double host_us = 0;
  };

  void AddBase();
  cudaEvent_t TakeEvent();

  cudaStream_t stream_ = nullptr;
  std::vector<Base> bases_;
  std::vector<cudaEvent_t> free_;
  std::unordered_map<int64_t, Pending> pending_;
  int64_t next_ = 0;
};

}  // namespace plo

#endif  // PLO_FRAMEWORK_RUNTIME_CUDA_TRACER_H_
