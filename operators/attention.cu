// The attention ops on CUDA; see attention.cc and attention_cuda.h.
#include <memory>

#include "operators/attention_cuda.h"
#include "operators/attention_operands.h"
#include "operators/cuda_util.cuh"

namespace plo {
namespace {

// cuDNN reads and writes 16 bytes at a time.
bool Aligned(const HeadsView& view) {
  return reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
}

struct Launch {
  std::unique_ptr<CudnnAttention> cudnn;  // null: our own kernels
};

void ForwardKernel(KernelContext& c) {
  const auto [shape, op] = AttentionForwardCallOf(c);
  const Launch& launch = c.Cached<Launch>([&, &s = shape, &op = op] {
    TouchWorkspaceEnd(c);  // once: the bytes stay as they are
    const bool aligned =
        Aligned(op.q) && Aligned(op.k) && Aligned(op.v) && Aligned(op.out);
    if (CudnnForwardPart(s).batch == 0 || !aligned) return Launch{};
    return Launch{MakeCudnnForward(s, op, c.workspace_bytes())};
  });
  if (launch.cudnn != nullptr) {
    launch.cudnn->Forward(op, c.workspace(), c.native_stream());
  } else {
    RunPlainAttentionForward(shape, op, c.native_stream());
  }
}

void BackwardKernel(KernelContext& c) {
  const auto [shape, op] = AttentionBackwardCallOf(c);
  const Launch& launch = c.Cached<Launch>([&, &s = shape, &op = op] {
    TouchWorkspaceEnd(c);
    const bool aligned = Aligned(op.q) && Aligned(op.k) && Aligned(op.v) &&
                         Aligned(op.out) && Aligned(op.dout) &&
                         Aligned(op.dq) && Aligned(op.dk) && Aligned(op.dv);
    if (CudnnBackwardPart(s).batch == 0 || !aligned) return Launch{};
    return Launch{MakeCudnnBackward(s, op, c.workspace_bytes())};
  });
  if (launch.cudnn != nullptr) {
    launch.cudnn->Backward(op, c.workspace(), c.native_stream());
  } else {
    RunPlainAttentionBackward(shape, op, c.workspace(), c.native_stream());
  }
}

}  // namespace

void RegisterAttentionCuda(KernelRegistry& kernels) {
  kernels.Register("attention", DeviceKind::kCuda, ForwardKernel);
  kernels.Register("attention_qkv", DeviceKind::kCuda, ForwardKernel);
  kernels.Register("attention_grad", DeviceKind::kCuda, BackwardKernel);
  kernels.Register("attention_qkv_grad", DeviceKind::kCuda, BackwardKernel);
}

}  // namespace plo
