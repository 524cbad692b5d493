#include "framework/ir/program.h"

#include <algorithm>
#include <unordered_set>

namespace plo {
namespace {

const std::vector<VarId> kNoVars;

const std::vector<VarId>& FindSlot(const std::vector<Slot>& slots,
                                   std::string_view name) {
  for (const Slot& slot : slots) {
    if (slot.name == name) return slot.vars;
  }
  return kNoVars;
}

VarId SingleVar(const Op& op, const std::vector<Slot>& slots,
                std::string_view name) {
  const std::vector<VarId>& vars = FindSlot(slots, name);
  PLO_ENFORCE(vars.size() <= 1, kInternal, Describe(op), ": slot '", name,
              "' holds ", vars.size(), " vars, expected one");
  return vars.empty() ? kNoId : vars[0];
}

void SetSlot(std::vector<Slot>& slots, std::string_view name,
             std::vector<VarId> vars) {
  for (Slot& slot : slots) {
    if (slot.name == name) {
      slot.vars = std::move(vars);
      return;
    }
  }
  slots.push_back({std::string(name), std::move(vars)});
}

}  // namespace

// --- AttrMap ---

bool AttrMap::Has(std::string_view name) const { return Find(name) != nullptr; }

const Attr* AttrMap::Find(std::string_view name) const {
  const auto it = values_.find(name);
  return it == values_.end() ? nullptr : &it->second;
}

const Attr& AttrMap::At(std::string_view name) const {
  const Attr* attr = Find(name);
  PLO_ENFORCE(attr != nullptr, kNotFound, "no attribute '", name, "'");
  return *attr;
}

namespace {
template <typename T>
const T& As(const Attr& attr, std::string_view name, std::string_view type) {
  const T* value = std::get_if<T>(&attr);
  PLO_ENFORCE(value != nullptr, kInvalidArgument, "attribute '", name,
              "' is not of type ", type);
  return *value;
}
}  // namespace

bool AttrMap::GetBool(std::string_view name) const {
  return As<bool>(At(name), name, "bool");
}
int64_t AttrMap::GetInt(std::string_view name) const {
  return As<int64_t>(At(name), name, "int");
}
double AttrMap::GetFloat(std::string_view name) const {
  return As<double>(At(name), name, "float");
}
const std::string& AttrMap::GetString(std::string_view name) const {
  return As<std::string>(At(name), name, "string");
}
const std::vector<int64_t>& AttrMap::GetInts(std::string_view name) const {
  return As<std::vector<int64_t>>(At(name), name, "ints");
}
const std::vector<double>& AttrMap::GetFloats(std::string_view name) const {
  return As<std::vector<double>>(At(name), name, "floats");
}
const std::vector<std::string>& AttrMap::GetStrings(
    std::string_view name) const {
  return As<std::vector<std::string>>(At(name), name, "strings");
}

void AttrMap::Set(std::string name, Attr value) {
  values_.insert_or_assign(std::move(name), std::move(value));
}

void AttrMap::Erase(std::string_view name) {
  const auto it = values_.find(name);
  if (it != values_.end()) values_.erase(it);
}

// --- Op ---

const std::vector<VarId>& Op::In(std::string_view slot) const {
  return FindSlot(inputs, slot);
}
const std::vector<VarId>& Op::Out(std::string_view slot) const {
  return FindSlot(outputs, slot);
}
VarId Op::In1(std::string_view slot) const {
  return SingleVar(*this, inputs, slot);
}
VarId Op::Out1(std::string_view slot) const {
  return SingleVar(*this, outputs, slot);
}
void Op::SetIn(std::string_view slot, std::vector<VarId> vars) {
  SetSlot(inputs, slot, std::move(vars));
}
void Op::SetOut(std::string_view slot, std::vector<VarId> vars) {
  SetSlot(outputs, slot, std::move(vars));
}

std::string Describe(const Op& op) {
  std::string out = StrCat("op '", op.type, "' #", op.id);
  if (!op.region.empty() || !op.location.empty()) {
    out += " (" + op.region;
    if (!op.location.empty()) {
      if (!op.region.empty()) out += ", ";
      out += "built at " + op.location;
    }
    out += ")";
  }
  return out;
}

std::string Describe(const Var& var) {
  return StrCat(var.dtype, " ", var.shape, " '", var.name, "'");
}

// --- Program: vars ---

Program Program::Clone() const {
  Program copy;
  copy.name = name;
  copy.seed = seed;
  copy.world_size = world_size;
  copy.accumulate_steps = accumulate_steps;
  copy.applied_passes = applied_passes;
  copy.loss = loss;
  copy.loss_count = loss_count;
  copy.mean_loss = mean_loss;
  copy.step_record = step_record;
  copy.loss_scale = loss_scale;
  copy.buckets = buckets;
  copy.vars_ = vars_;
  copy.var_by_name_ = var_by_name_;
  copy.next_op_id_ = next_op_id_;
  for (int s = 0; s < kSectionCount; ++s) {
    for (const auto& op : sections_[s]) {
      copy.sections_[s].push_back(std::make_unique<Op>(*op));
      copy.op_by_id_[op->id] = {copy.sections_[s].back().get(),
                                copy.sections_[s].size() - 1};
    }
  }
  return copy;
}

VarId Program::AddVar(Var var) {
  var.id = static_cast<VarId>(vars_.size());
  return AddVarWithId(std::move(var));
}

VarId Program::AddVarWithId(Var var) {
  PLO_ENFORCE(!var.name.empty(), kInvalidArgument, "a var needs a name");
  PLO_ENFORCE(var.id >= 0, kInvalidArgument, "var '", var.name,
              "' has the negative id ", var.id);
  const auto [it, fresh] = var_by_name_.emplace(var.name, var.id);
  PLO_ENFORCE(fresh, kInvalidArgument, "there is already a var named '",
              var.name, "'");
  if (static_cast<size_t>(var.id) >= vars_.size()) vars_.resize(var.id + 1);
  if (vars_[var.id].has_value()) {
    var_by_name_.erase(it);
    PLO_THROW(kInvalidArgument, "there is already a var with id ", var.id);
  }
  const VarId id = var.id;
  vars_[id] = std::move(var);
  index_valid_ = false;
  return id;
}

std::string Program::UniqueName(const std::string& stem) const {
  if (var_by_name_.count(stem) == 0) return stem;
  for (int i = 1;; ++i) {
    std::string candidate = StrCat(stem, "_", i);
    if (var_by_name_.count(candidate) == 0) return candidate;
  }
}

bool Program::HasVar(VarId id) const {
  return id >= 0 && static_cast<size_t>(id) < vars_.size() &&
         vars_[id].has_value();
}

const Var& Program::var(VarId id) const {
  PLO_ENFORCE(HasVar(id), kNotFound, "no var with id ", id);
  return *vars_[id];
}

Var& Program::mutable_var(VarId id) {
  return const_cast<Var&>(std::as_const(*this).var(id));
}

VarId Program::FindVar(std::string_view var_name) const {
  const auto it = var_by_name_.find(std::string(var_name));
  return it == var_by_name_.end() ? kNoId : it->second;
}

VarId Program::GetVar(std::string_view var_name) const {
  const VarId id = FindVar(var_name);
  PLO_ENFORCE(id != kNoId, kNotFound, "no var named '", var_name, "'");
  return id;
}

void Program::EraseVars(const std::vector<VarId>& ids) {
  if (ids.empty()) return;
  std::vector<bool> gone(vars_.size(), false);
  for (VarId id : ids) {
    PLO_ENFORCE(Writers(id).empty() && Readers(id).empty(), kFailedPrecondition,
                "var '", var(id).name, "' is still used by an op");
    gone[id] = true;
  }
  const auto is_gone = [&](VarId id) { return id != kNoId && gone[id]; };
  for (const auto& other : vars_) {
    if (!other || gone[other->id]) continue;
    const VarId of =
        is_gone(other->view_of) ? other->view_of : other->related_to;
    PLO_ENFORCE(!is_gone(of), kFailedPrecondition, "var '", var(of).name,
                "' is still referred to by '", other->name, "'");
  }
  for (VarId id : ids) {
    if (!vars_[id]) continue;  // listed twice
    var_by_name_.erase(vars_[id]->name);
    vars_[id].reset();
  }
}

std::vector<VarId> Program::vars() const {
  std::vector<VarId> ids;
  for (const auto& var : vars_) {
    if (var) ids.push_back(var->id);
  }
  return ids;
}

void Program::RenameVar(VarId id, const std::string& new_name) {
  Var& target = mutable_var(id);
  if (target.name == new_name) return;
  PLO_ENFORCE(var_by_name_.emplace(new_name, id).second, kInvalidArgument,
              "there is already a var named '", new_name, "'");
  var_by_name_.erase(target.name);
  target.name = new_name;
}

VarId Program::StorageOf(VarId id) const {
  while (var(id).is_view()) id = var(id).view_of;
  return id;
}

int64_t Program::OffsetInStorage(VarId id, int rank) const {
  int64_t offset = 0;
  for (const Var* v = &var(id); v->is_view(); v = &var(v->view_of)) {
    offset += v->byte_offset + rank * v->rank_stride_bytes;
  }
  return offset;
}

std::vector<VarId> Program::Params() const {
  std::vector<VarId> params;
  for (const auto& var : vars_) {
    if (var && var->kind == VarKind::kParam) params.push_back(var->id);
  }
  return params;
}

VarId Program::Related(VarId of, Relation relation) const {
  for (const auto& var : vars_) {
    if (var && var->relation == relation && var->related_to == of) {
      return var->id;
    }
  }
  return kNoId;
}

// --- Program: ops ---

Op& Program::Insert(Section section, size_t index, OpSpec spec, OpId id) {
  auto op = std::make_unique<Op>();
  op->id = id;
  op->type = std::move(spec.type);
  op->inputs = std::move(spec.inputs);
  op->outputs = std::move(spec.outputs);
  op->attrs = std::move(spec.attrs);
  op->role = spec.role;
  op->section = section;
  op->stream = spec.stream;
  op->region = std::move(spec.region);
  op->location = std::move(spec.location);
  op->first_micro_only = spec.first_micro_only;
  op->random_id = spec.random_id;
  for (const auto* slots : {&op->inputs, &op->outputs}) {
    for (const Slot& slot : *slots) {
      for (VarId id_in_slot : slot.vars) var(id_in_slot);  // must exist
    }
  }
  Op& placed = *op;
  auto& list = sections_[static_cast<size_t>(section)];
  list.insert(list.begin() + index, std::move(op));
  op_by_id_[id] = {&placed, index};
  next_op_id_ = std::max(next_op_id_, id + 1);
  index_valid_ = false;
  return placed;
}

Op& Program::Append(Section section, OpSpec spec) {
  return Insert(section, ops(section).size(), std::move(spec), next_op_id_);
}

Op& Program::InsertBefore(OpId position, OpSpec spec) {
  return Insert(op(position).section, IndexOf(position), std::move(spec),
                next_op_id_);
}

Op& Program::InsertAfter(OpId position, OpSpec spec) {
  return Insert(op(position).section, IndexOf(position) + 1, std::move(spec),
                next_op_id_);
}

Op& Program::AppendWithId(Section section, OpId id, OpSpec spec,
                          std::vector<OpId> after) {
  PLO_ENFORCE(id >= 0 && !HasOp(id), kInvalidArgument, "op id ", id,
              " is negative or taken");
  Op& placed = Insert(section, ops(section).size(), std::move(spec), id);
  placed.after = std::move(after);
  return placed;
}

void Program::EraseOp(OpId id) {
  auto& list = sections_[static_cast<size_t>(op(id).section)];
  list.erase(list.begin() + IndexOf(id));
  op_by_id_.erase(id);
  for (auto& section : sections_) {
    for (auto& other : section) std::erase(other->after, id);
  }
  index_valid_ = false;
}

void Program::EraseOps(const std::vector<OpId>& ids) {
  if (ids.empty()) return;
  const std::unordered_set<OpId> gone(ids.begin(), ids.end());
  for (OpId id : gone) op(id);  // must exist
  for (auto& section : sections_) {
    std::erase_if(section,
                  [&](const auto& op) { return gone.count(op->id) > 0; });
    for (auto& op : section) {
      std::erase_if(op->after, [&](OpId id) { return gone.count(id) > 0; });
    }
  }
  for (OpId id : gone) op_by_id_.erase(id);
  index_valid_ = false;
}

void Program::Reorder(Section section, const std::vector<OpId>& order) {
  auto& list = sections_[static_cast<size_t>(section)];
  std::unordered_map<OpId, size_t> positions;
  for (size_t i = 0; i < list.size(); ++i) positions[list[i]->id] = i;
  PLO_ENFORCE(order.size() == list.size(), kInvalidArgument, "order has ",
              order.size(), " ops, section ", Name(section), " has ",
              list.size());
  std::vector<size_t> from;
  for (OpId id : order) {
    const auto it = positions.find(id);
    PLO_ENFORCE(it != positions.end(), kInvalidArgument, "op #", id,
                " stands twice in the new order of section ", Name(section),
                " or is not in it");
    from.push_back(it->second);
    positions.erase(it);
  }
  std::vector<std::unique_ptr<Op>> reordered;
  reordered.reserve(list.size());
  for (size_t i : from) {
    op_by_id_[list[i]->id].near = reordered.size();
    reordered.push_back(std::move(list[i]));
  }
  list = std::move(reordered);
  index_valid_ = false;
}

void Program::MoveBefore(OpId id, OpId position) {
  if (id == position) return;
  PLO_ENFORCE(op(id).section == op(position).section, kInvalidArgument,
              Describe(op(id)), " cannot move to another section");
  auto& list = sections_[static_cast<size_t>(op(id).section)];
  const size_t from = IndexOf(id);
  const size_t to = IndexOf(position);
  if (from < to) {
    std::rotate(list.begin() + from, list.begin() + from + 1,
                list.begin() + to);
  } else {
    std::rotate(list.begin() + to, list.begin() + from,
                list.begin() + from + 1);
  }
  index_valid_ = false;
}

const Op& Program::op(OpId id) const {
  const auto it = op_by_id_.find(id);
  PLO_ENFORCE(it != op_by_id_.end(), kNotFound, "no op with id ", id);
  return *it->second.op;
}

Op& Program::mutable_op(OpId id) {
  return const_cast<Op&>(std::as_const(*this).op(id));
}

// Edits move an op by as many places as they touch, which are few: the search
// goes both ways from where the op was placed.
size_t Program::IndexOf(OpId id) const {
  const auto& list = ops(op(id).section);
  const PlacedOp& placed = op_by_id_.at(id);
  size_t up = std::min(placed.near, list.size());
  size_t down = up;
  while (up < list.size() || down > 0) {
    if (up < list.size()) {
      if (list[up].get() == placed.op) return up;
      ++up;
    }
    if (down > 0 && list[--down].get() == placed.op) return down;
  }
  PLO_THROW(kInternal, "op ", id, " is not in its section");
}

// --- Program: def-use ---

void Program::BuildIndex() const {
  if (index_valid_) return;
  writers_.assign(vars_.size(), {});
  readers_.assign(vars_.size(), {});
  const auto add = [](std::vector<OpId>& list, OpId id) {
    if (list.empty() || list.back() != id) list.push_back(id);
  };
  for (const auto& section : sections_) {
    for (const auto& op : section) {
      for (const Slot& slot : op->inputs) {
        for (VarId v : slot.vars) add(readers_[v], op->id);
      }
      for (const Slot& slot : op->outputs) {
        for (VarId v : slot.vars) add(writers_[v], op->id);
      }
    }
  }
  index_valid_ = true;
}

const std::vector<OpId>& Program::Writers(VarId id) const {
  var(id);
  BuildIndex();
  return writers_[id];
}

const std::vector<OpId>& Program::Readers(VarId id) const {
  var(id);
  BuildIndex();
  return readers_[id];
}

void Program::ReplaceInput(OpId id, VarId from, VarId to) {
  for (Slot& slot : mutable_op(id).inputs) {
    std::replace(slot.vars.begin(), slot.vars.end(), from, to);
  }
  index_valid_ = false;
}

}  // namespace plo
