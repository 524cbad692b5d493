// add, sub, mul, div with numpy broadcasting; scale.
//
// Computed in fp32 and rounded once. Gradients of broadcast operands go through
// reduce_to_shape (operators/reduce.cc).
#include "operators/elementwise.h"

#include "framework/ir/op_registry.h"
#include "operators/broadcast.h"
#include "operators/infer_util.h"

namespace plo {
namespace {

void InferBinary(InferContext& ctx) {
  RequireFloat(ctx, "x");
  RequireDTypeLike(ctx, "y", "x");
  const Shape& x = ctx.shape("x");
  const Shape& y = ctx.shape("y");
  ctx.Require(x.rank() <= kMaxRank && y.rank() <= kMaxRank, "at most ",
              kMaxRank, " dimensions");
  Shape out;
  try {
    out = BroadcastShapes(x, y);
  } catch (const Error& error) {
    ctx.Fail(error.message());
  }
  ctx.Set("out", ctx.dtype("x"), std::move(out));
}

StridedLoop<3> MakeBinaryLoop(const Shape& x, const Shape& y,
                              const Shape& out) {
  StridedLoop<3> loop;
  const int rank = out.rank();
  const auto out_strides = BroadcastStrides(out, rank);
  const auto x_strides = BroadcastStrides(x, rank);
  const auto y_strides = BroadcastStrides(y, rank);
  for (int i = 0; i < rank; ++i) {
    loop.Add(out[i], {out_strides[i], x_strides[i], y_strides[i]});
  }
  loop.Finish();
  return loop;
}

// A run of `n` values of which the operand holds all or, with stride 0, one.
const float* RunAt(const Tensor& t, int64_t offset, int64_t at, int64_t stride,
                   int64_t n, float* buffer) {
  if (stride != 0) {
    return FloatsAt(t.dtype, t.data, offset + at, n, buffer);
  }
  float value;
  value = *FloatsAt(t.dtype, t.data, offset, 1, &value);
  std::fill(buffer, buffer + n, value);
  return buffer;
}

void RunBinary(KernelContext& ctx, FloatLoops::Binary compute) {
  const Tensor& x = ctx.In("x");
  const Tensor& y = ctx.In("y");
  const Tensor& out = ctx.Out("out");
  if (x.shape == y.shape) return MapBinary(x, y, out, compute);
  if (out.numel == 0) return;
  const StridedLoop<3> loop = MakeBinaryLoop(x.shape, y.shape, out.shape);
  const int outer = loop.rank - 1;
  const int64_t inner = loop.inner();
  const auto& strides = loop.stride[outer];
  const int64_t chunks = CeilDiv(inner, kElementwiseGrain);
  ParallelFor(loop.Count(outer) * chunks, out.numel, [&](int64_t unit) {
    float xs[kRowChunk], ys[kRowChunk], results[kRowChunk];
    const auto offsets = loop.Offsets(unit / chunks, outer);
    const int64_t begin = unit % chunks * kElementwiseGrain;
    const int64_t end = std::min(inner, begin + kElementwiseGrain);
    ForRowChunks(end - begin, [&](int64_t start, int64_t n) {
      const int64_t at = begin + start;
      float* target =
          FloatTarget(out.dtype, out.data, offsets[0] + at, results);
      compute(RunAt(x, offsets[1], at, strides[1], n, xs),
              RunAt(y, offsets[2], at, strides[2], n, ys), n, target);
      StoreFloats(out.dtype, target, out.data, offsets[0] + at, n);
    });
  });
}

void AddKernel(KernelContext& ctx) { RunBinary(ctx, GetFloatLoops().add); }
void SubKernel(KernelContext& ctx) { RunBinary(ctx, GetFloatLoops().sub); }
void MulKernel(KernelContext& ctx) { RunBinary(ctx, GetFloatLoops().mul); }
void DivKernel(KernelContext& ctx) { RunBinary(ctx, GetFloatLoops().div); }

// --- Gradients ---

Var InVar(const GradContext& grad, std::string_view slot) {
  return grad.program().var(grad.op().In1(slot));
}

// Writes the grad of input `slot` from `value`, which has the shape of the
// output. A view costs nothing, but a param's grad must be bytes of its own.
void EmitReduced(GradContext& grad, std::string_view slot, VarId value) {
  const Var in = InVar(grad, slot);
  const bool same = in.shape == grad.program().var(value).shape;
  const bool view = same && in.kind != VarKind::kParam;
  AttrMap attrs;
  attrs.Set("shape", in.shape.dims());
  grad.Emit(view ? "reshape" : "reduce_to_shape", {{"x", {value}}},
            {{"out", {grad.InGrad(slot)}}}, attrs);
}

// Emits a binary op for the grad of input `slot`, reduced where the input was
// broadcast.
void EmitBinaryGrad(GradContext& grad, std::string_view slot, std::string type,
                    VarId a, VarId b) {
  const Var in = InVar(grad, slot);
  const Shape out = grad.program().var(grad.op().Out1("out")).shape;
  if (in.shape == out) {
    grad.Emit(std::move(type), {{"x", {a}}, {"y", {b}}},
              {{"out", {grad.InGrad(slot)}}}, {});
    return;
  }
  const VarId full = grad.Temp(in.dtype, out, slot);
  grad.Emit(std::move(type), {{"x", {a}}, {"y", {b}}}, {{"out", {full}}}, {});
  EmitReduced(grad, slot, full);
}

void EmitScaled(GradContext& grad, VarId x, double factor, VarId out) {
  AttrMap attrs;
  attrs.Set("factor", factor);
  grad.Emit("scale", {{"x", {x}}}, {{"out", {out}}}, attrs);
}

// Writes the grad of y as `factor` times `value`.
void EmitScaledReduced(GradContext& grad, std::string_view slot, VarId value,
                       double factor) {
  const Var in = InVar(grad, slot);
  const Shape shape = grad.program().var(value).shape;
  if (in.shape == shape)
    return EmitScaled(grad, value, factor, grad.InGrad(slot));
  const VarId scaled = grad.Temp(in.dtype, shape, slot);
  EmitScaled(grad, value, factor, scaled);
  EmitReduced(grad, slot, scaled);
}

void AddGrad(GradContext& grad) {
  const VarId dout = grad.OutGrad("out");
  if (grad.NeedsGrad("x")) EmitReduced(grad, "x", dout);
  if (grad.NeedsGrad("y")) EmitReduced(grad, "y", dout);
}

void SubGrad(GradContext& grad) {
  const VarId dout = grad.OutGrad("out");
  if (grad.NeedsGrad("x")) EmitReduced(grad, "x", dout);
  if (grad.NeedsGrad("y")) EmitScaledReduced(grad, "y", dout, -1.0);
}

void MulGrad(GradContext& grad) {
  const VarId dout = grad.OutGrad("out");
  const Op& op = grad.op();
  if (grad.NeedsGrad("x")) {
    EmitBinaryGrad(grad, "x", "mul", dout, op.In1("y"));
  }
  if (grad.NeedsGrad("y")) {
    EmitBinaryGrad(grad, "y", "mul", dout, op.In1("x"));
  }
}

// dx = dout / y, dy = -(dout / y) (x / y)
void DivGrad(GradContext& grad) {
  const VarId dout = grad.OutGrad("out");
  const Op& op = grad.op();
  const Var out = grad.program().var(op.Out1("out"));
  const DType dtype = out.dtype;
  const Shape shape = out.shape;
  if (grad.NeedsGrad("x")) {
    EmitBinaryGrad(grad, "x", "div", dout, op.In1("y"));
  }
  if (!grad.NeedsGrad("y")) return;
  const VarId over = grad.Temp(dtype, shape, "y");
  const VarId product = grad.Temp(dtype, shape, "y");
  grad.Emit("div", {{"x", {dout}}, {"y", {op.In1("y")}}}, {{"out", {over}}},
            {});
  grad.Emit("mul", {{"x", {over}}, {"y", {op.Out1("out")}}},
            {{"out", {product}}}, {});
  EmitScaledReduced(grad, "y", product, -1.0);
}

// --- scale ---

void InferScale(InferContext& ctx) {
  RequireFloat(ctx, "x");
  SetLike(ctx, "out", "x");
}

void ScaleKernel(KernelContext& ctx) {
  const float factor = static_cast<float>(ctx.attrs().GetFloat("factor"));
  const float bias = static_cast<float>(ctx.attrs().GetFloat("bias"));
  const FloatLoops& loops = GetFloatLoops();
  MapUnary(ctx.In("x"), ctx.Out("out"),
           [&](const float* x, int64_t n, float* out) {
             loops.scale(x, factor, bias, n, out);
           });
}

void ScaleGrad(GradContext& grad) {
  if (!grad.NeedsGrad("x")) return;
  EmitScaled(grad, grad.OutGrad("out"), grad.op().attrs.GetFloat("factor"),
             grad.InGrad("x"));
}

void RegisterBinary(OpRegistry& ops, KernelRegistry& kernels, const char* type,
                    Kernel kernel, void (*gradient)(GradContext&)) {
  OpSchema schema;
  schema.type = type;
  schema.inputs = {{"x"}, {"y"}};
  schema.outputs = {{"out"}};
  schema.infer = InferBinary;
  schema.grad = gradient;
  schema.cost = CostPerElement(1);
  schema.inplace = {{"out", "x"}, {"out", "y"}};
  ops.Register(std::move(schema));
  kernels.Register(type, DeviceKind::kCpu, kernel);
}

}  // namespace

void RegisterElementwise(OpRegistry& ops, KernelRegistry& kernels) {
  RegisterBinary(ops, kernels, "add", AddKernel, AddGrad);
  RegisterBinary(ops, kernels, "sub", SubKernel, SubGrad);
  RegisterBinary(ops, kernels, "mul", MulKernel, MulGrad);
  RegisterBinary(ops, kernels, "div", DivKernel, DivGrad);
  OpSchema scale;
  scale.type = "scale";
  scale.inputs = {{"x"}};
  scale.outputs = {{"out"}};
  scale.attrs = {FloatAttr("factor", 1.0), FloatAttr("bias", 0.0)};
  scale.infer = InferScale;
  scale.grad = ScaleGrad;
  scale.cost = CostPerElement(2);
  scale.inplace = {{"out", "x"}};
  ops.Register(std::move(scale));
  kernels.Register("scale", DeviceKind::kCpu, ScaleKernel);
}

}  // namespace plo
