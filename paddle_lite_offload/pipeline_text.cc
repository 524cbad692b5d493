#include "paddle_lite_offload/pipeline_text.h"

#include <vector>

namespace plo {
namespace {

std::string LossScalingEntry(const LossScaling& scaling) {
  std::string entry = StrCat(
      "insert_loss_scaling(mode=", scaling.dynamic ? "dynamic" : "static",
      ",init=", RoundTrip(scaling.init));
  if (scaling.dynamic) {
    entry += StrCat(",incr_ratio=", RoundTrip(scaling.growth),
                    ",decr_ratio=", RoundTrip(scaling.backoff),
                    ",incr_every_n=", scaling.window,
                    ",decr_every_n=1,min_scale=", RoundTrip(scaling.min));
  }
  return entry + ")";
}

}  // namespace

std::string MakePipeline(const PipelineOptions& options,
                         const Optimizer& optimizer, int world_size) {
  std::vector<std::string> passes;
  const std::string eval = MakeEvalPipeline(options.dtype);
  if (!eval.empty()) passes.push_back(eval);
  passes.push_back("append_backward");
  passes.push_back("recompute(policy=" + options.recompute + ")");
  passes.push_back(StrCat(
      "shard_optimizer(stage=", options.sharding_stage, ",degree=", world_size,
      ",bucket_mb=", RoundTrip(options.bucket_mb),
      ",grad_dtype=", options.fp32_grads ? "fp32" : "same", ")"));
  passes.push_back(
      StrCat("accumulate_micro_steps(steps=", options.accumulate_steps, ")"));
  passes.push_back("check_gradients");
  if (options.loss_scaling) {
    passes.push_back(LossScalingEntry(*options.loss_scaling));
  }
  if (options.clip_norm > 0) {
    passes.push_back("clip_gradients(norm=" + RoundTrip(options.clip_norm) +
                     ")");
  }
  passes.push_back(optimizer.PipelineEntry());
  if (options.offload_optimizer) {
    passes.push_back(StrCat(
        "offload_optimizer(fraction=", RoundTrip(options.offload_fraction),
        ",mode=", options.offload_mode, ")"));
  }
  passes.push_back("fuse_ops");
  passes.push_back(
      StrCat("schedule_transfers(depth=", options.prefetch_depth, ")"));
  std::string text;
  for (const std::string& pass : passes) {
    text += (text.empty() ? "" : ",") + pass;
  }
  return text;
}

std::string MakeEvalPipeline(DType dtype) {
  return dtype == DType::kFp32 ? "" : StrCat("apply_amp(dtype=", dtype, ")");
}

}  // namespace plo
