// shard_optimizer(stage=2, degree=1, bucket_mb=25, grad_dtype=same)
//
// Groups params into buckets (bucket_layout.h), makes params and their grads
// views of one storage each per bucket, and reduces each bucket's gradient
// once it is complete. The layout and who owns what are the same in every
// stage; stages differ in what is kept of the reduced gradient.
//
// Before: params and grads are storages of their own.
//   micro:   ... -> w@grad           (last writer among the bucket's members)
// After, for each trainable bucket, with degree > 1:
//   startup: fill_constant -> bucket0                      first of all
//   micro:   ... -> w@grad                                 view of bucket0@grad
//            cast(w@grad@local) -> w@grad                  only if grad_dtype
//            is
//                                                          another one, or if
//                                                          the grad was a view
//            zero_ranges(bucket0@grad) -> bucket0@grad     its padding
//     stage 2: reduce_scatter(bucket0@grad) -> bucket0@grad@shard   a temp
//     stage 1: the same into this rank's slice of bucket0@grad
//     stage 0: all_reduce(bucket0@grad) -> bucket0@grad
//            count_valid -> count; all_reduce(count)       first micro-step,
//                                                          at the head of micro
//   update:  scale(loss) -> loss@total; all_reduce(loss@total)
//            loss_seed(count) -> loss@inv_count            1 / max(count, 1)
//            mul(loss@total, loss@inv_count) -> mean_loss
// bucket0@shard, a view of bucket0, is this rank's slice of the params (stage
// 0 and degree 1: bucket0 itself). With degree 1 nothing is reduced.
//
// Seeds are divided by the count of the whole batch, so that a sum over the
// ranks is the average (append_backward). A count of feeds moves to the head,
// where it belongs to no region, so that its reduction hides under the forward.
// Frozen params have buckets without
// gradients. Collectives stand on the compute stream; schedule_transfers moves
// them. Needs append_backward before it.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "passes/bucket_layout.h"
#include "passes/passes.h"
#include "passes/rewrite_utils.h"

namespace plo {
namespace {

constexpr int64_t kMaxDegree = 1 << 20;

struct ShardOptimizerOptions {
  int64_t stage = 2;
  int64_t degree = 1;  // ranks
  double bucket_mb = 25;
  std::string grad_dtype = "same";  // as the params, or fp32
};

void Validate(const ShardOptimizerOptions& o) {
  PLO_ENFORCE(o.stage >= 0 && o.stage <= 3, kInvalidArgument,
              "stage must be 0, 1, 2 or 3, got ", o.stage);
  PLO_ENFORCE(o.stage != 3, kUnimplemented,
              "stage 3 (sharded params) is not built yet");
  PLO_ENFORCE(o.degree >= 1 && o.degree <= kMaxDegree, kInvalidArgument,
              "degree must be in [1, ", kMaxDegree, "], got ", o.degree);
  PLO_ENFORCE(
      std::isfinite(o.bucket_mb) && o.bucket_mb > 0 && o.bucket_mb <= 1 << 20,
      kInvalidArgument, "bucket_mb must be in (0, 1048576], got ", o.bucket_mb);
  PLO_ENFORCE(o.grad_dtype == "same" || o.grad_dtype == "fp32",
              kInvalidArgument, "grad_dtype must be same or fp32, got '",
              o.grad_dtype, "'");
}

// The gradient of one param, as append_backward left it.
struct GradPlan {
  VarId grad = kNoId;
  OpId last_writer = kNoId;
  bool copy = false;  // it cannot itself become a view of the bucket
};

struct Analysis {
  std::vector<Bucket> buckets;
  std::vector<std::vector<GradPlan>> grads;  // by bucket and member
  OpId count_op = kNoId;
};

class ShardOptimizer : public Pass {
 public:
  explicit ShardOptimizer(ShardOptimizerOptions options)
      : options_(std::move(options)) {
    Validate(options_);
  }
  std::string_view name() const override { return "shard_optimizer"; }

  bool Run(Program& program) override {
    const Analysis analysis = Analyse(program);
    program.world_size = static_cast<int>(options_.degree);
    ReduceCount(program, analysis.count_op);
    AddBuckets(program, analysis);
    AddMeanLoss(program);
    return true;
  }

 private:
  bool sliced() const { return options_.stage >= 1 && options_.degree > 1; }
  DType GradDType(const Var& param) const {
    return options_.grad_dtype == "fp32" ? DType::kFp32 : param.dtype;
  }

  Analysis Analyse(const Program& program) const;
  void ReduceCount(Program& program, OpId count_op) const;
  void AddBuckets(Program& program, const Analysis& analysis) const;
  void AddGrads(Program& program, Bucket& bucket,
                const std::vector<GradPlan>& grads,
                const std::unordered_map<OpId, size_t>& positions) const;
  void Reduce(Program& program, Bucket& bucket, OpId after,
              const std::string& region) const;
  void AddMeanLoss(Program& program) const;

  const ShardOptimizerOptions options_;
};

Analysis ShardOptimizer::Analyse(const Program& program) const {
  PLO_ENFORCE(program.buckets.empty(), kFailedPrecondition,
              "shard_optimizer has already run on this program");
  PLO_ENFORCE(program.loss != kNoId && program.loss_count != kNoId,
              kFailedPrecondition,
              "shard_optimizer needs a program with a loss and its count");
  Analysis analysis;
  for (OpId id : program.Writers(program.loss_count)) {
    if (program.op(id).section == Section::kMicro) analysis.count_op = id;
  }
  PLO_ENFORCE(analysis.count_op != kNoId, kFailedPrecondition,
              "no op of the micro section writes the loss count '",
              program.var(program.loss_count).name, "'");

  std::unordered_map<VarId, VarId> grad_of;
  for (VarId v : program.vars()) {
    const Var& var = program.var(v);
    if (var.relation == Relation::kGradOf) grad_of.emplace(var.related_to, v);
  }
  const double bytes = options_.bucket_mb * (1 << 20);
  analysis.buckets =
      LayOutBuckets(program, {options_.degree, static_cast<int64_t>(bytes)});
  for (const Bucket& bucket : analysis.buckets) {
    std::vector<GradPlan>& plans = analysis.grads.emplace_back();
    if (!bucket.trainable) continue;
    for (const Bucket::Member& member : bucket.members) {
      const Var& param = program.var(member.param);
      const auto it = grad_of.find(member.param);
      PLO_ENFORCE(it != grad_of.end(), kFailedPrecondition, "param '",
                  param.name,
                  "' has no gradient; append_backward must run before "
                  "shard_optimizer");
      const Var& grad = program.var(it->second);
      const std::vector<OpId>& writers = program.Writers(grad.id);
      PLO_ENFORCE(!writers.empty(), kFailedPrecondition, "no op writes '",
                  grad.name, "'");
      plans.push_back({grad.id, writers.back(),
                       grad.is_view() || grad.dtype != GradDType(param)});
    }
  }
  return analysis;
}

// True if the count can be taken before all else in micro, whose ops stand at
// `positions`.
bool CanLead(const Program& program, const Op& count,
             const std::unordered_map<OpId, size_t>& positions) {
  for (const Slot& slot : count.inputs) {
    for (VarId v : slot.vars) {
      const Var& storage = program.var(program.StorageOf(v));
      if (storage.kind != VarKind::kFeed) return false;
    }
  }
  const auto comes_later = [&](OpId id) {
    const auto it = positions.find(id);
    return it == positions.end() || it->second >= positions.at(count.id);
  };
  const std::vector<OpId>& writers = program.Writers(program.loss_count);
  const std::vector<OpId>& readers = program.Readers(program.loss_count);
  return count.after.empty() &&
         std::all_of(writers.begin(), writers.end(), comes_later) &&
         std::all_of(readers.begin(), readers.end(), comes_later);
}

void ShardOptimizer::ReduceCount(Program& program, OpId count_op) const {
  if (options_.degree == 1) return;
  if (CanLead(program, program.op(count_op),
              PositionsOf(program, Section::kMicro))) {
    program.MoveBefore(count_op, program.ops(Section::kMicro).front()->id);
    program.mutable_op(count_op).region.clear();
  }
  OpSpec spec;
  spec.type = "all_reduce";
  spec.inputs = {{"x", {program.loss_count}}};
  spec.outputs = {{"out", {program.loss_count}}};
  spec.attrs.Set("reduction", "sum");
  spec.first_micro_only = true;
  spec.region = program.op(count_op).region;
  program.InsertAfter(count_op, std::move(spec));
}

void ShardOptimizer::AddBuckets(Program& program,
                                const Analysis& analysis) const {
  const auto& startup = program.ops(Section::kStartup);
  const OpId first_startup = startup.empty() ? kNoId : startup.front()->id;
  const std::unordered_map<OpId, size_t> positions =
      PositionsOf(program, Section::kMicro);
  for (size_t b = 0; b < analysis.buckets.size(); ++b) {
    Bucket bucket = analysis.buckets[b];
    const DType dtype = program.var(bucket.members.front().param).dtype;
    bucket.sliced = sliced();
    bucket.name = program.UniqueName(bucket.name);
    bucket.param = AddState(program, bucket.name, dtype, {bucket.numel},
                            MemoryCategory::kParams);
    OpSpec fill = FillSpec(program, bucket.param, 0);
    if (first_startup == kNoId) {
      program.Append(Section::kStartup, std::move(fill));
    } else {
      program.InsertBefore(first_startup, std::move(fill));
    }
    for (const Bucket::Member& member : bucket.members) {
      Var& param = program.mutable_var(member.param);
      param.view_of = bucket.param;
      param.byte_offset = member.offset * SizeOf(dtype);
    }
    bucket.param_slice = bucket.param;
    if (bucket.sliced) {
      bucket.param_slice =
          AddView(program, bucket.name + "@shard", bucket.param, dtype,
                  {bucket.shard_numel}, 0, bucket.shard_numel * SizeOf(dtype));
      Var& slice = program.mutable_var(bucket.param_slice);
      slice.relation = Relation::kShardOf;
      slice.related_to = bucket.param;
    }
    if (bucket.trainable) {
      AddGrads(program, bucket, analysis.grads[b], positions);
    }
    program.buckets.push_back(std::move(bucket));
  }
}

// Zeroes what no gradient writes, so that padding can neither trip the finite
// check nor reach a param.
OpSpec ZeroSpec(const Program& program, const Bucket& bucket,
                const std::vector<BucketGap>& gaps) {
  if (gaps.front().end - gaps.front().begin == bucket.numel) {
    return FillSpec(program, bucket.grad, 0);  // empty params only
  }
  std::vector<int64_t> begins, ends;
  for (const BucketGap& gap : gaps) {
    begins.push_back(gap.begin);
    ends.push_back(gap.end);
  }
  OpSpec zero;
  zero.type = "zero_ranges";
  zero.inputs = {{"x", {bucket.grad}}};
  zero.outputs = {{"x", {bucket.grad}}};
  zero.attrs.Set("begins", std::move(begins));
  zero.attrs.Set("ends", std::move(ends));
  return zero;
}

void ShardOptimizer::AddGrads(
    Program& program, Bucket& bucket, const std::vector<GradPlan>& grads,
    const std::unordered_map<OpId, size_t>& positions) const {
  const Var& first = program.var(bucket.members.front().param);
  const DType dtype = GradDType(first);
  bucket.grad = AddTemp(program, bucket.name + "@grad", dtype, {bucket.numel},
                        MemoryCategory::kGrads);
  // The op after which the whole gradient is there: `last` by the positions
  // of before this pass, `ready` itself or the cast that follows it.
  size_t last = 0;
  OpId ready = kNoId;
  std::string region;
  for (size_t i = 0; i < grads.size(); ++i) {
    const GradPlan& plan = grads[i];
    const Bucket::Member& member = bucket.members[i];
    const int64_t offset = member.offset * SizeOf(dtype);
    OpId writer = plan.last_writer;
    const size_t position = positions.at(writer);
    const std::string writer_region = program.op(writer).region;
    if (plan.copy) {
      const std::string grad_name = program.var(plan.grad).name;
      program.RenameVar(plan.grad, program.UniqueName(grad_name + "@local"));
      const VarId view = AddView(program, grad_name, bucket.grad, dtype,
                                 program.var(plan.grad).shape, offset, 0);
      Var& local = program.mutable_var(plan.grad);
      Var& grad = program.mutable_var(view);
      grad.relation = std::exchange(local.relation, Relation::kNone);
      grad.related_to = std::exchange(local.related_to, kNoId);
      grad.region = local.region;
      OpSpec cast;
      cast.type = "cast";
      cast.inputs = {{"x", {plan.grad}}};
      cast.outputs = {{"out", {view}}};
      cast.attrs.Set("dtype", std::string(DTypeName(dtype)));
      cast.role = Role::kBackward;
      cast.region = writer_region;
      writer = program.InsertAfter(writer, std::move(cast)).id;
    } else {
      Var& grad = program.mutable_var(plan.grad);
      grad.view_of = bucket.grad;
      grad.byte_offset = offset;
      grad.category = MemoryCategory::kGrads;
    }
    // Casts of one writer stack up in front of each other, so that the first
    // one inserted stays the last.
    if (ready == kNoId || position > last) {
      last = position;
      ready = writer;
      region = writer_region;
    } else if (position == last && plan.copy &&
               program.op(ready).type != "cast") {
      ready = writer;
    }
  }
  OpId after = ready;
  const std::vector<BucketGap> gaps = BucketGaps(bucket);
  if (!gaps.empty()) {
    OpSpec zero = ZeroSpec(program, bucket, gaps);
    zero.role = Role::kBackward;
    zero.region = region;
    after = program.InsertAfter(after, std::move(zero)).id;
  }
  Reduce(program, bucket, after, region);
}

void ShardOptimizer::Reduce(Program& program, Bucket& bucket, OpId after,
                            const std::string& region) const {
  bucket.final_grad = bucket.grad;
  if (options_.degree == 1) return;
  const DType dtype = program.var(bucket.grad).dtype;
  if (options_.stage == 1) {
    bucket.final_grad =
        AddView(program, bucket.name + "@grad@shard", bucket.grad, dtype,
                {bucket.shard_numel}, 0, bucket.shard_numel * SizeOf(dtype));
  } else if (options_.stage == 2) {
    bucket.final_grad = AddTemp(program, bucket.name + "@grad@shard", dtype,
                                {bucket.shard_numel}, MemoryCategory::kGrads);
  }
  if (options_.stage > 0) {
    Var& shard = program.mutable_var(bucket.final_grad);
    shard.relation = Relation::kShardOf;
    shard.related_to = bucket.grad;
  }
  OpSpec reduce;
  reduce.type = options_.stage == 0 ? "all_reduce" : "reduce_scatter";
  reduce.inputs = {{"x", {bucket.grad}}};
  reduce.outputs = {{"out", {bucket.final_grad}}};
  reduce.attrs.Set("reduction", "sum");
  reduce.role = Role::kBackward;
  reduce.region = region;
  program.InsertAfter(after, std::move(reduce));
}

void ShardOptimizer::AddMeanLoss(Program& program) const {
  const auto scalar = [&](const std::string& name) {
    return AddTemp(program, name, DType::kFp32, {1},
                   MemoryCategory::kWorkspace);
  };
  const auto append = [&](std::string type, std::vector<Slot> inputs, VarId out,
                          AttrMap attrs) {
    OpSpec spec;
    spec.type = std::move(type);
    spec.inputs = std::move(inputs);
    spec.outputs = {{"out", {out}}};
    spec.attrs = std::move(attrs);
    spec.role = Role::kUpdate;
    return program.Append(Section::kUpdate, std::move(spec)).id;
  };
  const std::string stem = program.var(program.loss).name;
  // A copy, because the reduction is in place and the loss may be fetched.
  const VarId total = scalar(stem + "@total");
  AttrMap identity;
  identity.Set("factor", 1.0);
  identity.Set("bias", 0.0);
  append("scale", {{"x", {program.loss}}}, total, std::move(identity));
  if (options_.degree > 1) {
    AttrMap sum;
    sum.Set("reduction", "sum");
    append("all_reduce", {{"x", {total}}}, total, std::move(sum));
  }
  const VarId inverse = scalar(stem + "@inv_count");
  OpSpec seed;
  seed.type = "loss_seed";
  seed.inputs = {{"count", {program.loss_count}}};
  seed.outputs = {{"seed", {inverse}}};
  seed.role = Role::kUpdate;
  program.Append(Section::kUpdate, std::move(seed));
  program.mean_loss = scalar("mean_loss");
  append("mul", {{"x", {total}}, {"y", {inverse}}}, program.mean_loss, {});
}

}  // namespace

std::unique_ptr<Pass> MakeShardOptimizer(PassOptions& options) {
  ShardOptimizerOptions o;
  o.stage = options.Int("stage", o.stage);
  o.degree = options.Int("degree", o.degree);
  o.bucket_mb = options.Float("bucket_mb", o.bucket_mb);
  o.grad_dtype = options.String("grad_dtype", o.grad_dtype);
  return std::make_unique<ShardOptimizer>(std::move(o));
}

}  // namespace plo
