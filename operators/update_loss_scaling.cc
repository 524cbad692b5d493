// update_loss_scaling: the dynamic loss scale; see update_loss_scaling.h.
#include "operators/update_loss_scaling.h"

#include <cmath>

#include "framework/ir/op_registry.h"
#include "operators/infer_util.h"
#include "operators/kernel_util.h"
#include "operators/step_record.h"

namespace plo {
namespace {

void InferUpdate(InferContext& ctx) {
  RequireDType(ctx, "record", DType::kFp32);
  RequireShape(ctx, "record", {kStepRecordSize});
  RequireScalar(ctx, "scale");
  RequireScalar(ctx, "good", DType::kInt32);
  RequireScalar(ctx, "bad", DType::kInt32);
  const AttrMap& attrs = ctx.attrs();
  const double incr = attrs.GetFloat("incr_ratio");
  const double decr = attrs.GetFloat("decr_ratio");
  const double floor = attrs.GetFloat("min_scale");
  ctx.Require(std::isfinite(incr) && incr >= 1,
              "incr_ratio must be at least 1, is ", incr);
  ctx.Require(decr > 0 && decr <= 1, "decr_ratio must be in (0, 1], is ", decr);
  ctx.Require(std::isfinite(floor) && floor > 0,
              "min_scale must be positive, is ", floor);
  for (const char* name : {"incr_every_n", "decr_every_n"}) {
    ctx.Require(attrs.GetInt(name) >= 1, name, " must be at least 1, is ",
                attrs.GetInt(name));
  }
  for (const char* slot : {"scale", "good", "bad"}) SetLike(ctx, slot, slot);
}

void UpdateKernel(KernelContext& ctx) {
  LossScale state = {*ctx.In("scale").as<float>(),
                     *ctx.In("good").as<int32_t>(),
                     *ctx.In("bad").as<int32_t>()};
  const bool skipped = ctx.In("record").as<float>()[kRecordSkip] != 0.0f;
  UpdateLossScale(MakeLossScaleRule(ctx.attrs()), skipped, state);
  *ctx.Out("scale").as<float>() = state.scale;
  *ctx.Out("good").as<int32_t>() = state.good;
  *ctx.Out("bad").as<int32_t>() = state.bad;
}

}  // namespace

void RegisterUpdateLossScaling(OpRegistry& ops, KernelRegistry& kernels) {
  OpSchema schema;
  schema.type = "update_loss_scaling";
  schema.inputs = {{"record"}, {"scale"}, {"good"}, {"bad"}};
  schema.outputs = {{"scale"}, {"good"}, {"bad"}};
  schema.attrs = {FloatAttr("incr_ratio", 2.0), FloatAttr("decr_ratio", 0.5),
                  IntAttr("incr_every_n", 2000), IntAttr("decr_every_n", 1),
                  FloatAttr("min_scale", 1.0)};
  schema.infer = InferUpdate;
  schema.aliases = {{"scale", "scale"}, {"good", "good"}, {"bad", "bad"}};
  ops.Register(std::move(schema));
  kernels.Register("update_loss_scaling", DeviceKind::kCpu, UpdateKernel);
}

}  // namespace plo
