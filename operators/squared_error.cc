// sum_squared_error: the sum of (x - y)^2, and its gradient 2 (x - y) dloss.
//
// The sum is taken over chunks of kRowChunk elements in double, chunk by chunk
// in order, so it does not depend on the number of threads.
#include "framework/ir/op_registry.h"
#include "operators/elementwise.h"
#include "operators/gpu_layout.h"
#include "operators/infer_util.h"

namespace plo {
namespace {

void InferForward(InferContext& ctx) {
  RequireFloat(ctx, "x");
  RequireLike(ctx, "y", "x");
  ctx.Set("loss_sum", DType::kFp32, {1});
}

void InferBackward(InferContext& ctx) {
  RequireFloat(ctx, "x");
  RequireLike(ctx, "y", "x");
  RequireScalar(ctx, "dloss");
  SetLike(ctx, "dx", "x");
}

void ForwardKernel(KernelContext& ctx) {
  const Tensor& x = ctx.In("x");
  const Tensor& y = ctx.In("y");
  const FloatLoops& loops = GetFloatLoops();
  double total = 0;
  float xs[kRowChunk], ys[kRowChunk], difference[kRowChunk];
  ForRowChunks(x.numel, [&](int64_t begin, int64_t n) {
    loops.sub(FloatsAt(x.dtype, x.data, begin, n, xs),
              FloatsAt(y.dtype, y.data, begin, n, ys), n, difference);
    double lanes[8] = {};
    loops.sum_squares(difference, n, lanes);
    for (const double lane : lanes) total += lane;
  });
  *ctx.Out("loss_sum").as<float>() = static_cast<float>(total);
}

void BackwardKernel(KernelContext& ctx) {
  const float factor = 2.0f * *ctx.In("dloss").as<float>();
  const FloatLoops& loops = GetFloatLoops();
  MapBinary(ctx.In("x"), ctx.In("y"), ctx.Out("dx"),
            [&](const float* x, const float* y, int64_t n, float* out) {
              loops.sub(x, y, n, out);
              loops.scale(out, factor, 0.0f, n, out);
            });
}

void SquaredErrorGrad(GradContext& grad) {
  const Op& op = grad.op();
  const VarId x = op.In1("x");
  const VarId y = op.In1("y");
  const VarId dloss = grad.OutGrad("loss_sum");
  if (grad.NeedsGrad("x")) {
    grad.Emit("sum_squared_error_grad",
              {{"x", {x}}, {"y", {y}}, {"dloss", {dloss}}},
              {{"dx", {grad.InGrad("x")}}}, {});
  }
  // The loss is symmetric.
  if (grad.NeedsGrad("y")) {
    grad.Emit("sum_squared_error_grad",
              {{"x", {y}}, {"y", {x}}, {"dloss", {dloss}}},
              {{"dx", {grad.InGrad("y")}}}, {});
  }
}

}  // namespace

void RegisterSquaredError(OpRegistry& ops, KernelRegistry& kernels) {
  OpSchema forward;
  forward.type = "sum_squared_error";
  forward.inputs = {{"x"}, {"y"}};
  forward.outputs = {{"loss_sum"}};
  forward.infer = InferForward;
  forward.grad = SquaredErrorGrad;
  forward.cuda_workspace_bytes = [](const OpView& op) {
    return SumBlocks(op.In("x").shape.numel()) *
           static_cast<int64_t>(sizeof(double));
  };
  ops.Register(std::move(forward));
  kernels.Register("sum_squared_error", DeviceKind::kCpu, ForwardKernel);

  OpSchema backward;
  backward.type = "sum_squared_error_grad";
  backward.inputs = {{"x"}, {"y"}, {"dloss"}};
  backward.outputs = {{"dx"}};
  backward.infer = InferBackward;
  backward.cost = CostPerElement(2);
  backward.inplace = {{"dx", "x"}, {"dx", "y"}};
  ops.Register(std::move(backward));
  kernels.Register("sum_squared_error_grad", DeviceKind::kCpu, BackwardKernel);
}

}  // namespace plo
