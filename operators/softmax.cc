// softmax(x) -> out over the last axis, and
// softmax_grad(out, dout) -> dx: dx = out * (dout - sum(out * dout)).
//
// One row per task; two passes over x, one over out.
#include <utility>

#include "operators/kernel_util.h"
#include "operators/running_lse.h"
#include "operators/schema_util.h"
#include "operators/vector_ops.h"

namespace plo {
namespace {

void InferSoftmax(InferContext& c) {
  RequireFloat(c, "x");
  c.Require(c.shape("x").rank() >= 1, "x is a scalar");
  c.Set("out", c.dtype("x"), c.shape("x"));
}

void InferSoftmaxGrad(InferContext& c) {
  RequireFloat(c, "out");
  c.Require(c.shape("out").rank() >= 1, "out is a scalar");
  RequireLike(c, "dout", "out");
  c.Set("dx", c.dtype("out"), c.shape("out"));
}

void Grad(GradContext& c) {
  const VarId dout = c.OutGrad("out");
  if (dout == kNoId || !c.NeedsGrad("x")) return;
  const VarId dx = c.InGrad("x");
  c.Emit("softmax_grad", {{"out", {c.op().Out1("out")}}, {"dout", {dout}}},
         {{"dx", {dx}}}, {});
}

void SoftmaxKernel(KernelContext& c) {
  const Tensor& x = c.In("x");
  const Tensor& out = c.Out("out");
  const DType dtype = x.dtype;
  const int64_t n = RowLength(x.shape);
  ParallelFor(RowCount(x.shape), x.numel, [&](int64_t row) {
    const RunningLse lse = LseOfRow(dtype, x.data, row * n, n);
    const float factor = 1.0f / lse.sum;
    float buffer[kRowChunk];
    ForRowChunks(n, [&](int64_t begin, int64_t count) {
      const int64_t at = row * n + begin;
      const float* in = FloatsAt(dtype, x.data, at, count, buffer);
      float* target = FloatTarget(dtype, out.data, at, buffer);
      Vec().exp_sum(in, lse.shift(), target, count);
      Vec().scale(target, factor, target, count);
      StoreFloats(dtype, target, out.data, at, count);
    });
  });
}

void SoftmaxGradKernel(KernelContext& c) {
  const Tensor& out = c.In("out");
  const Tensor& dout = c.In("dout");
  const Tensor& dx = c.Out("dx");
  const DType dtype = out.dtype;
  const int64_t n = RowLength(out.shape);
  ParallelFor(RowCount(out.shape), out.numel, [&](int64_t row) {
    float p_buffer[kRowChunk], dp_buffer[kRowChunk];
    float delta = 0.0f;
    ForRowChunks(n, [&](int64_t begin, int64_t count) {
      const int64_t at = row * n + begin;
      delta +=
          Vec().dot(FloatsAt(dtype, out.data, at, count, p_buffer),
                    FloatsAt(dtype, dout.data, at, count, dp_buffer), count);
    });
    ForRowChunks(n, [&](int64_t begin, int64_t count) {
      const int64_t at = row * n + begin;
      const float* p = FloatsAt(dtype, out.data, at, count, p_buffer);
      const float* dp = FloatsAt(dtype, dout.data, at, count, dp_buffer);
      float* target = FloatTarget(dtype, dx.data, at, dp_buffer);
      Vec().softmax_backward(p, dp, delta, 1.0f, target, count);
      StoreFloats(dtype, target, dx.data, at, count);
    });
  });
}

}  // namespace

void RegisterSoftmax(OpRegistry& ops, KernelRegistry& kernels) {
  OpSchema s;
  s.type = "softmax";
  s.inputs = {{"x"}};
  s.outputs = {{"out"}};
  s.infer = InferSoftmax;
  s.grad = Grad;
  s.cost = [](const OpView& op) -> OpCost {
    return {5.0 * static_cast<double>(op.In("x").shape.numel()),
            OperandBytes(op)};
  };
  s.inplace = {{"out", "x"}};
  s.cheap = true;
  ops.Register(std::move(s));
  kernels.Register("softmax", DeviceKind::kCpu, SoftmaxKernel);

  OpSchema g;
  g.type = "softmax_grad";
  g.inputs = {{"out"}, {"dout"}};
  g.outputs = {{"dx"}};
  g.infer = InferSoftmaxGrad;
  g.cost = [](const OpView& op) -> OpCost {
    return {4.0 * static_cast<double>(op.In("out").shape.numel()),
            OperandBytes(op)};
  };
  g.inplace = {{"dx", "dout"}};
  ops.Register(std::move(g));
  kernels.Register("softmax_grad", DeviceKind::kCpu, SoftmaxGradKernel);
}

}  // namespace plo
