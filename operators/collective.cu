// all_reduce, reduce_scatter, all_gather on CUDA: enqueued by the comm. Without
// one, or with one rank, they are copies, or nothing where output and input
// coincide.
#include "operators/collective.h"
#include "operators/cuda_util.cuh"

namespace plo {
namespace {

void CopyIfApart(KernelContext& context) {
  const Tensor& x = context.In("x");
  const Tensor& out = context.Out("out");
  const int64_t bytes = x.numel * SizeOf(x.dtype);
  if (bytes == 0 || x.data == out.data) return;
  CheckCuda(cudaMemcpyAsync(out.data, x.data, static_cast<size_t>(bytes),
                            cudaMemcpyDeviceToDevice, StreamOf(context)),
            "cudaMemcpyAsync");
}

void AllReduceKernel(KernelContext& context) {
  const Tensor& out = context.Out("out");
  CopyIfApart(context);
  if (IsAlone(context)) return;
  context.env().comm->AllReduce(out.data, out.numel, out.dtype,
                                ReductionOf(context), context.native_stream());
}

void ReduceScatterKernel(KernelContext& context) {
  const Tensor& out = context.Out("out");
  if (IsAlone(context)) return CopyIfApart(context);
  context.env().comm->ReduceScatter(context.In("x").data, out.data, out.numel,
                                    out.dtype, ReductionOf(context),
                                    context.native_stream());
}

void AllGatherKernel(KernelContext& context) {
  const Tensor& x = context.In("x");
  if (IsAlone(context)) return CopyIfApart(context);
  context.env().comm->AllGather(x.data, context.Out("out").data, x.numel,
                                x.dtype, context.native_stream());
}

}  // namespace

void RegisterCollectiveCuda(KernelRegistry& kernels) {
  kernels.Register("all_reduce", DeviceKind::kCuda, AllReduceKernel);
  kernels.Register("reduce_scatter", DeviceKind::kCuda, ReduceScatterKernel);
  kernels.Register("all_gather", DeviceKind::kCuda, AllGatherKernel);
}

}  // namespace plo
