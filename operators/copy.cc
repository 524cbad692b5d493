// copy_d2h, copy_h2d: between device and pinned host memory.
#include <cstring>

#include "framework/ir/op_registry.h"
#include "operators/infer_util.h"
#include "operators/kernel_util.h"

namespace plo {
namespace {

void InferCopy(InferContext& ctx) { SetLike(ctx, "out", "x"); }

void CopyKernel(KernelContext& ctx) {
  const Tensor& x = ctx.In("x");
  const Tensor& out = ctx.Out("out");
  const int64_t bytes = x.numel * SizeOf(x.dtype);
  if (bytes > 0) std::memcpy(out.data, x.data, static_cast<size_t>(bytes));
}

void RegisterOne(OpRegistry& ops, KernelRegistry& kernels, const char* type,
                 StreamKind stream) {
  OpSchema schema;
  schema.type = type;
  schema.inputs = {{"x"}};
  schema.outputs = {{"out"}};
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
