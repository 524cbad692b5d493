// The mean over the global batch: count_valid and count_elements count items,
// loss_seed turns the count into the gradient of the loss sum.
//
// Seeding each rank's backward with scale / global count makes the plain sum
// of the ranks' gradients the gradient of the mean loss (times the loss scale):
// gradients are averaged exactly once.
#include <algorithm>

#include "framework/ir/op_registry.h"
#include "operators/infer_util.h"
#include "operators/kernel_util.h"

namespace plo {
namespace {

void InferCountValid(InferContext& ctx) {
  RequireDType(ctx, "labels", DType::kInt32);
  ctx.Set("count", DType::kFp32, {1});
}

void CountValidKernel(KernelContext& ctx) {
  const Tensor& labels = ctx.In("labels");
  const int64_t ignored = ctx.attrs().GetInt("ignore_index");
  int64_t count = 0;
  for (int64_t i = 0; i < labels.numel; ++i) {
    count += labels.as<int32_t>()[i] != ignored;
  }
  *ctx.Out("count").as<float>() = static_cast<float>(count);
}

void InferCountElements(InferContext& ctx) {
  ctx.Set("count", DType::kFp32, {1});
}

void CountElementsKernel(KernelContext& ctx) {
  *ctx.Out("count").as<float>() = static_cast<float>(ctx.In("x").numel);
}

void InferLossSeed(InferContext& ctx) {
  RequireScalar(ctx, "count");
  if (ctx.Has("scale")) RequireScalar(ctx, "scale");
  ctx.Set("seed", DType::kFp32, {1});
}

void LossSeedKernel(KernelContext& ctx) {
  const Tensor* scale = ctx.TryIn("scale");
  const float numerator = scale == nullptr ? 1.0f : *scale->as<float>();
  const float count = std::max(*ctx.In("count").as<float>(), 1.0f);
  *ctx.Out("seed").as<float>() = numerator / count;
}

}  // namespace

void RegisterLossSeed(OpRegistry& ops, KernelRegistry& kernels) {
  OpSchema valid;
  valid.type = "count_valid";
  valid.inputs = {{"labels"}};
  valid.outputs = {{"count"}};
  valid.attrs = {IntAttr("ignore_index", -100)};
  valid.infer = InferCountValid;
  ops.Register(std::move(valid));
  kernels.Register("count_valid", DeviceKind::kCpu, CountValidKernel);

  OpSchema elements;
  elements.type = "count_elements";
  elements.inputs = {{"x"}};
  elements.outputs = {{"count"}};
  elements.infer = InferCountElements;
  elements.cost = [](const OpView&) { return OpCost{}; };
  ops.Register(std::move(elements));
  kernels.Register("count_elements", DeviceKind::kCpu, CountElementsKernel);

  OpSchema seed;
  seed.type = "loss_seed";
  seed.inputs = {{"count"}, Optional("scale")};
  seed.outputs = {{"seed"}};
  seed.infer = InferLossSeed;
  ops.Register(std::move(seed));
  kernels.Register("loss_seed", DeviceKind::kCpu, LossSeedKernel);
}

}  // namespace plo
