// copy_d2h, copy_h2d: between device and pinned host memory. out[i] becomes a
// copy of x[i]. Several vars go in one launch: what a stream may have pending
// is limited.
#include <cstring>

#include "framework/ir/op_registry.h"
#include "operators/infer_util.h"
#include "operators/kernel_util.h"

namespace plo {
namespace {

void InferCopy(InferContext& ctx) {
  const int count = ctx.Count("x");
  const auto targets = static_cast<int>(ctx.op().Out("out").size());
  ctx.Require(targets == count, "copies ", count, " vars to ", targets);
  for (int i = 0; i < count; ++i) {
    ctx.Set("out", ctx.dtype("x", i), ctx.shape("x", i), i);
  }
}

void CopyKernel(KernelContext& ctx) {
  for (int i = 0; i < ctx.InCount("x"); ++i) {
    const Tensor& x = ctx.In("x", i);
    const int64_t bytes = x.numel * SizeOf(x.dtype);
    if (bytes == 0) continue;
    std::memcpy(ctx.Out("out", i).data, x.data, static_cast<size_t>(bytes));
  }
}

void RegisterOne(OpRegistry& ops, KernelRegistry& kernels, const char* type,
                 StreamKind stream) {
  OpSchema schema;
  schema.type = type;
  schema.inputs = {{"x", /*optional=*/false, /*variadic=*/true}};
  schema.outputs = {{"out", /*optional=*/false, /*variadic=*/true}};
  schema.infer = InferCopy;
  schema.stream = stream;
  schema.where = OpSchema::Where::kCopy;
  ops.Register(std::move(schema));
  kernels.Register(type, DeviceKind::kCpu, CopyKernel);
}

}  // namespace

void RegisterCopy(OpRegistry& ops, KernelRegistry& kernels) {
  RegisterOne(ops, kernels, "copy_d2h", StreamKind::kD2H);
  RegisterOne(ops, kernels, "copy_h2d", StreamKind::kH2D);
}

}  // namespace plo
