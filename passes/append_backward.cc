// append_backward: appends the gradient of program.loss to micro.
//
// Before                            After, appended to micro (role backward)
//   matmul(x, w1) -> h                loss_seed(count) -> loss@grad
//   matmul(h, w2) -> y                ..._grad(..., loss@grad) -> y@grad
//   ...(y) -> loss                    matmul(h, y@grad) -> w2@grad
//                                     matmul(y@grad, w2) -> h@grad
//                                     matmul(x, h@grad) -> w1@grad
//
// Ops are visited from the last to the first; each schema's gradient maker says
// what to emit. Only vars from which a trainable param is reached have grads.
// The grad of `v` is named v@grad and stands in the relation grad_of.
//
// A var that several ops read gets several contributions, added in the order
// in which they appear:
//   activation:  part0, part1, then add(part0, part1) -> x@grad
//   param:       the first contribution writes w@grad; the next ones update it
//                in place, through the op's own `acc` operand where its schema
//                has one, else by a temp and add(w@grad, part) -> w@grad
// reshape and reduce_to_shape to the shape the operand has already are the
// identity: the grad of a sum is then used as it is, no bytes are copied.
// A trainable param that the loss does not depend on gets a grad of zeros.
//
// Needs: loss and loss_count, and a program without backward ops.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "framework/ir/op_registry.h"
#include "passes/passes.h"

namespace plo {
namespace {

class Backward : public GradContext {
 public:
  explicit Backward(Program& program)
      : program_(program), registry_(OpRegistry::Global()) {}

  void Run() {
    FindVarsThatNeedGrad();
    Seed();
    const size_t forward_count = program_.ops(Section::kMicro).size() - 1;
    for (size_t i = forward_count; i-- > 0;) {
      op_ = program_.ops(Section::kMicro)[i].get();
      Visit();
    }
    op_ = nullptr;
    for (VarId param : program_.Params()) {
      if (needs_grad_.count(param) > 0 && grads_.count(param) == 0) {
        FillZero(param);
      }
    }
    program_.EraseVars(discarded_);
  }

  // --- GradContext ---

  const Program& program() const override { return program_; }
  const Op& op() const override { return *op_; }

  VarId OutGrad(std::string_view slot, int i) const override {
    const auto& vars = op_->Out(slot);
    if (i >= static_cast<int>(vars.size())) return kNoId;
    return GradOf(vars[i]);
  }

  bool NeedsGrad(std::string_view slot, int i) const override {
    const auto& vars = op_->In(slot);
    return i < static_cast<int>(vars.size()) && needs_grad_.count(vars[i]) > 0;
  }

  VarId InGrad(std::string_view slot, int i) override {
    const auto& vars = op_->In(slot);
    PLO_ENFORCE(i < static_cast<int>(vars.size()), kInternal, Describe(*op_),
                ": gradient of the absent operand ", slot, "[", i, "]");
    const VarId of = vars[i];
    PLO_ENFORCE(needs_grad_.count(of) > 0, kInternal, Describe(*op_),
                ": gradient of '", program_.var(of).name,
                "', which needs none");
    const Var& var = program_.var(of);
    const int part = parts_[of]++;
    std::string name = var.name + "@grad";
    if (part > 0) name += StrCat("@part", part);
    const VarId grad = AddTemp(var.dtype, var.shape, name, var.region);
    if (program_.var(of).kind == VarKind::kParam) {
      program_.mutable_var(grad).category = MemoryCategory::kGrads;
    }
    contribution_to_[grad] = of;
    return grad;
  }

  VarId Temp(DType dtype, Shape shape, std::string_view stem) override {
    return AddTemp(dtype, std::move(shape),
                   StrCat(op_->region, op_->region.empty() ? "" : "/", stem),
                   op_->region);
  }

  void Emit(std::string type, std::vector<Slot> inputs,
            std::vector<Slot> outputs, AttrMap attrs) override {
    if (IsIdentity(type, inputs, outputs)) {
      const VarId grad = outputs[0].vars[0];
      const VarId of = contribution_to_[grad];
      Discard(grad);
      AddContribution(of, inputs[0].vars[0]);
      return;
    }
    const OpSchema& schema = registry_.Get(type);
    OpSpec spec;
    spec.type = std::move(type);
    spec.inputs = std::move(inputs);
    spec.outputs = std::move(outputs);
    spec.attrs = std::move(attrs);
    spec.role = Role::kBackward;
    if (op_ != nullptr) {
      spec.region = op_->region;
      spec.location = op_->location;
      spec.random_id = op_->random_id;
    }
    std::erase_if(spec.inputs, IsEmptySlot);
    std::erase_if(spec.outputs, IsEmptySlot);
    AccumulateInPlace(schema, spec);
    std::vector<VarId> written;
    for (const Slot& slot : spec.outputs) {
      written.insert(written.end(), slot.vars.begin(), slot.vars.end());
    }
    Op& added = program_.Append(Section::kMicro, std::move(spec));
    ShareBytes(schema, added);
    for (VarId var : written) {
      const auto it = contribution_to_.find(var);
      if (it == contribution_to_.end()) continue;
      const VarId of = it->second;
      contribution_to_.erase(it);
      AddContribution(of, var);
    }
  }

 private:
  static bool IsEmptySlot(const Slot& slot) {
    return slot.vars.empty() || (slot.vars.size() == 1 && slot.vars[0] < 0);
  }

  VarId GradOf(VarId var) const {
    const auto it = grads_.find(var);
    return it == grads_.end() ? kNoId : it->second;
  }

  // Erased at the end: erasing looks at the whole program.
  void Discard(VarId contribution) {
    contribution_to_.erase(contribution);
    program_.RenameVar(contribution, StrCat("discarded@", contribution));
    discarded_.push_back(contribution);
  }

  VarId AddTemp(DType dtype, Shape shape, const std::string& stem,
                const std::string& region) {
    Var var;
    var.name = program_.UniqueName(stem);
    var.dtype = dtype;
    var.shape = std::move(shape);
    var.region = region;
    return program_.AddVar(std::move(var));
  }

  void FindVarsThatNeedGrad() {
    for (VarId id : program_.Params()) {
      const Var& var = program_.var(id);
      if (var.param.trainable && IsFloat(var.dtype)) needs_grad_.insert(id);
    }
    for (const auto& op : program_.ops(Section::kMicro)) {
      const bool needs = std::any_of(
          op->inputs.begin(), op->inputs.end(), [&](const Slot& slot) {
            return std::any_of(
                slot.vars.begin(), slot.vars.end(),
                [&](VarId id) { return needs_grad_.count(id) > 0; });
          });
      if (!needs) continue;
      for (const Slot& slot : op->outputs) {
        for (VarId id : slot.vars) {
          const Var& var = program_.var(id);
          if (var.kind == VarKind::kTemp && IsFloat(var.dtype)) {
            needs_grad_.insert(id);
          }
        }
      }
    }
  }

  void Seed() {
    const Var loss = program_.var(program_.loss);
    const VarId seed =
        AddTemp(loss.dtype, loss.shape, loss.name + "@grad", loss.region);
    grads_[program_.loss] = seed;
    Relate(seed, program_.loss);
    OpSpec spec;
    spec.type = "loss_seed";
    spec.inputs = {{"count", {program_.loss_count}}};
    spec.outputs = {{"seed", {seed}}};
    spec.role = Role::kBackward;
    spec.region = loss.region;
    program_.Append(Section::kMicro, std::move(spec));
  }

  void Visit() {
    bool reached = false;
    for (const Slot& slot : op_->outputs) {
      for (VarId id : slot.vars) reached |= grads_.count(id) > 0;
    }
    bool wanted = false;
    for (const Slot& slot : op_->inputs) {
      for (VarId id : slot.vars) wanted |= needs_grad_.count(id) > 0;
    }
    if (!reached || !wanted) return;
    const OpSchema& schema = registry_.Get(op_->type);
    PLO_ENFORCE(schema.grad != nullptr, kInvalidArgument, Describe(*op_),
                " has no gradient, but the loss reaches a trainable param "
                "through it");
    schema.grad(*this);
    PLO_ENFORCE(contribution_to_.empty(), kInternal, "the gradient of ",
                Describe(*op_), " asks for '",
                program_.var(contribution_to_.begin()->first).name,
                "' and does not write it");
  }

  bool IsIdentity(const std::string& type, const std::vector<Slot>& inputs,
                  const std::vector<Slot>& outputs) const {
    if (type != "reshape" && type != "reduce_to_shape") return false;
    const auto of = contribution_to_.find(outputs[0].vars[0]);
    if (of == contribution_to_.end()) return false;
    const Var& in = program_.var(inputs[0].vars[0]);
    // A param's grad must be a var of its own.
    return in.shape == program_.var(outputs[0].vars[0]).shape &&
           program_.var(of->second).kind != VarKind::kParam;
  }

  // Turns a further contribution to a param into an update of its grad, where
  // the op can do that.
  void AccumulateInPlace(const OpSchema& schema, OpSpec& spec) {
    for (const auto& [out_slot, in_slot] : schema.aliases) {
      if (in_slot != "acc") continue;
      for (Slot& slot : spec.outputs) {
        if (slot.name != out_slot) continue;
        const auto it = contribution_to_.find(slot.vars[0]);
        if (it == contribution_to_.end()) continue;
        const VarId of = it->second;
        if (program_.var(of).kind != VarKind::kParam || GradOf(of) == kNoId) {
          continue;
        }
        const VarId unused = slot.vars[0];
        slot.vars[0] = GradOf(of);
        spec.inputs.push_back({"acc", {GradOf(of)}});
        spec.attrs.Set("accumulate", Attr(true));
        Discard(unused);
      }
    }
  }

  // Makes outputs that the schema wants to be views of an input just that.
  void ShareBytes(const OpSchema& schema, const Op& op) {
    for (const auto& [out_slot, in_slot] : schema.aliases) {
      const VarId out = op.Out1(out_slot);
      const VarId in = op.In1(in_slot);
      if (out == kNoId || in == kNoId || out == in) continue;
      Var& var = program_.mutable_var(out);
      if (!var.is_view()) var.view_of = in;
    }
  }

  void Relate(VarId grad, VarId of) {
    Var& var = program_.mutable_var(grad);
    var.relation = Relation::kGradOf;
    var.related_to = of;
  }

  void AddContribution(VarId of, VarId part) {
    const bool is_param = program_.var(of).kind == VarKind::kParam;
    if (is_param && program_.var(part).is_view()) part = Copy(of, part);
    const VarId old = GradOf(of);
    if (old == kNoId) {
      grads_[of] = part;
      // A grad that is passed on unchanged stays the grad of the sum.
      if (program_.var(part).relation == Relation::kNone) Relate(part, of);
      return;
    }
    const VarId sum = is_param ? old : NewSum(of, old);
    OpSpec spec;
    spec.type = "add";
    spec.inputs = {{"x", {old}}, {"y", {part}}};
    spec.outputs = {{"out", {sum}}};
    spec.role = Role::kBackward;
    spec.region = op_->region;
    spec.location = op_->location;
    program_.Append(Section::kMicro, std::move(spec));
    grads_[of] = sum;
  }

  // The var of the sum of `old` and one more contribution takes over the name.
  VarId NewSum(VarId of, VarId old) {
    const Var& var = program_.var(of);
    Var& old_var = program_.mutable_var(old);
    const std::string grad_name = var.name + "@grad";
    if (old_var.relation == Relation::kGradOf && old_var.related_to == of) {
      old_var.relation = Relation::kNone;
      old_var.related_to = kNoId;
    }
    if (old_var.name == grad_name) {
      program_.RenameVar(old, program_.UniqueName(grad_name + "@part0"));
    }
    const VarId sum = AddTemp(var.dtype, var.shape, grad_name, var.region);
    Relate(sum, of);
    return sum;
  }

  // A param's grad becomes a part of a bucket later, so it cannot be a view of
  // something else.
  VarId Copy(VarId of, VarId view) {
    const Var param = program_.var(of);
    const std::string name = program_.var(view).name;
    program_.RenameVar(view, program_.UniqueName(name + "@view"));
    const VarId copy = AddTemp(param.dtype, param.shape, name, param.region);
    program_.mutable_var(copy).category = MemoryCategory::kGrads;
    OpSpec spec;
    spec.type = "cast";
    spec.inputs = {{"x", {view}}};
    spec.outputs = {{"out", {copy}}};
    spec.attrs.Set("dtype", std::string(DTypeName(param.dtype)));
    spec.role = Role::kBackward;
    spec.region = op_->region;
    spec.location = op_->location;
    program_.Append(Section::kMicro, std::move(spec));
    return copy;
  }

  void FillZero(VarId param) {
    const Var& var = program_.var(param);
    const VarId grad =
        AddTemp(var.dtype, var.shape, var.name + "@grad", var.region);
    program_.mutable_var(grad).category = MemoryCategory::kGrads;
    Relate(grad, param);
    OpSpec spec;
    spec.type = "fill_constant";
    spec.outputs = {{"out", {grad}}};
    spec.attrs.Set("value", Attr(0.0));
    spec.attrs.Set("shape", Attr(program_.var(param).shape.dims()));
    spec.attrs.Set("dtype", std::string(DTypeName(program_.var(param).dtype)));
    spec.role = Role::kBackward;
    spec.region = program_.var(param).region;
    program_.Append(Section::kMicro, std::move(spec));
  }

  Program& program_;
  const OpRegistry& registry_;
  const Op* op_ = nullptr;
  std::unordered_set<VarId> needs_grad_;
  std::unordered_map<VarId, VarId> grads_;  // var -> its grad so far
  // Vars handed out by InGrad() and not written yet -> whose grad they add to.
  std::unordered_map<VarId, VarId> contribution_to_;
  std::unordered_map<VarId, int> parts_;  // var -> contributions so far
  std::vector<VarId> discarded_;
};

class AppendBackward : public Pass {
 public:
  std::string_view name() const override { return "append_backward"; }

  bool Run(Program& program) override {
    for (const auto& op : program.ops(Section::kMicro)) {
      PLO_ENFORCE(op->role != Role::kBackward, kFailedPrecondition,
                  "append_backward has already run on this program, found ",
                  Describe(*op));
    }
    PLO_ENFORCE(program.loss != kNoId && program.loss_count != kNoId,
                kFailedPrecondition,
                "append_backward needs a loss and its count; the program '",
                program.name, "' has none");
    Program result = program.Clone();
    Backward(result).Run();
    program = std::move(result);
    return true;
  }
};

}  // namespace

std::unique_ptr<Pass> MakeAppendBackward(PassOptions&) {
  return std::make_unique<AppendBackward>();
}

}  // namespace plo
