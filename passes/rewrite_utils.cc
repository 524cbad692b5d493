#include "passes/rewrite_utils.h"

#include <algorithm>
#include <utility>

namespace plo {

VarId AddState(Program& program, const std::string& name, DType dtype,
               Shape shape, MemoryCategory category, Place place) {
  Var var;
  var.name = program.UniqueName(name);
  var.dtype = dtype;
  var.shape = std::move(shape);
  var.kind = VarKind::kState;
  var.place = place;
  var.category = category;
  return program.AddVar(std::move(var));
}

VarId AddTemp(Program& program, const std::string& name, DType dtype,
              Shape shape, MemoryCategory category) {
  Var var;
  var.name = program.UniqueName(name);
  var.dtype = dtype;
  var.shape = std::move(shape);
  var.category = category;
  return program.AddVar(std::move(var));
}

VarId AddView(Program& program, const std::string& name, VarId of, DType dtype,
              Shape shape, int64_t byte_offset, int64_t rank_stride_bytes) {
  const Var& base = program.var(of);
  Var var;
  var.name = program.UniqueName(name);
  var.dtype = dtype;
  var.shape = std::move(shape);
  var.kind = base.kind;
  var.place = base.place;
  var.category = base.category;
  var.view_of = of;
  var.byte_offset = byte_offset;
  var.rank_stride_bytes = rank_stride_bytes;
  return program.AddVar(std::move(var));
}

OpSpec FillSpec(const Program& program, VarId out, double value) {
  const Var& target = program.var(out);
  OpSpec spec;
  spec.type = "fill_constant";
  spec.outputs = {{"out", {out}}};
  spec.attrs.Set("value", value);
  spec.attrs.Set("shape", target.shape.dims());
  spec.attrs.Set("dtype", std::string(DTypeName(target.dtype)));
  if (target.place == Place::kPinned) spec.stream = StreamKind::kHost;
  return spec;
}

void AppendFill(Program& program, VarId out, double value) {
  program.Append(Section::kStartup, FillSpec(program, out, value));
}

std::unordered_map<OpId, size_t> PositionsOf(const Program& program,
                                             Section section) {
  const auto& ops = program.ops(section);
  std::unordered_map<OpId, size_t> positions;
  positions.reserve(ops.size());
  for (size_t i = 0; i < ops.size(); ++i) positions.emplace(ops[i]->id, i);
  return positions;
}

std::unordered_map<VarId, OpId> LastWriters(const Program& program,
                                            Section section) {
  std::unordered_map<VarId, OpId> writers;
  for (const auto& op : program.ops(section)) {
    for (const Slot& slot : op->outputs) {
      for (VarId v : slot.vars) writers[program.StorageOf(v)] = op->id;
    }
  }
  return writers;
}

OpId FindUpdateOp(const Program& program, VarId var, std::string_view type,
                  std::string_view needed_by, std::string_view made_by) {
  if (var != kNoId) {
    for (OpId id : program.Writers(var)) {
      const Op& op = program.op(id);
      if (op.section == Section::kUpdate && op.type == type) return id;
    }
  }
  PLO_THROW(kFailedPrecondition, needed_by, " needs ", made_by,
            " to run before it");
}

void RequireFirstRun(const Program& program, std::string_view pass) {
  for (const std::string& entry : program.applied_passes) {
    PLO_ENFORCE(entry.substr(0, entry.find('(')) != pass, kFailedPrecondition,
                pass, " has already run on this program");
  }
}

void AddAfter(Program& program, OpId waiter, OpId op) {
  std::vector<OpId>& after = program.mutable_op(waiter).after;
  if (std::find(after.begin(), after.end(), op) == after.end()) {
    after.push_back(op);
  }
}

std::vector<const Bucket*> TrainableBuckets(const Program& program,
                                            std::string_view needed_by) {
  PLO_ENFORCE(!program.buckets.empty(), kFailedPrecondition, needed_by,
              " needs shard_optimizer to run before it");
  std::vector<const Bucket*> trainable;
  for (const Bucket& bucket : program.buckets) {
    if (bucket.trainable) trainable.push_back(&bucket);
  }
  PLO_ENFORCE(!trainable.empty(), kFailedPrecondition,
              "the program has no trainable param");
  return trainable;
}

}  // namespace plo
