// cast: between float types, on the device or on the host. Widening is exact;
// narrowing rounds to nearest, ties to even.
#include "framework/ir/op_registry.h"
#include "operators/elementwise.h"
#include "operators/infer_util.h"

namespace plo {
namespace {

void InferCast(InferContext& ctx) {
  RequireFloat(ctx, "x");
  const DType dtype = ParseDType(ctx.attrs().GetString("dtype"));
  ctx.Require(IsFloat(dtype), "dtype must be a float type, is ", dtype);
  ctx.Set("out", dtype, ctx.shape("x"));
}

void CastKernel(KernelContext& ctx) {
  const Tensor& x = ctx.In("x");
  const Tensor& out = ctx.Out("out");
  ParallelRanges(x.numel, kElementwiseGrain, [&](int64_t begin, int64_t end) {
    const int64_t n = end - begin;
    const void* from = ElementAt(x.dtype, x.data, begin);
    void* to = ElementAt(out.dtype, out.data, begin);
    if (out.dtype == DType::kFp32) {
      return ConvertToFloat(x.dtype, from, static_cast<float*>(to), n);
    }
    if (x.dtype == DType::kFp32) {
      return ConvertFromFloat(out.dtype, static_cast<const float*>(from), to,
                              n);
    }
    float buffer[kRowChunk];
    ForRowChunks(n, [&](int64_t offset, int64_t count) {
      FloatsAt(x.dtype, from, offset, count, buffer);
      StoreFloats(out.dtype, buffer, to, offset, count);
    });
  });
}

void CastGrad(GradContext& grad) {
  if (!grad.NeedsGrad("x")) return;
  const Var x = grad.program().var(grad.op().In1("x"));
  AttrMap attrs;
  attrs.Set("dtype", std::string(DTypeName(x.dtype)));
  grad.Emit("cast", {{"x", {grad.OutGrad("out")}}},
            {{"out", {grad.InGrad("x")}}}, attrs);
}

}  // namespace

void RegisterCast(OpRegistry& ops, KernelRegistry& kernels) {
  OpSchema schema;
  schema.type = "cast";
  schema.inputs = {{"x"}};
  schema.outputs = {{"out"}};
  schema.attrs = {{"dtype", AttrType::kString}};
  schema.infer = InferCast;
  schema.grad = CastGrad;
  schema.cheap = true;
  schema.where = OpSchema::Where::kDeviceOrHost;
  ops.Register(std::move(schema));
  kernels.Register("cast", DeviceKind::kCpu, CastKernel);
}

}  // namespace plo
