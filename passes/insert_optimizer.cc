// insert_optimizer(type=adamw|adam|sgd, lr=0.001, beta1=0.9, beta2=0.999,
//                  eps=1e-8, weight_decay=0.01, momentum=0.9, nesterov=false,
//                  lr_schedule=constant|linear|cosine, warmup_steps=0,
//                  total_steps=0, min_lr_ratio=0)
//
// Adds the optimizer's state and one update per trainable bucket, in forward
// order of the buckets.
//
// Before:  update: lr_schedule {base_lr=0} -> lr; step_record -> step_record
// After:
//   startup: cast(bucket0@shard) -> bucket0@master      16-bit params only
//            fill_constant -> bucket0@moment1, bucket0@moment2
//   update:  lr_schedule {as given} -> lr; step_record {betas} -> ..
//            adamw(final_grad, step_record, master, moment1, moment2)
//                -> master, moment1, moment2, bucket0@shard
//            all_gather(bucket0@shard) -> bucket0       if sliced
// fp32 params are their own master. Where gradients are clipped one by one the
// op also reads grad_stats. adam is adamw with the decay added to the
// gradient; sgd is sgd_momentum, which has no moment2.
//
// What sets params apart (decay, lr_scale, need_clip) becomes a table of the
// bucket's segments in the op's attributes. Needs check_gradients before it.
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "passes/passes.h"
#include "passes/rewrite_utils.h"

namespace plo {
namespace {

struct OptimizerOptions {
  std::string type = "adamw";
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  double momentum = 0.9;
  bool nesterov = false;
  std::string lr_schedule = "constant";
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  double min_lr_ratio = 0;

  bool is_sgd() const { return type == "sgd"; }
};

void Validate(const OptimizerOptions& o) {
  const auto not_negative = [](double x) {
    return std::isfinite(static_cast<float>(x)) && x >= 0;
  };
  const auto unit = [](double x) { return x >= 0 && x < 1; };
  PLO_ENFORCE(o.type == "adamw" || o.type == "adam" || o.type == "sgd",
              kInvalidArgument, "type must be adamw, adam or sgd, got '",
              o.type, "'");
  PLO_ENFORCE(not_negative(o.lr), kInvalidArgument,
              "lr must be a finite number of at least 0, got ", o.lr);
  PLO_ENFORCE(unit(o.beta1), kInvalidArgument, "beta1 must be in [0, 1), got ",
              o.beta1);
  PLO_ENFORCE(unit(o.beta2), kInvalidArgument, "beta2 must be in [0, 1), got ",
              o.beta2);
  // Zero, which anything smaller becomes in fp32, divides zero by zero.
  PLO_ENFORCE(not_negative(o.eps) && static_cast<float>(o.eps) > 0,
              kInvalidArgument, "eps must be positive in fp32, got ", o.eps);
  PLO_ENFORCE(not_negative(o.weight_decay), kInvalidArgument,
              "weight_decay must be a finite number of at least 0, got ",
              o.weight_decay);
  PLO_ENFORCE(unit(o.momentum), kInvalidArgument,
              "momentum must be in [0, 1), got ", o.momentum);
  const bool decays = o.lr_schedule == "linear" || o.lr_schedule == "cosine";
  PLO_ENFORCE(decays || o.lr_schedule == "constant", kInvalidArgument,
              "lr_schedule must be constant, linear or cosine, got '",
              o.lr_schedule, "'");
  PLO_ENFORCE(o.warmup_steps >= 0, kInvalidArgument,
              "warmup_steps must not be negative, got ", o.warmup_steps);
  PLO_ENFORCE(o.total_steps >= 0, kInvalidArgument,
              "total_steps must not be negative, got ", o.total_steps);
  PLO_ENFORCE(!decays || o.total_steps > o.warmup_steps, kInvalidArgument,
              "lr_schedule=", o.lr_schedule,
              " needs total_steps above warmup_steps, got total_steps=",
              o.total_steps, " and warmup_steps=", o.warmup_steps);
  PLO_ENFORCE(o.min_lr_ratio >= 0 && o.min_lr_ratio <= 1, kInvalidArgument,
              "min_lr_ratio must be in [0, 1], got ", o.min_lr_ratio);
}

class InsertOptimizer : public Pass {
 public:
  explicit InsertOptimizer(OptimizerOptions options)
      : options_(std::move(options)) {
    Validate(options_);
  }
  std::string_view name() const override { return "insert_optimizer"; }

  bool Run(Program& program) override {
    const std::vector<const Bucket*> trainable =
        TrainableBuckets(program, "insert_optimizer");
    for (const Bucket* bucket : trainable) {
      PLO_ENFORCE(bucket->moment1 == kNoId, kFailedPrecondition,
                  "insert_optimizer has already run on this program");
    }
    const OpId record =
        FindUpdateOp(program, program.step_record, "step_record",
                     "insert_optimizer", "check_gradients");
    const OpId schedule =
        FindUpdateOp(program, program.op(record).In1("lr"), "lr_schedule",
                     "insert_optimizer", "check_gradients");
    const VarId stats = program.op(record).In1("stats");

    SetSchedule(program.mutable_op(schedule).attrs);
    SetBetas(program.mutable_op(record).attrs);
    const AttrMap record_attrs = program.op(record).attrs;
    int64_t stats_offset = 0;  // the buckets' stats follow one another
    for (Bucket& bucket : program.buckets) {
      if (!bucket.trainable) continue;
      AddState(program, bucket);
      AddUpdate(program, bucket, record_attrs, stats, stats_offset);
      stats_offset += static_cast<int64_t>(bucket.members.size()) + 1;
    }
    return true;
  }

 private:
  void SetSchedule(AttrMap& attrs) const {
    attrs.Set("kind", options_.lr_schedule);
    attrs.Set("base_lr", options_.lr);
    attrs.Set("warmup_steps", options_.warmup_steps);
    attrs.Set("total_steps", options_.total_steps);
    attrs.Set("min_ratio", options_.min_lr_ratio);
  }

  void SetBetas(AttrMap& attrs) const {
    if (options_.is_sgd()) return;  // no moments, no bias corrections
    attrs.Set("beta1", options_.beta1);
    attrs.Set("beta2", options_.beta2);
  }

  void AddState(Program& program, Bucket& bucket) const;
  void AddUpdate(Program& program, const Bucket& bucket,
                 const AttrMap& record_attrs, VarId stats,
                 int64_t stats_offset) const;
  void SetSegments(const Program& program, const Bucket& bucket,
                   AttrMap& attrs) const;

  const OptimizerOptions options_;
};

void InsertOptimizer::AddState(Program& program, Bucket& bucket) const {
  const Var slice = program.var(bucket.param_slice);
  const auto add = [&](const char* suffix, Relation relation) {
    const VarId v = plo::AddState(program, bucket.name + suffix, DType::kFp32,
                                  slice.shape, MemoryCategory::kOptimizerState);
    program.mutable_var(v).relation = relation;
    program.mutable_var(v).related_to = bucket.param;
    return v;
  };
  bucket.master = bucket.param_slice;
  if (slice.dtype != DType::kFp32) {
    bucket.master = add("@master", Relation::kMasterOf);
    OpSpec cast;
    cast.type = "cast";
    cast.inputs = {{"x", {bucket.param_slice}}};
    cast.outputs = {{"out", {bucket.master}}};
    cast.attrs.Set("dtype", "fp32");
    program.Append(Section::kStartup, std::move(cast));
  }
  bucket.moment1 = add("@moment1", Relation::kMoment1Of);
  AppendFill(program, bucket.moment1, 0);
  if (options_.is_sgd()) return;
  bucket.moment2 = add("@moment2", Relation::kMoment2Of);
  AppendFill(program, bucket.moment2, 0);
}

void InsertOptimizer::AddUpdate(Program& program, const Bucket& bucket,
                                const AttrMap& record_attrs, VarId stats,
                                int64_t stats_offset) const {
  OpSpec spec;
  spec.type = options_.is_sgd() ? "sgd_momentum" : "adamw";
  spec.role = Role::kUpdate;
  spec.inputs = {{"grad", {bucket.final_grad}},
                 {"record", {program.step_record}}};
  const std::string& clip_mode = record_attrs.GetString("clip_mode");
  if (clip_mode == "norm") spec.inputs.push_back({"stats", {stats}});
  std::vector<Slot> state = {{"master", {bucket.master}},
                             {"moment1", {bucket.moment1}}};
  if (!options_.is_sgd()) state.push_back({"moment2", {bucket.moment2}});
  spec.inputs.insert(spec.inputs.end(), state.begin(), state.end());
  spec.outputs = std::move(state);
  if (bucket.master != bucket.param_slice) {
    spec.outputs.push_back({"param", {bucket.param_slice}});
  }
  if (options_.is_sgd()) {
    spec.attrs.Set("momentum", options_.momentum);
    spec.attrs.Set("nesterov", options_.nesterov);
  } else {
    spec.attrs.Set("beta1", options_.beta1);
    spec.attrs.Set("beta2", options_.beta2);
    spec.attrs.Set("eps", options_.eps);
    spec.attrs.Set("decoupled", options_.type == "adamw");
  }
  spec.attrs.Set("weight_decay", options_.weight_decay);
  spec.attrs.Set("clip_mode", clip_mode);
  spec.attrs.Set("stats_offset", stats_offset);
  spec.attrs.Set("clip_norm", record_attrs.GetFloat("clip_norm"));
  SetSegments(program, bucket, spec.attrs);
  program.Append(Section::kUpdate, std::move(spec));

  if (!bucket.sliced) return;
  OpSpec gather;
  gather.type = "all_gather";
  gather.inputs = {{"x", {bucket.param_slice}}};
  gather.outputs = {{"out", {bucket.param}}};
  gather.role = Role::kUpdate;
  program.Append(Section::kUpdate, std::move(gather));
}

void InsertOptimizer::SetSegments(const Program& program, const Bucket& bucket,
                                  AttrMap& attrs) const {
  std::vector<int64_t> begins, numels, need_clip;
  std::vector<double> decay, lr_scale;
  for (const Bucket::Member& member : bucket.members) {
    const ParamAttrs& param = program.var(member.param).param;
    begins.push_back(member.offset);
    numels.push_back(member.numel);
    need_clip.push_back(param.need_clip ? 1 : 0);
    decay.push_back(param.weight_decay ? 1.0 : 0.0);
    lr_scale.push_back(param.lr_scale);
  }
  attrs.Set("sliced", bucket.sliced);
  attrs.Set("segment_begins", std::move(begins));
  attrs.Set("segment_numels", std::move(numels));
  attrs.Set("segment_need_clip", std::move(need_clip));
  attrs.Set("segment_weight_decay", std::move(decay));
  attrs.Set("segment_lr_scale", std::move(lr_scale));
}

}  // namespace

std::unique_ptr<Pass> MakeInsertOptimizer(PassOptions& options) {
  OptimizerOptions o;
  o.type = options.String("type", o.type);
  o.lr = options.Float("lr", o.lr);
  o.beta1 = options.Float("beta1", o.beta1);
  o.beta2 = options.Float("beta2", o.beta2);
  o.eps = options.Float("eps", o.eps);
  o.weight_decay = options.Float("weight_decay", o.weight_decay);
  o.momentum = options.Float("momentum", o.momentum);
  o.nesterov = options.Bool("nesterov", o.nesterov);
  o.lr_schedule = options.String("lr_schedule", o.lr_schedule);
  o.warmup_steps = options.Int("warmup_steps", o.warmup_steps);
  o.total_steps = options.Int("total_steps", o.total_steps);
  o.min_lr_ratio = options.Float("min_lr_ratio", o.min_lr_ratio);
  return std::make_unique<InsertOptimizer>(std::move(o));
}

}  // namespace plo
