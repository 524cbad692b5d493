// gelu, relu, silu, tanh and their gradients.
//
// Gradients are computed from the rounded input alone, so the outputs need not
// be kept, and dx may take dout's bytes.
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

void Backward(KernelContext& ctx, FloatLoops::Binary loop) {
  MapBinary(ctx.In("x"), ctx.In("dout"), ctx.Out("dx"), loop);
}

void Gelu(KernelContext& ctx) {
  const FloatLoops& loops = GetFloatLoops();
  Forward(ctx, IsTanhGelu(ctx.attrs()) ? loops.gelu_tanh : loops.gelu_erf);
}
void GeluGradKernel(KernelContext& ctx) {
  const FloatLoops& loops = GetFloatLoops();
  Backward(ctx, IsTanhGelu(ctx.attrs()) ? loops.gelu_tanh_grad
                                        : loops.gelu_erf_grad);
}
void Relu(KernelContext& ctx) { Forward(ctx, GetFloatLoops().relu); }
void ReluGradKernel(KernelContext& ctx) {
  Backward(ctx, GetFloatLoops().relu_grad);
}
void SiluKernel(KernelContext& ctx) { Forward(ctx, GetFloatLoops().silu); }
void SiluGradKernel(KernelContext& ctx) {
  Backward(ctx, GetFloatLoops().silu_grad);
}
void TanhKernel(KernelContext& ctx) { Forward(ctx, GetFloatLoops().tanh); }
void TanhGradKernel(KernelContext& ctx) {
  Backward(ctx, GetFloatLoops().tanh_grad);
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
  backward.outputs = {{"dx"}};
  backward.attrs = attrs;
  backward.infer = gelu ? InferGeluGrad : InferBackward;
  backward.cost = CostPerElement(2 * activation.flops);
  backward.inplace = {{"dx", "dout"}, {"dx", "x"}};
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
