// gelu, relu, silu, tanh and their gradients.
//
// Gradients are computed from the rounded input alone, so the outputs need not
// be kept, and dx may take dout's bytes. gelu_grad(x, dout) -> dx, out? and its
// like also give the output of the op itself, with the op's bits, where
// backward needs it again; it may take x's bytes.
#include "framework/ir/op_registry.h"
#include "operators/elementwise.h"
#include "operators/infer_util.h"

namespace plo {
namespace {

void InferForward(InferContext& ctx) {
  RequireFloat(ctx, "x");
  SetLike(ctx, "out", "x");
}

void InferBackward(InferContext& ctx) {
  RequireFloat(ctx, "x");
  RequireLike(ctx, "dout", "x");
  SetLike(ctx, "dx", "x");
  SetLike(ctx, "out", "x");
}

bool IsTanhGelu(const AttrMap& attrs) {
  return attrs.GetString("approximate") == "tanh";
}

void CheckApproximate(InferContext& ctx) {
  const std::string& kind = ctx.attrs().GetString("approximate");
  ctx.Require(kind == "tanh" || kind == "erf",
              "approximate must be 'tanh' or 'erf', is '", kind, "'");
}

void InferGelu(InferContext& ctx) {
  CheckApproximate(ctx);
  InferForward(ctx);
}

void InferGeluGrad(InferContext& ctx) {
  CheckApproximate(ctx);
  InferBackward(ctx);
}

void Forward(KernelContext& ctx, FloatLoops::Unary loop) {
  MapUnary(ctx.In("x"), ctx.Out("out"), loop);
}

// dx and out may take the bytes of x and dout, so neither is written before the
// other is computed.
void Backward(KernelContext& ctx, FloatLoops::Binary gradient,
              FloatLoops::Unary value) {
  const Tensor& x = ctx.In("x");
  const Tensor& dout = ctx.In("dout");
  const Tensor& dx = ctx.Out("dx");
  const Tensor* out = ctx.TryOut("out");
  if (out == nullptr) return MapBinary(x, dout, dx, gradient);
  ParallelRanges(x.numel, kElementwiseGrain, [&](int64_t begin, int64_t end) {
    float x_buffer[kRowChunk], dout_buffer[kRowChunk];
    float dx_buffer[kRowChunk], values[kRowChunk];
    ForRowChunks(end - begin, [&](int64_t offset, int64_t n) {
      const int64_t at = begin + offset;
      const float* xs = FloatsAt(x.dtype, x.data, at, n, x_buffer);
      const float* douts = FloatsAt(x.dtype, dout.data, at, n, dout_buffer);
      float* target = FloatTarget(x.dtype, dx.data, at, dx_buffer);
      value(xs, n, values);
      gradient(xs, douts, n, target);
      StoreFloats(x.dtype, target, dx.data, at, n);
      StoreFloats(x.dtype, values, out->data, at, n);
    });
  });
}

void Gelu(KernelContext& ctx) {
  const FloatLoops& loops = GetFloatLoops();
  Forward(ctx, IsTanhGelu(ctx.attrs()) ? loops.gelu_tanh : loops.gelu_erf);
}
void GeluGradKernel(KernelContext& ctx) {
  const FloatLoops& loops = GetFloatLoops();
  if (IsTanhGelu(ctx.attrs())) {
    return Backward(ctx, loops.gelu_tanh_grad, loops.gelu_tanh);
  }
  Backward(ctx, loops.gelu_erf_grad, loops.gelu_erf);
}
void Relu(KernelContext& ctx) { Forward(ctx, GetFloatLoops().relu); }
void ReluGradKernel(KernelContext& ctx) {
  Backward(ctx, GetFloatLoops().relu_grad, GetFloatLoops().relu);
}
void SiluKernel(KernelContext& ctx) { Forward(ctx, GetFloatLoops().silu); }
void SiluGradKernel(KernelContext& ctx) {
  Backward(ctx, GetFloatLoops().silu_grad, GetFloatLoops().silu);
}
void TanhKernel(KernelContext& ctx) { Forward(ctx, GetFloatLoops().tanh); }
void TanhGradKernel(KernelContext& ctx) {
  Backward(ctx, GetFloatLoops().tanh_grad, GetFloatLoops().tanh);
}

void EmitGrad(GradContext& grad) {
  if (!grad.NeedsGrad("x")) return;
  grad.Emit(grad.op().type + "_grad",
            {{"x", {grad.op().In1("x")}}, {"dout", {grad.OutGrad("out")}}},
            {{"dx", {grad.InGrad("x")}}}, grad.op().attrs);
}

struct Activation {
  const char* type;
  Kernel forward, backward;
  double flops;
};

void RegisterOne(OpRegistry& ops, KernelRegistry& kernels,
                 const Activation& activation, bool gelu) {
  std::vector<AttrDef> attrs;
  if (gelu) {
    attrs = {{"approximate", AttrType::kString, false, std::string("tanh")}};
  }
  OpSchema forward;
  forward.type = activation.type;
  forward.inputs = {{"x"}};
  forward.outputs = {{"out"}};
  forward.attrs = attrs;
  forward.infer = gelu ? InferGelu : InferForward;
  forward.grad = EmitGrad;
  forward.cost = CostPerElement(activation.flops);
  forward.inplace = {{"out", "x"}};
  forward.cheap = true;
  ops.Register(std::move(forward));
  kernels.Register(activation.type, DeviceKind::kCpu, activation.forward);

  const std::string type = std::string(activation.type) + "_grad";
  OpSchema backward;
  backward.type = type;
  backward.inputs = {{"x"}, {"dout"}};
  // fuse_ops adds out.
  backward.outputs = {{"dx"}, Optional("out")};
  backward.attrs = attrs;
  backward.infer = gelu ? InferGeluGrad : InferBackward;
  backward.cost = [flops = activation.flops](const OpView& op) {
    const bool both = !op.op().Out("out").empty();
    return CostPerElement((both ? 3 : 2) * flops)(op);
  };
  backward.inplace = {{"dx", "dout"}, {"dx", "x"}, {"out", "x"}};
  ops.Register(std::move(backward));
  kernels.Register(type, DeviceKind::kCpu, activation.backward);
}

}  // namespace

void RegisterActivation(OpRegistry& ops, KernelRegistry& kernels) {
  RegisterOne(ops, kernels, {"gelu", Gelu, GeluGradKernel, 30}, true);
  RegisterOne(ops, kernels, {"relu", Relu, ReluGradKernel, 1}, false);
  RegisterOne(ops, kernels, {"silu", SiluKernel, SiluGradKernel, 20}, false);
  RegisterOne(ops, kernels, {"tanh", TanhKernel, TanhGradKernel, 25}, false);
}

}  // namespace plo
