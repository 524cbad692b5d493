// lr_schedule: the learning rate of update number applied_step + 1. Skipped
// steps do not advance it.
//
// Linear warm-up over `warmup_steps` updates, then constant, or falling to
// min_ratio * base_lr at `total_steps` along a line or half a cosine.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "framework/ir/op_registry.h"
#include "operators/infer_util.h"
#include "operators/kernel_util.h"

namespace plo {
namespace {

void InferLrSchedule(InferContext& ctx) {
  RequireScalar(ctx, "applied_step", DType::kInt64);
  const AttrMap& attrs = ctx.attrs();
  const std::string& kind = attrs.GetString("kind");
  ctx.Require(kind == "constant" || kind == "linear" || kind == "cosine",
              "kind must be constant, linear or cosine, is '", kind, "'");
  const double lr = attrs.GetFloat("base_lr");
  ctx.Require(std::isfinite(lr) && lr >= 0,
              "base_lr must be a finite number of at least 0, is ", lr);
  const int64_t warmup = attrs.GetInt("warmup_steps");
  const int64_t total = attrs.GetInt("total_steps");
  ctx.Require(warmup >= 0, "warmup_steps must not be negative, is ", warmup);
  ctx.Require(kind == "constant" || total > warmup, "total_steps is ", total,
              ", must be more than warmup_steps ", warmup, " for kind ", kind);
  const double ratio = attrs.GetFloat("min_ratio");
  ctx.Require(ratio >= 0 && ratio <= 1, "min_ratio must be in [0, 1], is ",
              ratio);
  ctx.Set("lr", DType::kFp32, {1});
}

double Factor(const AttrMap& attrs, int64_t update) {
  const int64_t warmup = attrs.GetInt("warmup_steps");
  if (update <= warmup) {
    return static_cast<double>(update) / static_cast<double>(warmup);
  }
  const std::string& kind = attrs.GetString("kind");
  if (kind == "constant") return 1.0;
  const double length =
      static_cast<double>(attrs.GetInt("total_steps") - warmup);
  const double progress =
      std::min(1.0, static_cast<double>(update - warmup) / length);
  const double left = kind == "linear"
                          ? 1.0 - progress
                          : 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  const double ratio = attrs.GetFloat("min_ratio");
  return ratio + (1.0 - ratio) * left;
}

void LrScheduleKernel(KernelContext& ctx) {
  const int64_t update = *ctx.In("applied_step").as<int64_t>() + 1;
  *ctx.Out("lr").as<float>() = static_cast<float>(
      ctx.attrs().GetFloat("base_lr") * Factor(ctx.attrs(), update));
}

}  // namespace

void RegisterLrSchedule(OpRegistry& ops, KernelRegistry& kernels) {
  OpSchema schema;
  schema.type = "lr_schedule";
  schema.inputs = {{"applied_step"}};
  schema.outputs = {{"lr"}};
  schema.attrs = {{"kind", AttrType::kString, false, std::string("constant")},
                  {"base_lr", AttrType::kFloat},
                  IntAttr("warmup_steps", 0),
                  IntAttr("total_steps", 0),
                  FloatAttr("min_ratio", 0.0)};
  schema.infer = InferLrSchedule;
  ops.Register(std::move(schema));
  kernels.Register("lr_schedule", DeviceKind::kCpu, LrScheduleKernel);
}

}  // namespace plo
