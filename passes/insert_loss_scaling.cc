// insert_loss_scaling(mode=dynamic|static, init=65536, incr_ratio=2,
//                     decr_ratio=0.5, incr_every_n=2000, decr_every_n=1,
//                     min_scale=1)
//
// Multiplies the gradients' seed by a scale, so that small 16-bit gradients do
// not vanish; the optimizer divides by it again through the step record.
//
// Before:
//   micro:   loss_seed(count) -> seed
//            grad_stats(final_grad) -> bucket0@stats
//   update:  step_record(stats, applied_step, lr) -> step_record, applied_step
// After:
//   startup: fill_constant -> loss_scale, and if dynamic ->
//   loss_scale@good_steps,
//            loss_scale@bad_steps
//   micro:   loss_seed(count, loss_scale) -> seed
//            grad_stats(final_grad, loss_scale) -> bucket0@stats
//   update:  step_record(.., loss_scale) -> ..
//            update_loss_scaling(step_record, loss_scale, good, bad)
//                -> loss_scale, good, bad               dynamic only
//
// Statistics are of the gradients without the scale, so that fp32 holds them
// whatever the scale. The new scale serves the next step: the record keeps the
// one in use. Needs check_gradients before it; runs on every rank alike.
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "passes/passes.h"
#include "passes/rewrite_utils.h"

namespace plo {
namespace {

struct LossScalingOptions {
  std::string mode = "dynamic";
  double init = 65536;
  double incr_ratio = 2;
  double decr_ratio = 0.5;
  int64_t incr_every_n = 2000;
  int64_t decr_every_n = 1;
  double min_scale = 1;
};

void Validate(const LossScalingOptions& o) {
  // Scales and their inverses are fp32 at run time.
  const auto usable = [](double x) {
    const float f = static_cast<float>(x);
    return std::isnormal(f) && f > 0 && std::isnormal(1 / f);
  };
  PLO_ENFORCE(o.mode == "dynamic" || o.mode == "static", kInvalidArgument,
              "mode must be dynamic or static, got '", o.mode, "'");
  PLO_ENFORCE(usable(o.init), kInvalidArgument,
              "init, the loss scale, must be in [2^-126, 2^126], got ", o.init);
  PLO_ENFORCE(std::isfinite(o.incr_ratio) && o.incr_ratio >= 1,
              kInvalidArgument, "incr_ratio must be at least 1, got ",
              o.incr_ratio);
  PLO_ENFORCE(o.decr_ratio > 0 && o.decr_ratio <= 1, kInvalidArgument,
              "decr_ratio must be in (0, 1], got ", o.decr_ratio);
  PLO_ENFORCE(o.incr_every_n >= 1 && o.incr_every_n <= INT32_MAX,
              kInvalidArgument, "incr_every_n must be at least 1, got ",
              o.incr_every_n);
  PLO_ENFORCE(o.decr_every_n >= 1 && o.decr_every_n <= INT32_MAX,
              kInvalidArgument, "decr_every_n must be at least 1, got ",
              o.decr_every_n);
  PLO_ENFORCE(usable(o.min_scale), kInvalidArgument,
              "min_scale must be in [2^-126, 2^126], got ", o.min_scale);
  PLO_ENFORCE(o.mode == "static" || o.min_scale <= o.init, kInvalidArgument,
              "min_scale=", o.min_scale, " exceeds init=", o.init);
}

class InsertLossScaling : public Pass {
 public:
  explicit InsertLossScaling(LossScalingOptions options)
      : options_(std::move(options)) {
    Validate(options_);
  }
  std::string_view name() const override { return "insert_loss_scaling"; }

  bool Run(Program& program) override {
    PLO_ENFORCE(program.loss_scale == kNoId, kFailedPrecondition,
                "insert_loss_scaling has already run on this program");
    const OpId record =
        FindUpdateOp(program, program.step_record, "step_record",
                     "insert_loss_scaling", "check_gradients");
    OpId seed = kNoId;
    for (const auto& op : program.ops(Section::kMicro)) {
      if (op->type == "loss_seed") seed = op->id;
    }
    PLO_ENFORCE(seed != kNoId, kFailedPrecondition,
                "insert_loss_scaling needs append_backward to run before it");

    const VarId scale = AddState(program, "loss_scale", DType::kFp32, {1},
                                 MemoryCategory::kWorkspace);
    program.loss_scale = scale;
    AppendFill(program, scale, options_.init);
    program.mutable_op(seed).SetIn("scale", {scale});
    for (const Section section : {Section::kMicro, Section::kUpdate}) {
      for (const auto& op : program.ops(section)) {
        if (op->type == "grad_stats") op->SetIn("scale", {scale});
      }
    }
    program.mutable_op(record).SetIn("scale", {scale});
    program.InvalidateIndex();
    if (options_.mode == "dynamic") AddUpdate(program, record);
    return true;
  }

 private:
  void AddUpdate(Program& program, OpId record) const {
    const VarId scale = program.loss_scale;
    const VarId good = AddState(program, "loss_scale@good_steps", DType::kInt32,
                                {1}, MemoryCategory::kWorkspace);
    const VarId bad = AddState(program, "loss_scale@bad_steps", DType::kInt32,
                               {1}, MemoryCategory::kWorkspace);
    AppendFill(program, good, 0);
    AppendFill(program, bad, 0);
    OpSpec spec;
    spec.type = "update_loss_scaling";
    spec.inputs = {{"record", {program.step_record}},
                   {"scale", {scale}},
                   {"good", {good}},
                   {"bad", {bad}}};
    spec.outputs = {{"scale", {scale}}, {"good", {good}}, {"bad", {bad}}};
    spec.attrs.Set("incr_ratio", options_.incr_ratio);
    spec.attrs.Set("decr_ratio", options_.decr_ratio);
    spec.attrs.Set("incr_every_n", options_.incr_every_n);
    spec.attrs.Set("decr_every_n", options_.decr_every_n);
    spec.attrs.Set("min_scale", options_.min_scale);
    spec.role = Role::kUpdate;
    program.InsertAfter(record, std::move(spec));
  }

  const LossScalingOptions options_;
};

}  // namespace

std::unique_ptr<Pass> MakeInsertLossScaling(PassOptions& options) {
  LossScalingOptions o;
  o.mode = options.String("mode", o.mode);
  o.init = options.Float("init", o.init);
  o.incr_ratio = options.Float("incr_ratio", o.incr_ratio);
  o.decr_ratio = options.Float("decr_ratio", o.decr_ratio);
  o.incr_every_n = options.Int("incr_every_n", o.incr_every_n);
  o.decr_every_n = options.Int("decr_every_n", o.decr_every_n);
  o.min_scale = options.Float("min_scale", o.min_scale);
  return std::make_unique<InsertLossScaling>(std::move(o));
}

}  // namespace plo
