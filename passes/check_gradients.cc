// check_gradients
//
// Measures the reduced gradients and writes the step record, on which every
// later decision of the step rests: skip, clip, bias corrections.
//
// Before: bucket0's final gradient is ready in micro, or with accumulation in
//         update.
// After:
//   startup: fill_constant -> applied_step
//   right after the final gradient of each bucket:
//            grad_stats(final_grad) -> bucket0@stats    view of grad_stats: the
//                         sum of squares of each member and a count of
//                         non-finite values, over this rank's slice
//   update:  all_reduce(grad_stats) -> grad_stats       with several ranks
//            lr_schedule(applied_step) -> lr            rate 0 until
//                                                       insert_optimizer sets
//                                                       it
//            step_record(grad_stats, applied_step, lr)
//                -> step_record, applied_step
//
// In stage 0 every rank holds the whole gradient and still measures its own
// slice only, so that norms have the same bits in all stages. A rank that owns
// padding only contributes zeros. Needs shard_optimizer, and if there is
// accumulation that, before it.
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "passes/passes.h"
#include "passes/rewrite_utils.h"

namespace plo {
namespace {

constexpr int64_t kRecordSize = 16;
// need_clip's mark for the count of non-finite values.
constexpr int64_t kCountsNonfinite = -1;

class CheckGradients : public Pass {
 public:
  std::string_view name() const override { return "check_gradients"; }

  bool Run(Program& program) override {
    PLO_ENFORCE(program.step_record == kNoId, kFailedPrecondition,
                "check_gradients has already run on this program");
    const std::vector<const Bucket*> buckets =
        TrainableBuckets(program, "check_gradients");
    const auto micro_writers = LastWriters(program, Section::kMicro);
    const auto update_writers = LastWriters(program, Section::kUpdate);
    int64_t entries = 0;
    for (const Bucket* bucket : buckets) {
      entries += static_cast<int64_t>(bucket->members.size()) + 1;
    }

    const VarId stats = AddState(program, "grad_stats", DType::kFp32, {entries},
                                 MemoryCategory::kWorkspace);
    AppendFill(program, stats, 0);
    std::vector<int64_t> need_clip;
    for (const Bucket* bucket : buckets) {
      const VarId storage = program.StorageOf(bucket->final_grad);
      // An fp32 accumulator is written in micro but final only in update.
      const bool in_update = program.accumulate_steps > 1;
      const auto& writers = in_update ? update_writers : micro_writers;
      const auto ready = writers.find(storage);
      AddStats(program, *bucket, stats, need_clip,
               ready == writers.end() ? kNoId : ready->second);
    }
    AddRecord(program, stats, std::move(need_clip));
    return true;
  }

 private:
  static void AddStats(Program& program, const Bucket& bucket, VarId stats,
                       std::vector<int64_t>& need_clip, OpId ready) {
    const int64_t offset = static_cast<int64_t>(need_clip.size());
    const int64_t count = static_cast<int64_t>(bucket.members.size()) + 1;
    std::vector<int64_t> begins, numels;
    for (const Bucket::Member& member : bucket.members) {
      begins.push_back(member.offset);
      numels.push_back(member.numel);
      need_clip.push_back(program.var(member.param).param.need_clip ? 1 : 0);
    }
    need_clip.push_back(kCountsNonfinite);
    const VarId view =
        AddView(program, bucket.name + "@stats", stats, DType::kFp32, {count},
                offset * SizeOf(DType::kFp32), 0);
    OpSpec spec;
    spec.type = "grad_stats";
    spec.inputs = {{"x", {bucket.final_grad}}};
    spec.outputs = {{"stats", {view}}};
    spec.attrs.Set("sliced", bucket.sliced);
    spec.attrs.Set("slice_numel", bucket.shard_numel);
    spec.attrs.Set("segment_begins", std::move(begins));
    spec.attrs.Set("segment_numels", std::move(numels));
    if (ready == kNoId) {
      spec.role = Role::kUpdate;
      program.Append(Section::kUpdate, std::move(spec));
    } else {
      spec.role = program.op(ready).role;
      spec.region = program.op(ready).region;
      program.InsertAfter(ready, std::move(spec));
    }
  }

  static void AddRecord(Program& program, VarId stats,
                        std::vector<int64_t> need_clip) {
    const auto append = [&](std::string type, std::vector<Slot> inputs,
                            std::vector<Slot> outputs, AttrMap attrs) {
      OpSpec spec;
      spec.type = std::move(type);
      spec.inputs = std::move(inputs);
      spec.outputs = std::move(outputs);
      spec.attrs = std::move(attrs);
      spec.role = Role::kUpdate;
      program.Append(Section::kUpdate, std::move(spec));
    };
    if (program.world_size > 1) {
      AttrMap attrs;
      attrs.Set("reduction", "sum");
      append("all_reduce", {{"x", {stats}}}, {{"out", {stats}}},
             std::move(attrs));
    }
    const VarId applied = AddState(program, "applied_step", DType::kInt64, {1},
                                   MemoryCategory::kWorkspace);
    AppendFill(program, applied, 0);
    const VarId lr =
        AddTemp(program, "lr", DType::kFp32, {1}, MemoryCategory::kWorkspace);
    AttrMap schedule;
    schedule.Set("kind", "constant");
    schedule.Set("base_lr", 0.0);
    schedule.Set("warmup_steps", 0);
    schedule.Set("total_steps", 0);
    schedule.Set("min_ratio", 0.0);
    append("lr_schedule", {{"applied_step", {applied}}}, {{"lr", {lr}}},
           std::move(schedule));
    program.step_record = AddState(program, "step_record", DType::kFp32,
                                   {kRecordSize}, MemoryCategory::kWorkspace);
    AppendFill(program, program.step_record, 0);
    AttrMap attrs;
    attrs.Set("clip_mode", "none");
    attrs.Set("clip_norm", 0.0);
    attrs.Set("need_clip", std::move(need_clip));
    attrs.Set("beta1", 0.0);
    attrs.Set("beta2", 0.0);
    append("step_record",
           {{"stats", {stats}}, {"applied_step", {applied}}, {"lr", {lr}}},
           {{"record", {program.step_record}}, {"applied_step", {applied}}},
           std::move(attrs));
  }
};

}  // namespace

std::unique_ptr<Pass> MakeCheckGradients(PassOptions&) {
  return std::make_unique<CheckGradients>();
}

}  // namespace plo
