#include "passes/pipeline.h"

#include <charconv>
#include <mutex>
#include <string_view>
#include <utility>

#include "passes/passes.h"

namespace plo {
namespace {

std::string Text(const std::string& value) { return value; }
std::string Text(DType value) { return std::string(DTypeName(value)); }
std::string Text(int64_t value) { return std::to_string(value); }
std::string Text(double value) {
  char buffer[32];
  const auto [end, error] =
      std::to_chars(buffer, buffer + sizeof(buffer), value);
  (void)error;  // the shortest form of any double fits
  return std::string(buffer, end);
}

// Writes "name(key=value,...)" entries.
class PipelineText {
 public:
  PipelineText& Pass(std::string_view name) {
    Close();
    if (!text_.empty()) text_ += ",";
    text_ += name;
    return *this;
  }
  template <typename T>
  PipelineText& Option(std::string_view key, const T& value) {
    text_ += open_ ? "," : "(";
    open_ = true;
    text_ += std::string(key) + "=" + Text(value);
    return *this;
  }
  std::string Finish() {
    Close();
    return std::move(text_);
  }

 private:
  void Close() {
    if (open_) text_ += ")";
    open_ = false;
  }
  std::string text_;
  bool open_ = false;
};

std::string Join(const std::vector<std::string>& parts) {
  std::string joined;
  for (const std::string& part : parts) {
    joined += (joined.empty() ? "" : "+") + part;
  }
  return joined;
}

void AddRecompute(const DefaultPipelineOptions& o, PipelineText& text) {
  text.Pass("recompute").Option("policy", o.recompute);
  if (!o.recompute_regions.empty()) {
    text.Option("regions", Join(o.recompute_regions));
  }
}

void AddLossScaling(const DefaultPipelineOptions& o, PipelineText& text) {
  text.Pass("insert_loss_scaling")
      .Option("mode", o.loss_scale)
      .Option("init", o.init_loss_scale);
  if (o.loss_scale == "static") return;
  text.Option("incr_ratio", o.loss_scale_incr_ratio)
      .Option("decr_ratio", o.loss_scale_decr_ratio)
      .Option("incr_every_n", o.loss_scale_incr_every_n)
      .Option("decr_every_n", o.loss_scale_decr_every_n)
      .Option("min_scale", o.min_loss_scale);
}

}  // namespace

std::string DefaultPipeline(const DefaultPipelineOptions& o) {
  PipelineText text;
  // First: gradients take the dtype of what they are gradients of.
  if (o.dtype != DType::kFp32) {
    text.Pass("apply_amp").Option("dtype", o.dtype);
  }
  // On the forward program as the user built it; all that follows speaks of
  // gradients.
  text.Pass("append_backward");
  // Before buckets fix the order of gradient writers: clones go in front of
  // their backward readers.
  if (o.recompute != "none") AddRecompute(o, text);
  // The last pass that moves gradients: from here on they are buckets.
  text.Pass("shard_optimizer")
      .Option("stage", o.sharding_stage)
      .Option("degree", o.sharding_degree)
      .Option("bucket_mb", o.bucket_mb)
      .Option("grad_dtype", o.grad_dtype);
  // After sharding, so that what accumulates is the reduced shard.
  if (o.accumulate_steps != 1) {
    text.Pass("accumulate_micro_steps").Option("steps", o.accumulate_steps);
  }
  // On the gradients as the optimizer will read them, once per step.
  text.Pass("check_gradients");
  // Extends the step record, which the optimizer then only reads.
  if (o.loss_scale != "none") AddLossScaling(o, text);
  // Before insert_optimizer, which copies the mode into its ops.
  if (o.clip_norm != 0) {
    text.Pass("clip_gradients")
        .Option("norm", o.clip_norm)
        .Option("mode", o.clip_mode);
  }
  // Needs final gradients and the record; makes the states.
  text.Pass(o.insert_optimizer);
  // Moves states that exist, without knowing how they came about.
  if (o.offload_optimizer) {
    text.Pass("offload_optimizer").Option("fraction", o.offload_fraction);
    if (o.offload_streamed_fraction != 0) {
      text.Option("streamed_fraction", o.offload_streamed_fraction)
          .Option("streamed_chunk", o.offload_streamed_chunk);
    }
    text.Option("mode", o.offload_mode);
  }
  // After all passes that match single ops.
  text.Pass("fuse_ops");
  // Last: it orders what all the others have put in, and adds nothing.
  text.Pass("schedule_transfers").Option("depth", o.prefetch_depth);
  return text.Finish();
}

void RegisterBuiltinPasses() {
  static std::once_flag once;
  std::call_once(once, [] {
    PassRegistry& registry = PassRegistry::Global();
    registry.Register("apply_amp", MakeApplyAmp);
    registry.Register("append_backward", MakeAppendBackward);
    registry.Register("recompute", MakeRecompute);
    registry.Register("shard_optimizer", MakeShardOptimizer);
    registry.Register("accumulate_micro_steps", MakeAccumulateMicroSteps);
    registry.Register("check_gradients", MakeCheckGradients);
    registry.Register("insert_loss_scaling", MakeInsertLossScaling);
    registry.Register("clip_gradients", MakeClipGradients);
    registry.Register("insert_optimizer", MakeInsertOptimizer);
    registry.Register("offload_optimizer", MakeOffloadOptimizer);
    registry.Register("fuse_ops", MakeFuseOps);
    registry.Register("schedule_transfers", MakeScheduleTransfers);
  });
}

}  // namespace plo
