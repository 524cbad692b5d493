// copy_d2h, copy_h2d: asynchronous copies between device and pinned memory.
#include "operators/cuda_util.cuh"

namespace plo {
namespace {

void CopyKernel(KernelContext& context) {
  const Tensor& x = context.In("x");
  const Tensor& out = context.Out("out");
  const int64_t bytes = x.numel * SizeOf(x.dtype);
  if (bytes == 0) return;
  CheckCuda(cudaMemcpyAsync(out.data, x.data, static_cast<size_t>(bytes),
                            cudaMemcpyDefault, StreamOf(context)),
            "cudaMemcpyAsync");
}

}  // namespace

void RegisterCopyCuda(KernelRegistry& kernels) {
  kernels.Register("copy_d2h", DeviceKind::kCuda, CopyKernel);
  kernels.Register("copy_h2d", DeviceKind::kCuda, CopyKernel);
}

}  // namespace plo
