// accumulate_micro_steps(steps=A)
//
// Makes one optimizer step of A micro-steps: feeds carry A micro-batches, the
// reduced gradients and the loss add up in fp32.
//
// Before: x [B, ...] feed
//   micro:   f(x); count_valid(x) -> count; ... -> bucket0@grad@shard
//   update:  scale(loss) -> loss@total
// After:  x [A, B, ...] feed
//   startup: fill_constant -> bucket0@acc, loss@acc
//   micro:   slice_micro(x) -> x@micro                 at the head
//            f(x@micro); count_valid(x) -> count       the whole step's count
//            accumulate(loss, loss@acc) -> loss@acc
//            ... -> bucket0@grad@shard
//            accumulate(bucket0@grad@shard, bucket0@acc) -> bucket0@acc
//   update:  scale(loss@acc) -> loss@total
//            cast(bucket0@acc) -> bucket0@grad@final   16-bit gradients only
//
// accumulate overwrites in the first micro-step, so that a skipped step leaves
// nothing behind. The sum is rounded to the gradient's dtype once, in the
// update, whatever A. A = 1 changes nothing. Needs shard_optimizer before it.
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "passes/passes.h"
#include "passes/rewrite_utils.h"

namespace plo {
namespace {

constexpr int64_t kMaxSteps = 1 << 20;

struct FeedPlan {
  VarId feed = kNoId;
  std::vector<OpId> readers;  // that get the slice
  std::vector<VarId> views;   // of the feed
};

class AccumulateMicroSteps : public Pass {
 public:
  explicit AccumulateMicroSteps(int64_t steps) : steps_(steps) {
    PLO_ENFORCE(steps >= 1 && steps <= kMaxSteps, kInvalidArgument,
                "steps must be in [1, ", kMaxSteps, "], got ", steps);
  }
  std::string_view name() const override { return "accumulate_micro_steps"; }

  bool Run(Program& program) override {
    PLO_ENFORCE(program.accumulate_steps == 1, kFailedPrecondition,
                "accumulate_micro_steps has already run with steps=",
                program.accumulate_steps);
    if (steps_ == 1) return false;
    TrainableBuckets(program, "accumulate_micro_steps");
    const std::vector<FeedPlan> feeds = CollectFeeds(program);
    const auto ready = LastWriters(program, Section::kMicro);

    program.accumulate_steps = static_cast<int>(steps_);
    SliceFeeds(program, feeds);
    AccumulateLoss(program, ready);
    for (Bucket& bucket : program.buckets) {
      if (bucket.trainable) AccumulateGrad(program, bucket, ready);
    }
    return true;
  }

 private:
  std::vector<FeedPlan> CollectFeeds(const Program& program) const;
  void SliceFeeds(Program& program, const std::vector<FeedPlan>& feeds) const;
  void AccumulateLoss(Program& program,
                      const std::unordered_map<VarId, OpId>& ready) const;
  void AccumulateGrad(Program& program, Bucket& bucket,
                      const std::unordered_map<VarId, OpId>& ready) const;
  static void InsertAccumulate(Program& program, OpId after, VarId x,
                               VarId acc);

  const int64_t steps_;
};

std::vector<FeedPlan> AccumulateMicroSteps::CollectFeeds(
    const Program& program) const {
  std::unordered_map<VarId, std::vector<VarId>> views;
  std::vector<FeedPlan> feeds;
  for (VarId v : program.vars()) {
    const Var& var = program.var(v);
    if (var.is_view()) views[var.view_of].push_back(v);
    if (var.kind == VarKind::kFeed) feeds.push_back({v, {}, {}});
  }
  bool count_reads_feed = false;
  for (FeedPlan& plan : feeds) {
    // Shape overflow shows before anything is changed.
    std::vector<int64_t> dims = program.var(plan.feed).shape.dims();
    dims.insert(dims.begin(), steps_);
    ByteSize(program.var(plan.feed).dtype, Shape(std::move(dims)));
    plan.views = views[plan.feed];
    for (OpId id : program.Readers(plan.feed)) {
      const Op& op = program.op(id);
      const bool counts = [&] {
        for (const Slot& slot : op.outputs) {
          for (VarId out : slot.vars) {
            if (out == program.loss_count) return true;
          }
        }
        return false;
      }();
      if (counts) {
        count_reads_feed = true;
      } else {
        plan.readers.push_back(id);
      }
    }
  }
  PLO_ENFORCE(count_reads_feed, kFailedPrecondition, "the loss count '",
              program.var(program.loss_count).name,
              "' must be counted on a feed, so that it can be known for all "
              "micro-steps before the first gradient");
  return feeds;
}

void AccumulateMicroSteps::SliceFeeds(
    Program& program, const std::vector<FeedPlan>& feeds) const {
  const OpId head = program.ops(Section::kMicro).front()->id;
  for (const FeedPlan& plan : feeds) {
    const Shape batch = program.var(plan.feed).shape;
    std::vector<int64_t> dims = batch.dims();
    dims.insert(dims.begin(), steps_);
    program.mutable_var(plan.feed).shape = Shape(std::move(dims));
    if (plan.readers.empty()) continue;
    const Var feed = program.var(plan.feed);
    const VarId slice = AddTemp(program, feed.name + "@micro", feed.dtype,
                                batch, MemoryCategory::kActivations);
    OpSpec spec;
    spec.type = "slice_micro";
    spec.inputs = {{"x", {plan.feed}}};
    spec.outputs = {{"out", {slice}}};
    program.InsertBefore(head, std::move(spec));
    for (VarId view : plan.views) program.mutable_var(view).view_of = slice;
    for (OpId reader : plan.readers) {
      program.ReplaceInput(reader, plan.feed, slice);
    }
  }
}

void AccumulateMicroSteps::InsertAccumulate(Program& program, OpId after,
                                            VarId x, VarId acc) {
  OpSpec spec;
  spec.type = "accumulate";
  spec.inputs = {{"x", {x}}, {"acc", {acc}}};
  spec.outputs = {{"acc", {acc}}};
  spec.role = program.op(after).role;
  spec.region = program.op(after).region;
  program.InsertAfter(after, std::move(spec));
}

void AccumulateMicroSteps::AccumulateLoss(
    Program& program, const std::unordered_map<VarId, OpId>& ready) const {
  const VarId acc = AddState(program, program.var(program.loss).name + "@acc",
                             DType::kFp32, {1}, MemoryCategory::kWorkspace);
  AppendFill(program, acc, 0);
  for (OpId id : std::vector<OpId>(program.Readers(program.loss))) {
    if (program.op(id).section == Section::kUpdate) {
      program.ReplaceInput(id, program.loss, acc);
    }
  }
  InsertAccumulate(program, ready.at(program.StorageOf(program.loss)),
                   program.loss, acc);
}

void AccumulateMicroSteps::AccumulateGrad(
    Program& program, Bucket& bucket,
    const std::unordered_map<VarId, OpId>& ready) const {
  const Var grad = program.var(bucket.final_grad);
  const VarId acc = AddState(program, bucket.name + "@acc", DType::kFp32,
                             grad.shape, MemoryCategory::kGrads);
  AppendFill(program, acc, 0);
  InsertAccumulate(program, ready.at(program.StorageOf(grad.id)), grad.id, acc);
  bucket.final_grad = acc;
  if (grad.dtype == DType::kFp32) return;
  bucket.final_grad = AddTemp(program, bucket.name + "@grad@final", grad.dtype,
                              grad.shape, MemoryCategory::kGrads);
  OpSpec cast;
  cast.type = "cast";
  cast.inputs = {{"x", {acc}}};
  cast.outputs = {{"out", {bucket.final_grad}}};
  cast.attrs.Set("dtype", std::string(DTypeName(grad.dtype)));
  cast.role = Role::kUpdate;
  program.Append(Section::kUpdate, std::move(cast));
}

}  // namespace

std::unique_ptr<Pass> MakeAccumulateMicroSteps(PassOptions& options) {
  return std::make_unique<AccumulateMicroSteps>(options.Int("steps", 1));
}

}  // namespace plo
