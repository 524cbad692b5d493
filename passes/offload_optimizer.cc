// offload_optimizer(fraction=1, streamed_fraction=0, streamed_chunk=1398016,
//                   mode=overlap|sync)
//
// Moves the optimizer's state of whole buckets to pinned host memory. The last
// buckets in forward order go first: the next forward needs their params
// latest, so that their updates hide best. As many go as come nearest to
// `fraction` of the state's bytes.
//
// Of these, buckets with `streamed_fraction` of the bytes are updated on the
// device, streamed through it in chunks (passes/stream_states.h); the others
// are updated on the host, as below. The two kinds alternate as evenly as their
// shares allow (framework/plan/update_split.h), so that both ways of updating
// are busy from the first buckets to the last.
//
// Before:
//   startup: cast(bucket0@shard) -> bucket0@master         (16-bit params)
//   micro or update: grad_stats(final_grad) -> bucket0@stats
//   update:  step_record(..) -> step_record
//            adamw(final_grad, step_record, master, moment1, moment2)
//                -> master, moment1, moment2, bucket0@shard
// After:     master, moment1 and moment2 are pinned
//   startup: copy_d2h(bucket0@shard) -> bucket0@param@host
//            cast(bucket0@param@host) -> bucket0@master    on the host
//   micro or update: grad_stats(final_grad) -> bucket0@stats
//            copy_d2h(final_grad) -> bucket0@grad@host
//   update:  step_record(..) -> step_record
//            copy_d2h(step_record) -> step_record@host     once for all
//            adamw(bucket0@grad@host, step_record@host, master, moment1,
//                moment2) -> master, moment1, moment2, bucket0@param@host
//            copy_h2d(bucket0@param@host) -> bucket0@shard
// bucket0@param@host reuses the bytes of bucket0@grad@host, of which the update
// reads each element before it writes the param there; only gradients wider
// than params leave it bytes of its own. fp32 params get a pinned master that
// starts as copy_d2h(bucket0@shard) and is what copy_h2d uploads. Ops that read
// grad_stats read a pinned copy of it.
//
// mode=overlap leaves all order to data dependencies: the updates run under the
// next forward. mode=sync chains the copies and the whole update by control
// edges, and the next step's first op waits for the last: the reference that
// overlap is compared with. All options give the same bits. fraction=0 changes
// nothing. Needs insert_optimizer before it.
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "framework/plan/update_split.h"
#include "passes/passes.h"
#include "passes/rewrite_utils.h"
#include "passes/stream_states.h"

namespace plo {
namespace {

struct OffloadOptions {
  double fraction = 1;           // of the bytes of optimizer state
  double streamed_fraction = 0;  // of those
  // Elements. A slot of 16 MiB fits the gaps that activations leave, and its
  // copies are long enough for the link.
  int64_t streamed_chunk = 1398016;
  std::string mode = "overlap";
};

// One bucket to offload, with the ops to rewrite.
struct BucketPlan {
  Bucket* bucket = nullptr;
  bool streamed = false;
  OpId optimizer = kNoId;
  OpId stats = kNoId;        // reads the final gradient
  OpId master_init = kNoId;  // the startup cast; kNoId for fp32
  std::vector<OpId> moment_inits;
};

// Pinned copies of what the step's decisions left on the device.
struct HostScalars {
  VarId record = kNoId;
  VarId stats = kNoId;  // only where gradients are clipped one by one
};

int64_t DeviceStateBytes(const Program& program, const Bucket& bucket) {
  int64_t bytes = 0;
  for (VarId v : {bucket.master, bucket.moment1, bucket.moment2}) {
    if (v != kNoId && v != bucket.param_slice) bytes += program.var(v).bytes();
  }
  return bytes;
}

// How many of the last trainable buckets come nearest to the fraction.
size_t CountToOffload(const Program& program, double fraction) {
  std::vector<int64_t> bytes;  // of the trainable buckets, last first
  int64_t total = 0;
  for (size_t i = program.buckets.size(); i-- > 0;) {
    if (!program.buckets[i].trainable) continue;
    bytes.push_back(DeviceStateBytes(program, program.buckets[i]));
    total += bytes.back();
  }
  const double wanted = fraction * static_cast<double>(total);
  size_t best = 0;
  double best_distance = wanted;
  int64_t sum = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    sum += bytes[i];
    const double distance = std::abs(static_cast<double>(sum) - wanted);
    if (distance <= best_distance) {
      best_distance = distance;
      best = i + 1;
    }
  }
  return best;
}

class OffloadOptimizer : public Pass {
 public:
  explicit OffloadOptimizer(OffloadOptions options)
      : options_(std::move(options)) {
    PLO_ENFORCE(options_.fraction >= 0 && options_.fraction <= 1,
                kInvalidArgument, "fraction must be in [0, 1], got ",
                options_.fraction);
    PLO_ENFORCE(
        options_.streamed_fraction >= 0 && options_.streamed_fraction <= 1,
        kInvalidArgument, "streamed_fraction must be in [0, 1], got ",
        options_.streamed_fraction);
    PLO_ENFORCE(
        options_.streamed_chunk > 0 && options_.streamed_chunk % 128 == 0,
        kInvalidArgument,
        "streamed_chunk must be a positive multiple of 128, got ",
        options_.streamed_chunk);
    PLO_ENFORCE(options_.mode == "overlap" || options_.mode == "sync",
                kInvalidArgument, "mode must be overlap or sync, got '",
                options_.mode, "'");
  }
  std::string_view name() const override { return "offload_optimizer"; }

  bool Run(Program& program) override {
    const std::vector<const Bucket*> trainable =
        TrainableBuckets(program, "offload_optimizer");
    for (const Bucket* bucket : trainable) {
      PLO_ENFORCE(bucket->moment1 != kNoId, kFailedPrecondition,
                  "offload_optimizer needs insert_optimizer to run before it");
      PLO_ENFORCE(program.var(bucket->moment1).place == Place::kDevice,
                  kFailedPrecondition,
                  "offload_optimizer has already run on this program");
    }
    std::vector<BucketPlan> plans = Collect(program);
    if (plans.empty()) return false;

    ChooseStreamed(program, plans);
    std::optional<HostScalars> scalars;
    std::unordered_map<OpId, std::vector<OpId>> streamed;  // by optimizer op
    for (BucketPlan& plan : plans) {
      if (plan.streamed) {
        streamed[plan.optimizer] =
            StreamStates(program, *plan.bucket,
                         {plan.optimizer, plan.master_init, plan.moment_inits,
                          options_.streamed_chunk});
        continue;
      }
      if (!scalars) scalars = OffloadScalars(program);
      Offload(program, plan, *scalars);
    }
    PutInPlace(program, streamed);
    if (options_.mode == "sync") Serialise(program);
    return true;
  }

 private:
  std::vector<BucketPlan> Collect(Program& program) const;
  void ChooseStreamed(const Program& program,
                      std::vector<BucketPlan>& plans) const;
  static HostScalars OffloadScalars(Program& program);
  static VarId CopyToHost(Program& program, VarId source, OpId position);
  static void Offload(Program& program, const BucketPlan& plan,
                      const HostScalars& scalars);
  // The pinned bytes that the params go back from, for 16-bit params.
  static VarId AddParamHost(Program& program, const Bucket& bucket,
                            VarId grad_host);
  // Puts the ops of each list where its key stands, and erases that.
  static void PutInPlace(
      Program& program,
      const std::unordered_map<OpId, std::vector<OpId>>& lists);
  static void Serialise(Program& program);

  const OffloadOptions options_;
};

std::vector<BucketPlan> OffloadOptimizer::Collect(Program& program) const {
  size_t skip = 0;
  for (const Bucket& bucket : program.buckets) skip += bucket.trainable;
  skip -= CountToOffload(program, options_.fraction);

  std::unordered_map<VarId, OpId> stats_of;  // by final gradient
  for (const Section section : {Section::kMicro, Section::kUpdate}) {
    for (const auto& op : program.ops(section)) {
      if (op->type == "grad_stats") stats_of.emplace(op->In1("x"), op->id);
    }
  }
  std::vector<BucketPlan> plans;
  for (Bucket& bucket : program.buckets) {
    if (!bucket.trainable) continue;
    if (skip > 0) {
      --skip;
      continue;
    }
    BucketPlan plan;
    plan.bucket = &bucket;
    plan.stats = stats_of.at(bucket.final_grad);
    for (VarId v : {bucket.moment1, bucket.moment2}) {
      if (v == kNoId) continue;
      for (OpId id : program.Writers(v)) {
        if (program.op(id).section == Section::kStartup) {
          plan.moment_inits.push_back(id);
        } else {
          plan.optimizer = id;
        }
      }
    }
    if (bucket.master != bucket.param_slice) {
      plan.master_init = program.Writers(bucket.master).front();
    }
    plans.push_back(std::move(plan));
  }
  return plans;
}

void OffloadOptimizer::ChooseStreamed(const Program& program,
                                      std::vector<BucketPlan>& plans) const {
  std::vector<int64_t> bytes;
  for (const BucketPlan& plan : plans) {
    bytes.push_back(DeviceStateBytes(program, *plan.bucket));
  }
  const std::vector<bool> streams =
      SplitUpdates(bytes, options_.streamed_fraction);
  for (size_t i = 0; i < plans.size(); ++i) plans[i].streamed = streams[i];
}

VarId OffloadOptimizer::CopyToHost(Program& program, VarId source,
                                   OpId position) {
  const Var from = program.var(source);
  const VarId host = AddState(program, from.name + "@host", from.dtype,
                              from.shape, from.category, Place::kPinned);
  OpSpec copy;
  copy.type = "copy_d2h";
  copy.inputs = {{"x", {source}}};
  copy.outputs = {{"out", {host}}};
  copy.role = Role::kUpdate;
  program.InsertAfter(position, std::move(copy));
  return host;
}

HostScalars OffloadOptimizer::OffloadScalars(Program& program) {
  const OpId record = FindUpdateOp(program, program.step_record, "step_record",
                                   "offload_optimizer", "check_gradients");
  const bool needs_stats =
      program.op(record).attrs.GetString("clip_mode") == "norm";
  HostScalars scalars;
  if (needs_stats) {
    scalars.stats =
        CopyToHost(program, program.op(record).In1("stats"), record);
  }
  scalars.record = CopyToHost(program, program.step_record, record);
  return scalars;
}

VarId OffloadOptimizer::AddParamHost(Program& program, const Bucket& bucket,
                                     VarId grad_host) {
  const Var slice = program.var(bucket.param_slice);
  const std::string name = bucket.name + "@param@host";
  if (SizeOf(program.var(grad_host).dtype) == SizeOf(slice.dtype)) {
    return AddView(program, name, grad_host, slice.dtype, slice.shape, 0, 0);
  }
  return AddState(program, name, slice.dtype, slice.shape,
                  MemoryCategory::kParams, Place::kPinned);
}

void OffloadOptimizer::Offload(Program& program, const BucketPlan& plan,
                               const HostScalars& scalars) {
  Bucket& bucket = *plan.bucket;
  const auto copy = [](const char* type, VarId from, VarId to) {
    OpSpec spec;
    spec.type = type;
    spec.inputs = {{"x", {from}}};
    spec.outputs = {{"out", {to}}};
    return spec;
  };

  const Var grad = program.var(bucket.final_grad);
  const VarId grad_host =
      AddState(program, bucket.name + "@grad@host", grad.dtype, grad.shape,
               MemoryCategory::kGrads, Place::kPinned);
  OpSpec download = copy("copy_d2h", grad.id, grad_host);
  download.role = program.op(plan.stats).role;
  download.region = program.op(plan.stats).region;
  program.InsertAfter(plan.stats, std::move(download));

  VarId upload_from = kNoId;
  if (plan.master_init != kNoId) {
    upload_from = AddParamHost(program, bucket, grad_host);
    program.InsertBefore(plan.master_init,
                         copy("copy_d2h", bucket.param_slice, upload_from));
    Op& init = program.mutable_op(plan.master_init);
    init.SetIn("x", {upload_from});
    init.stream = StreamKind::kHost;
    program.mutable_var(bucket.master).place = Place::kPinned;
  } else {
    const Var slice = program.var(bucket.param_slice);
    bucket.master =
        AddState(program, bucket.name + "@master", DType::kFp32, slice.shape,
                 MemoryCategory::kOptimizerState, Place::kPinned);
    program.mutable_var(bucket.master).relation = Relation::kMasterOf;
    program.mutable_var(bucket.master).related_to = bucket.param;
    program.Append(Section::kStartup,
                   copy("copy_d2h", slice.id, bucket.master));
    upload_from = bucket.master;
  }
  for (VarId v : {bucket.moment1, bucket.moment2}) {
    if (v != kNoId) program.mutable_var(v).place = Place::kPinned;
  }
  for (OpId id : plan.moment_inits) {
    program.mutable_op(id).stream = StreamKind::kHost;
  }

  Op& update = program.mutable_op(plan.optimizer);
  update.stream = StreamKind::kHost;
  update.SetIn("grad", {grad_host});
  update.SetIn("record", {scalars.record});
  if (update.HasIn("stats")) update.SetIn("stats", {scalars.stats});
  update.SetIn("master", {bucket.master});
  update.SetOut("master", {bucket.master});
  if (plan.master_init != kNoId) update.SetOut("param", {upload_from});
  program.InvalidateIndex();
  OpSpec upload = copy("copy_h2d", upload_from, bucket.param_slice);
  upload.role = Role::kUpdate;
  program.InsertAfter(plan.optimizer, std::move(upload));
}

void OffloadOptimizer::PutInPlace(
    Program& program,
    const std::unordered_map<OpId, std::vector<OpId>>& lists) {
  if (lists.empty()) return;
  std::unordered_set<OpId> moved;
  std::vector<OpId> replaced, order;
  for (const auto& [id, list] : lists) {
    moved.insert(list.begin(), list.end());
    replaced.push_back(id);
  }
  for (const auto& op : program.ops(Section::kUpdate)) {
    if (moved.count(op->id) > 0) continue;
    const auto it = lists.find(op->id);
    if (it != lists.end()) {
      order.insert(order.end(), it->second.begin(), it->second.end());
    }
    order.push_back(op->id);
  }
  program.Reorder(Section::kUpdate, order);
  program.EraseOps(replaced);
}

void OffloadOptimizer::Serialise(Program& program) {
  const auto& micro = program.ops(Section::kMicro);
  const auto& update = program.ops(Section::kUpdate);
  for (size_t i = 0; i < micro.size(); ++i) {
    if (micro[i]->type != "copy_d2h") continue;
    const Op& next = i + 1 < micro.size() ? *micro[i + 1] : *update.front();
    AddAfter(program, next.id, micro[i]->id);
  }
  for (size_t i = 1; i < update.size(); ++i) {
    AddAfter(program, update[i]->id, update[i - 1]->id);
  }
  AddAfter(program, micro.front()->id, update.back()->id);
}

}  // namespace

std::unique_ptr<Pass> MakeOffloadOptimizer(PassOptions& options) {
  OffloadOptions o;
  o.fraction = options.Float("fraction", o.fraction);
  o.streamed_fraction = options.Float("streamed_fraction", o.streamed_fraction);
  o.streamed_chunk = options.Int("streamed_chunk", o.streamed_chunk);
  o.mode = options.String("mode", o.mode);
  return std::make_unique<OffloadOptimizer>(std::move(o));
}

}  // namespace plo
