// fuse_ops: joins neighbours into one op where no bit changes.
//
// 1. Bias.   matmul(x, w) -> t          =>   matmul(x, w, bias) -> y
//            add(t, b) -> y
//    b is [N], the last dimension of t; t is fp32 (in 16 bit the separate add
//    rounds the product first) and has no other reader.
//
// 2. Norm.   add(a, b) -> s             =>   add_layer_norm(a, b, weight, bias)
//            layer_norm(s, w, b) -> ...        -> sum=s, ...
//    a, b and s have one shape and type; s may have other readers, later ones.
//    The fused op stands where the norm stood: nothing reads s before.
//
// 3. Residual gradient.
//    layer_norm_grad(...) -> dx=t   =>   layer_norm_grad(..., dresidual=a)
//    add(a, t) -> s                        -> dx=s
//    t, a and s have one shape and type, t has no other reader. The fused op
//    stands where layer_norm_grad stood, so that the gradients of weight and
//    bias are not late: `a` is complete there.
//
// 4. Recomputed activation, after these (fuse_recomputed.cc).
//    gelu(x) -> g                   =>
//    matmul(g, dy) -> dw                   matmul(dy, w) -> dg
//    matmul(dy, w) -> dg                   gelu_grad(x, dg) -> dx, out=g
//    gelu_grad(x, dg) -> dx                matmul(g, dy) -> dw
//    The same for relu, silu and tanh. All are backward ops, x is kept from
//    forward, and nothing waits for the first by a control edge. Of what lies
//    between the two, all that gelu_grad does not need follows the fused op.
//    x is read once, and g may take its bytes.
//
// Both ops have the same section, role and stream. Control edges of the pair
// and to the pair go over to the fused op, which has the id of the op in whose
// place it stands (bias: of the add).
//
// Comes after the passes that look for the plain forms.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "framework/ir/op_registry.h"
#include "passes/fuse_recomputed.h"
#include "passes/passes.h"

namespace plo {
namespace {

enum class Kind { kBias, kNorm, kNormGrad };

struct Match {
  Kind kind;
  OpId gone, kept;
};

bool SameWhereabouts(const Op& a, const Op& b) {
  return a.section == b.section && a.role == b.role && a.stream == b.stream &&
         a.first_micro_only == b.first_micro_only;
}

bool IsFalse(const AttrMap& attrs, std::string_view name) {
  return !attrs.Has(name) || !attrs.GetBool(name);
}

// The op of this type that alone writes `var`, a temp, as its output `slot`, or
// null. Views of the output would be further readers.
const Op* OnlyWriter(const Program& program, VarId var, std::string_view type,
                     std::string_view slot = "out") {
  if (program.var(var).kind != VarKind::kTemp || program.var(var).is_view()) {
    return nullptr;
  }
  const std::vector<OpId>& writers = program.Writers(var);
  if (writers.size() != 1) return nullptr;
  const Op& op = program.op(writers[0]);
  return op.type == type && op.Out1(slot) == var ? &op : nullptr;
}

// Storages that some view shares.
std::unordered_set<VarId> ViewedStorages(const Program& program) {
  std::unordered_set<VarId> storages;
  for (VarId id : program.vars()) {
    if (program.var(id).is_view()) storages.insert(program.StorageOf(id));
  }
  return storages;
}

class Fuser {
 public:
  explicit Fuser(Program& program) : program_(program) {}

  bool Run() {
    viewed_ = ViewedStorages(program_);
    for (int s = 0; s < kSectionCount; ++s) {
      const auto& ops = program_.ops(static_cast<Section>(s));
      for (size_t i = 0; i < ops.size(); ++i) positions_[ops[i]->id] = i;
      for (const auto& op : ops) {
        if (op->type == "add" && !MatchBias(*op)) MatchNormGrad(*op);
        if (op->type == "layer_norm") MatchNorm(*op);
      }
    }
    if (matches_.empty()) return false;
    for (const Match& match : matches_) Fuse(match);
    MoveEdges();
    program_.EraseOps(erased_);
    EraseUnused();
    return true;
  }

 private:
  bool MatchBias(const Op& add) {
    const VarId bias = add.In1("y");
    const VarId product = add.In1("x");
    const Op* matmul = OnlyWriter(program_, product, "matmul");
    if (matmul == nullptr || matmul->HasIn("bias") ||
        !IsFalse(matmul->attrs, "accumulate") || taken_.count(matmul->id) > 0) {
      return false;
    }
    const Shape& shape = program_.var(product).shape;
    if (program_.var(product).dtype != DType::kFp32 ||
        program_.var(bias).dtype != DType::kFp32 || shape.rank() == 0 ||
        program_.var(bias).shape != Shape{shape.dim(-1)} ||
        program_.Readers(product).size() != 1 || viewed_.count(product) > 0 ||
        product == program_.loss || !SameWhereabouts(*matmul, add)) {
      return false;
    }
    taken_.insert(add.id);
    matches_.push_back({Kind::kBias, matmul->id, add.id});
    return true;
  }

  void MatchNorm(const Op& norm) {
    if (OpRegistry::Global().Find("add_layer_norm") == nullptr) return;
    if (!norm.HasIn("weight") || !norm.HasIn("bias")) return;
    const VarId sum = norm.In1("x");
    const Op* add = OnlyWriter(program_, sum, "add");
    if (add == nullptr || taken_.count(add->id) > 0 ||
        !SameWhereabouts(*add, norm) || viewed_.count(sum) > 0) {
      return;
    }
    if (!SameType(add->In1("x"), sum) || !SameType(add->In1("y"), sum)) return;
    if (!StaysInOrder(*add, norm)) return;
    taken_.insert(add->id);
    matches_.push_back({Kind::kNorm, add->id, norm.id});
  }

  void MatchNormGrad(const Op& add) {
    for (const auto& [dx, other] : {std::pair{add.In1("x"), add.In1("y")},
                                    std::pair{add.In1("y"), add.In1("x")}}) {
      const Op* grad = OnlyWriter(program_, dx, "layer_norm_grad", "dx");
      if (grad == nullptr || dx == other || dx == program_.loss ||
          grad->HasIn("dresidual") || taken_.count(grad->id) > 0 ||
          program_.Readers(dx).size() != 1 || viewed_.count(dx) > 0 ||
          !SameWhereabouts(*grad, add)) {
        continue;
      }
      const VarId sum = add.Out1("out");
      if (OnlyWriter(program_, sum, "add") != &add || !SameType(dx, other) ||
          !SameType(dx, sum) || !CanMoveUp(add, *grad, other)) {
        continue;
      }
      taken_.insert(add.id);
      taken_.insert(grad->id);
      matches_.push_back({Kind::kNormGrad, add.id, grad->id});
      return;
    }
  }

  bool SameType(VarId a, VarId b) const {
    const Var& first = program_.var(a);
    const Var& second = program_.var(b);
    return first.shape == second.shape && first.dtype == second.dtype;
  }

  // `add` can move up to `to`: nothing that it waits for, and no writer of
  // `term`, comes after it.
  bool CanMoveUp(const Op& add, const Op& to, VarId term) const {
    const auto& ops = program_.ops(add.section);
    const VarId storage = program_.StorageOf(term);
    for (size_t i = positions_.at(to.id) + 1; i < positions_.at(add.id); ++i) {
      const Op& between = *ops[i];
      if (std::count(add.after.begin(), add.after.end(), between.id) > 0 ||
          Writes(between, storage)) {
        return false;
      }
    }
    return true;
  }

  bool Writes(const Op& op, VarId storage) const {
    for (const Slot& slot : op.outputs) {
      for (VarId id : slot.vars) {
        if (program_.StorageOf(id) == storage) return true;
      }
    }
    return false;
  }

  // The add can move down to the norm: nothing before it reads the sum, waits
  // for the add, or overwrites a term.
  bool StaysInOrder(const Op& add, const Op& norm) const {
    for (OpId reader : program_.Readers(add.Out1("out"))) {
      const Op& op = program_.op(reader);
      if (op.section == norm.section &&
          positions_.at(reader) < positions_.at(norm.id)) {
        return false;
      }
    }
    const auto& ops = program_.ops(add.section);
    for (size_t i = positions_.at(add.id) + 1; i < positions_.at(norm.id);
         ++i) {
      const Op& between = *ops[i];
      if (std::count(between.after.begin(), between.after.end(), add.id) > 0) {
        return false;
      }
      for (std::string_view term : {"x", "y"}) {
        if (Writes(between, program_.StorageOf(add.In1(term)))) return false;
      }
    }
    return true;
  }

  void Fuse(const Match& match) {
    const Op gone = program_.op(match.gone);
    Op& op = program_.mutable_op(match.kept);
    switch (match.kind) {
      case Kind::kBias: {
        const VarId bias = op.In1("y");
        op.type = gone.type;
        op.inputs = gone.inputs;
        op.SetIn("bias", {bias});
        op.attrs = gone.attrs;
        unused_.push_back(gone.Out1("out"));
        break;
      }
      case Kind::kNorm: {
        const VarId sum = op.In1("x");
        op.type = "add_layer_norm";
        op.inputs = {{"x", {gone.In1("x")}},
                     {"residual", {gone.In1("y")}},
                     {"weight", {op.In1("weight")}},
                     {"bias", {op.In1("bias")}}};
        op.outputs.insert(op.outputs.begin(), {"sum", {sum}});
        break;
      }
      case Kind::kNormGrad: {
        const VarId dx = op.Out1("dx");
        const bool first = gone.In1("x") == dx;
        op.SetIn("dresidual", {gone.In1(first ? "y" : "x")});
        op.SetOut("dx", {gone.Out1("out")});
        unused_.push_back(dx);
        break;
      }
    }
    for (OpId before : gone.after) {
      if (std::count(op.after.begin(), op.after.end(), before) == 0) {
        op.after.push_back(before);
      }
    }
    replaced_[match.gone] = match.kept;
    erased_.push_back(match.gone);
  }

  void MoveEdges() {
    program_.InvalidateIndex();
    for (int s = 0; s < kSectionCount; ++s) {
      for (const auto& op : program_.ops(static_cast<Section>(s))) {
        std::vector<OpId> after;
        for (OpId id : op->after) {
          const auto it = replaced_.find(id);
          const OpId target = it == replaced_.end() ? id : it->second;
          if (target != op->id &&
              std::count(after.begin(), after.end(), target) == 0) {
            after.push_back(target);
          }
        }
        op->after = std::move(after);
      }
    }
  }

  void EraseUnused() {
    const std::unordered_set<VarId> gone(unused_.begin(), unused_.end());
    for (VarId id : program_.vars()) {
      Var& var = program_.mutable_var(id);
      if (gone.count(var.related_to) == 0) continue;
      var.relation = Relation::kNone;
      var.related_to = kNoId;
    }
    program_.EraseVars(unused_);
  }

  Program& program_;
  std::unordered_map<OpId, size_t> positions_;
  std::unordered_set<VarId> viewed_;
  std::unordered_set<OpId> taken_;  // ops that are in a match already
  std::vector<Match> matches_;
  std::unordered_map<OpId, OpId> replaced_;
  std::vector<OpId> erased_;
  std::vector<VarId> unused_;
};

class FuseOps : public Pass {
 public:
  std::string_view name() const override { return "fuse_ops"; }

  bool Run(Program& program) override {
    Program result = program.Clone();
    const bool fused = Fuser(result).Run();
    if (!FuseRecomputed(result) && !fused) return false;
    program = std::move(result);
    return true;
  }
};

}  // namespace

std::unique_ptr<Pass> MakeFuseOps(PassOptions&) {
  return std::make_unique<FuseOps>();
}

}  // namespace plo
