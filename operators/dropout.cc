// dropout and its gradient, which draws the same mask again.
//
// The mask of an element is keyed by (program seed, the op's random_id, global
// sample, element in the sample), so it is the same for every rank count,
// sharding and recompute; see operators/random.h.
#include <cmath>

#include "framework/ir/op_registry.h"
#include "operators/float_loops.h"
#include "operators/infer_util.h"
#include "operators/kernel_util.h"
#include "operators/random.h"

namespace plo {
namespace {

void Infer(InferContext& ctx, const char* in, const char* out) {
  RequireFloat(ctx, in);
  const double p = ctx.attrs().GetFloat("p");
  ctx.Require(p >= 0 && p < 1, "p must be in [0, 1), is ", p);
  SetLike(ctx, out, in);
}

void InferForward(InferContext& ctx) { Infer(ctx, "x", "out"); }
void InferBackward(InferContext& ctx) { Infer(ctx, "dout", "dx"); }

void Apply(KernelContext& ctx, const Tensor& x, const Tensor& out) {
  if (x.numel == 0) return;
  const double p = ctx.attrs().GetFloat("p");
  const float threshold = static_cast<float>(p);
  const float factor = static_cast<float>(1.0 / (1.0 - p));
  const uint64_t key =
      RandomKey(ctx.env().seed, static_cast<uint64_t>(ctx.op().random_id));
  const int64_t samples = x.shape.rank() == 0 ? 1 : x.shape[0];
  const int64_t length = x.numel / samples;
  // Runs start at whole blocks of the generator.
  static_assert(kRowChunk % 4 == 0);
  const int64_t runs = CeilDiv(length, kRowChunk);
  const FloatLoops& loops = GetFloatLoops();
  const KernelEnv& env = ctx.env();
  const StepInfo& step = ctx.step();
  ParallelFor(samples * runs, x.numel, [&](int64_t unit) {
    const int64_t index = unit / runs;
    const int64_t begin = unit % runs * kRowChunk;
    const int64_t n = std::min(kRowChunk, length - begin);
    const uint64_t sample =
        GlobalSample(step.data_step, env.accumulate_steps, step.micro_index,
                     env.world_size, env.rank, samples, index);
    float draws[kRowChunk], buffer[kRowChunk], results[kRowChunk];
    loops.uniform(key, sample, static_cast<uint64_t>(begin / 4), n, draws);
    const int64_t at = index * length + begin;
    const float* values = FloatsAt(x.dtype, x.data, at, n, buffer);
    float* target = FloatTarget(out.dtype, out.data, at, results);
    loops.dropout(values, draws, threshold, factor, n, target);
    StoreFloats(out.dtype, target, out.data, at, n);
  });
}

void DropoutKernel(KernelContext& ctx) {
  Apply(ctx, ctx.In("x"), ctx.Out("out"));
}

void DropoutGradKernel(KernelContext& ctx) {
  Apply(ctx, ctx.In("dout"), ctx.Out("dx"));
}

void DropoutGrad(GradContext& grad) {
  if (!grad.NeedsGrad("x")) return;
  grad.Emit("dropout_grad", {{"dout", {grad.OutGrad("out")}}},
            {{"dx", {grad.InGrad("x")}}}, grad.op().attrs);
}

}  // namespace

void RegisterDropout(OpRegistry& ops, KernelRegistry& kernels) {
  OpSchema forward;
  forward.type = "dropout";
  forward.inputs = {{"x"}};
  forward.outputs = {{"out"}};
  forward.attrs = {{"p", AttrType::kFloat}};
  forward.infer = InferForward;
  forward.grad = DropoutGrad;
  forward.cost = CostPerElement(20);
  forward.inplace = {{"out", "x"}};
  forward.cheap = true;
  forward.random = true;
  ops.Register(std::move(forward));
  kernels.Register("dropout", DeviceKind::kCpu, DropoutKernel);

  OpSchema backward;
  backward.type = "dropout_grad";
  backward.inputs = {{"dout"}};
  backward.outputs = {{"dx"}};
  backward.attrs = {{"p", AttrType::kFloat}};
  backward.infer = InferBackward;
  backward.cost = CostPerElement(20);
  backward.inplace = {{"dx", "dout"}};
  backward.random = true;
  ops.Register(std::move(backward));
  kernels.Register("dropout_grad", DeviceKind::kCpu, DropoutGradKernel);
}

}  // namespace plo
