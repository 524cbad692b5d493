// all_reduce, reduce_scatter, all_gather over all ranks. Without a comm, or
// with one rank, they are copies, or nothing where output and input coincide.
#include "operators/collective.h"

#include <cstring>

#include "framework/ir/op_registry.h"
#include "operators/infer_util.h"
#include "operators/kernel_util.h"

namespace plo {
namespace {

void CheckReduction(InferContext& ctx) {
  const std::string& reduction = ctx.attrs().GetString("reduction");
  ctx.Require(reduction == "sum" || reduction == "max",
              "reduction must be 'sum' or 'max', is '", reduction, "'");
}

void InferAllReduce(InferContext& ctx) {
  CheckReduction(ctx);
  SetLike(ctx, "out", "x");
}

void InferReduceScatter(InferContext& ctx) {
  CheckReduction(ctx);
  const int ranks = ctx.program().world_size;
  const Shape& x = ctx.shape("x");
  ctx.Require(x.rank() == 1 && x[0] % ranks == 0,
              "x must be [n] with n a "
              "multiple of the ",
              ranks, " ranks");
  ctx.Set("out", ctx.dtype("x"), {x[0] / ranks});
}

void InferAllGather(InferContext& ctx) {
  const Shape& x = ctx.shape("x");
  ctx.Require(x.rank() == 1, "x must have one dimension");
  ctx.Set("out", ctx.dtype("x"), {x[0] * ctx.program().world_size});
}

void CopyIfApart(const Tensor& x, const Tensor& out) {
  const int64_t bytes = x.numel * SizeOf(x.dtype);
  if (bytes == 0 || x.data == out.data) return;
  std::memcpy(out.data, x.data, static_cast<size_t>(bytes));
}

void AllReduceKernel(KernelContext& ctx) {
  const Tensor& x = ctx.In("x");
  const Tensor& out = ctx.Out("out");
  CopyIfApart(x, out);
  if (IsAlone(ctx)) return;
  ctx.env().comm->AllReduce(out.data, out.numel, out.dtype, ReductionOf(ctx),
                            ctx.native_stream());
}

void ReduceScatterKernel(KernelContext& ctx) {
  const Tensor& x = ctx.In("x");
  const Tensor& out = ctx.Out("out");
  if (IsAlone(ctx)) return CopyIfApart(x, out);
  ctx.env().comm->ReduceScatter(x.data, out.data, out.numel, out.dtype,
                                ReductionOf(ctx), ctx.native_stream());
}

void AllGatherKernel(KernelContext& ctx) {
  const Tensor& x = ctx.In("x");
  const Tensor& out = ctx.Out("out");
  if (IsAlone(ctx)) return CopyIfApart(x, out);
  ctx.env().comm->AllGather(x.data, out.data, x.numel, x.dtype,
                            ctx.native_stream());
}

void RegisterOne(OpRegistry& ops, KernelRegistry& kernels, const char* type,
                 void (*infer)(InferContext&), Kernel kernel, bool reduces) {
  OpSchema schema;
  schema.type = type;
  schema.inputs = {{"x"}};
  schema.outputs = {{"out"}};
  if (reduces) {
    schema.attrs = {
        {"reduction", AttrType::kString, false, std::string("sum")}};
  }
  schema.infer = infer;
  schema.stream = StreamKind::kComm;
  schema.collective = true;
  schema.side_effect = true;  // the other ranks wait for it
  ops.Register(std::move(schema));
  kernels.Register(type, DeviceKind::kCpu, kernel);
}

}  // namespace

void RegisterCollective(OpRegistry& ops, KernelRegistry& kernels) {
  RegisterOne(ops, kernels, "all_reduce", InferAllReduce, AllReduceKernel,
              true);
  RegisterOne(ops, kernels, "reduce_scatter", InferReduceScatter,
              ReduceScatterKernel, true);
  RegisterOne(ops, kernels, "all_gather", InferAllGather, AllGatherKernel,
              false);
}

}  // namespace plo
