// Attention on CUDA built without cuDNN: our own kernels serve alone.
#include "operators/attention_cuda.h"

namespace plo {

std::unique_ptr<CudnnAttention> MakeCudnnForward(const AttentionShape&,
                                                 const AttentionForward&,
                                                 int64_t) {
  return nullptr;
}

std::unique_ptr<CudnnAttention> MakeCudnnBackward(const AttentionShape&,
                                                  const AttentionBackward&,
                                                  int64_t) {
  return nullptr;
}

}  // namespace plo
