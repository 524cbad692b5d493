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

void StepRecordKernel(KernelContext& ctx) {
  const AttrMap& attrs = ctx.attrs();
  const Tensor& stats = ctx.In("stats");
  const std::vector<int64_t>& need_clip = attrs.GetInts("need_clip");
  StepInputs in{};
  for (int64_t i = 0; i < stats.numel; ++i) {
    const double value = stats.as<float>()[i];
    const int64_t use = need_clip[static_cast<size_t>(i)];
    if (use == kCountsInNorm) in.squares += value;
    if (use == kNonfiniteCounter) in.nonfinite += value;
  }
  const Tensor* scale = ctx.TryIn("scale");
  in.scale = scale == nullptr ? 1.0 : *scale->as<float>();
  in.lr = *ctx.In("lr").as<float>();
  in.applied_step = *ctx.In("applied_step").as<int64_t>();
  const StepRecordRule rule = {attrs.GetFloat("beta1"), attrs.GetFloat("beta2"),
                               attrs.GetString("clip_mode") == "global_norm",
                               attrs.GetFloat("clip_norm")};
  *ctx.Out("applied_step").as<int64_t>() =
      WriteStepRecord(rule, in, ctx.Out("record").as<float>());
}

// CUDA: the two sums on their way from one part of the stats to the next.
int64_t CudaWorkspaceBytes(const OpView&) { return 2 * sizeof(double); }

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
  schema.cuda_workspace_bytes = CudaWorkspaceBytes;
  schema.aliases = {{"applied_step", "applied_step"}};
  ops.Register(std::move(schema));
  kernels.Register("step_record", DeviceKind::kCpu, StepRecordKernel);
}

}  // namespace plo
