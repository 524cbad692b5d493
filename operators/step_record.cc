// step_record: decides, once per step, whether the update is skipped and with
// which factors it is made. All ranks compute it from the same reduced stats,
// so they agree without talking again.
#include "operators/step_record.h"

#include <cmath>

#include "framework/ir/op_registry.h"
#include "operators/infer_util.h"
#include "operators/kernel_util.h"

namespace plo {
namespace {

// Values of the attribute need_clip, one per entry of stats.
constexpr int64_t kCountsInNorm = 1;
constexpr int64_t kNonfiniteCounter = -1;

void InferStepRecord(InferContext& ctx) {
  RequireDType(ctx, "stats", DType::kFp32);
  RequireScalar(ctx, "applied_step", DType::kInt64);
  RequireScalar(ctx, "lr");
  if (ctx.Has("scale")) RequireScalar(ctx, "scale");
  const AttrMap& attrs = ctx.attrs();
  const std::string& mode = attrs.GetString("clip_mode");
  ctx.Require(mode == "none" || mode == "global_norm" || mode == "norm" ||
                  mode == "value",
              "clip_mode must be none, global_norm, norm or value, is '", mode,
              "'");
  const double clip = attrs.GetFloat("clip_norm");
  ctx.Require(mode == "none" || (std::isfinite(clip) && clip > 0),
              "clip_norm must be positive, is ", clip);
  const auto& need_clip = attrs.GetInts("need_clip");
  ctx.Require(
      static_cast<int64_t>(need_clip.size()) == ctx.shape("stats").numel(),
      "need_clip has ", need_clip.size(), " entries for ",
      ctx.shape("stats").numel(), " stats");
  for (const char* name : {"beta1", "beta2"}) {
    const double beta = attrs.GetFloat(name);
    ctx.Require(beta >= 0 && beta < 1, name, " must be in [0, 1), is ", beta);
  }
  ctx.Set("record", DType::kFp32, {kStepRecordSize});
  SetLike(ctx, "applied_step", "applied_step");
}

// base^exponent by squaring: no libm, so the same bits on every machine.
double Power(double base, int64_t exponent) {
  double result = 1.0;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result *= base;
    base *= base;
  }
  return result;
}

void StepRecordKernel(KernelContext& ctx) {
  const AttrMap& attrs = ctx.attrs();
  const Tensor& stats = ctx.In("stats");
  const std::vector<int64_t>& need_clip = attrs.GetInts("need_clip");
  double squares = 0;
  double nonfinite = 0;
  for (int64_t i = 0; i < stats.numel; ++i) {
    const double value = stats.as<float>()[i];
    if (need_clip[static_cast<size_t>(i)] == kCountsInNorm) squares += value;
    if (need_clip[static_cast<size_t>(i)] == kNonfiniteCounter) {
      nonfinite += value;
    }
  }
  const Tensor* scale_in = ctx.TryIn("scale");
  const double scale = scale_in == nullptr ? 1.0 : *scale_in->as<float>();
  const double norm = std::sqrt(squares) / scale;
  // A counter that overflowed to infinity or NaN counts as well.
  const bool skip = !(nonfinite == 0);
  const double coefficient =
      attrs.GetString("clip_mode") == "global_norm"
          ? ClipCoefficient(attrs.GetFloat("clip_norm"), norm)
          : 1.0;
  const int64_t applied = *ctx.In("applied_step").as<int64_t>();
  const int64_t update = applied + 1;
  const int64_t applied_after = skip ? applied : update;

  float* record = ctx.Out("record").as<float>();
  std::fill(record, record + kStepRecordSize, 0.0f);
  record[kRecordSkip] = skip ? 1.0f : 0.0f;
  record[kRecordLr] = *ctx.In("lr").as<float>();
  record[kRecordBiasCorrection1] =
      static_cast<float>(1.0 - Power(attrs.GetFloat("beta1"), update));
  record[kRecordBiasCorrection2] =
      static_cast<float>(1.0 - Power(attrs.GetFloat("beta2"), update));
  record[kRecordMultiplier] = static_cast<float>(coefficient / scale);
  record[kRecordUnclipped] = static_cast<float>(1.0 / scale);
  record[kRecordNorm] = static_cast<float>(norm);
  record[kRecordLossScale] = static_cast<float>(scale);
  record[kRecordAppliedStep] = static_cast<float>(applied_after);
  record[kRecordNonfinite] = static_cast<float>(nonfinite);
  *ctx.Out("applied_step").as<int64_t>() = applied_after;
}

}  // namespace

void RegisterStepRecord(OpRegistry& ops, KernelRegistry& kernels) {
  OpSchema schema;
  schema.type = "step_record";
  schema.inputs = {{"stats"}, {"applied_step"}, {"lr"}, Optional("scale")};
  schema.outputs = {{"record"}, {"applied_step"}};
  schema.attrs = {{"clip_mode", AttrType::kString, false, std::string("none")},
                  FloatAttr("clip_norm", 0.0),
                  {"need_clip", AttrType::kInts},
                  FloatAttr("beta1", 0.9),
                  FloatAttr("beta2", 0.999)};
  schema.infer = InferStepRecord;
  schema.aliases = {{"applied_step", "applied_step"}};
  ops.Register(std::move(schema));
  kernels.Register("step_record", DeviceKind::kCpu, StepRecordKernel);
}

}  // namespace plo
