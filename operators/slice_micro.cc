// slice_micro: the part of a feed, [accumulate_steps, ...], that the current
// micro-step reads.
#include <cstring>

#include "framework/ir/op_registry.h"
#include "operators/infer_util.h"
#include "operators/kernel_util.h"

namespace plo {
namespace {

void InferSliceMicro(InferContext& ctx) {
  const Shape& x = ctx.shape("x");
  ctx.Require(x.rank() >= 1, "x needs a leading dimension of micro-steps");
  ctx.Set("out", ctx.dtype("x"),
          Shape(std::vector<int64_t>(x.dims().begin() + 1, x.dims().end())));
}

void SliceMicroKernel(KernelContext& ctx) {
  const Tensor& x = ctx.In("x");
  const Tensor& out = ctx.Out("out");
  const int64_t micro = ctx.step().micro_index;
  PLO_ENFORCE(micro < x.shape[0], kInternal, Describe(ctx.op()),
              ": micro-step ", micro, " of a feed of ", x.shape[0]);
  const int64_t bytes = out.numel * SizeOf(out.dtype);
  if (bytes == 0) return;
  std::memcpy(out.data, x.as<const std::byte>() + micro * bytes,
              static_cast<size_t>(bytes));
}

// Only one micro-step's part of the feed is read.
OpCost SliceMicroCost(const OpView& op) {
  return {0, 2.0 * static_cast<double>(op.Out("out").bytes())};
}

}  // namespace

void RegisterSliceMicro(OpRegistry& ops, KernelRegistry& kernels) {
  OpSchema schema;
  schema.type = "slice_micro";
  schema.inputs = {{"x"}};
  schema.outputs = {{"out"}};
  schema.infer = InferSliceMicro;
  schema.cost = SliceMicroCost;
  schema.reads_step = true;
  ops.Register(std::move(schema));
  kernels.Register("slice_micro", DeviceKind::kCpu, SliceMicroKernel);
}

}  // namespace plo
