// Attention on CUDA: cuDNN's flash attention where it serves, else our own
// tiled kernels. Both give the same lse, so that a forward of the one fits a
// backward of the other.
#ifndef PLO_OPERATORS_ATTENTION_CUDA_H_
#define PLO_OPERATORS_ATTENTION_CUDA_H_

#include <cstdint>
#include <memory>

#include "operators/attention_core.h"

namespace plo {

// Scratch of either path, from shapes only: a build or a device without cuDNN
// plans the same.
int64_t CudaAttentionForwardWorkspace(const AttentionShape& shape);
int64_t CudaAttentionBackwardWorkspace(const AttentionShape& shape);

// --- cuDNN ---

// One call takes this much of the whole, which it divides. cuDNN's
// deterministic backward keeps the grads of scores in 16 bits, so a call is cut
// to keep them small: batch by batch, or by kv heads where one sample is much.
struct CudnnPart {
  int64_t batch = 0, kv_heads = 0;  // zero: cuDNN does not serve the shape
};
CudnnPart CudnnForwardPart(const AttentionShape& shape);
CudnnPart CudnnBackwardPart(const AttentionShape& shape);

class CudnnAttention {
 public:
  virtual ~CudnnAttention() = default;
  virtual void Forward(const AttentionForward& op, void* workspace,
                       void* stream) = 0;
  virtual void Backward(const AttentionBackward& op, void* workspace,
                        void* stream) = 0;
};

// Null, with a warning that gives the reason, where cuDNN is absent or refuses.
// Throws Internal if it wants more than `workspace_bytes`. The operands give
// the strides; later calls must have the same.
std::unique_ptr<CudnnAttention> MakeCudnnForward(const AttentionShape& shape,
                                                 const AttentionForward& op,
                                                 int64_t workspace_bytes);
std::unique_ptr<CudnnAttention> MakeCudnnBackward(const AttentionShape& shape,
                                                  const AttentionBackward& op,
                                                  int64_t workspace_bytes);

// --- Our own kernels: fp32 arithmetic, any head size ---

void RunPlainAttentionForward(const AttentionShape& shape,
                              const AttentionForward& op, void* stream);
// `workspace` holds a float per row of scores.
void RunPlainAttentionBackward(const AttentionShape& shape,
                               const AttentionBackward& op, void* workspace,
                               void* stream);

}  // namespace plo

#endif  // PLO_OPERATORS_ATTENTION_CUDA_H_
