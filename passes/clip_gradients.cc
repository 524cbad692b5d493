// clip_gradients(norm=1, mode=global_norm|norm|value)
//
// Before:  step_record {clip_mode="none", ...}
// After:   step_record {clip_mode=mode, clip_norm=norm, ...}
//
// global_norm scales all gradients that need_clip by one coefficient, norm
// scales each of them by its own, value clamps their elements. Gradients are
// not rewritten: the coefficient is part of the multiplier that the optimizer
// applies (insert_optimizer copies the mode to it). Needs check_gradients
// before it.
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "passes/passes.h"
#include "passes/rewrite_utils.h"

namespace plo {
namespace {

class ClipGradients : public Pass {
 public:
  ClipGradients(double norm, std::string mode)
      : norm_(norm), mode_(std::move(mode)) {
    const float f = static_cast<float>(norm_);
    PLO_ENFORCE(std::isfinite(f) && f > 0, kInvalidArgument,
                "norm must be positive and finite in fp32, got ", norm_);
    PLO_ENFORCE(mode_ == "global_norm" || mode_ == "norm" || mode_ == "value",
                kInvalidArgument,
                "mode must be global_norm, norm or value, got '", mode_, "'");
  }
  std::string_view name() const override { return "clip_gradients"; }

  bool Run(Program& program) override {
    const OpId record =
        FindUpdateOp(program, program.step_record, "step_record",
                     "clip_gradients", "check_gradients");
    PLO_ENFORCE(program.op(record).attrs.GetString("clip_mode") == "none",
                kFailedPrecondition,
                "clip_gradients has already run on this program");
    for (const Bucket& bucket : program.buckets) {
      PLO_ENFORCE(bucket.moment1 == kNoId, kFailedPrecondition,
                  "clip_gradients must run before insert_optimizer");
    }
    AttrMap& attrs = program.mutable_op(record).attrs;
    attrs.Set("clip_mode", mode_);
    attrs.Set("clip_norm", norm_);
    return true;
  }

 private:
  const double norm_;
  const std::string mode_;
};

}  // namespace

std::unique_ptr<Pass> MakeClipGradients(PassOptions& options) {
  const double norm = options.Float("norm", 1.0);
  return std::make_unique<ClipGradients>(norm,
                                         options.String("mode", "global_norm"));
}

}  // namespace plo
