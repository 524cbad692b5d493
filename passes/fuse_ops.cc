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
// Both ops have the same section, role and stream. Control edges of the pair
// and to the pair go over to the fused op, which keeps the id of the second.
//
// Comes after the passes that look for the plain forms.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "framework/ir/op_registry.h"
#include "passes/passes.h"

namespace plo {
namespace {

enum class Kind { kBias, kNorm };

struct Match {
  Kind kind;
  OpId first, second;
};

bool SameWhereabouts(const Op& a, const Op& b) {
  return a.section == b.section && a.role == b.role && a.stream == b.stream &&
         a.first_micro_only == b.first_micro_only;
}

bool IsFalse(const AttrMap& attrs, std::string_view name) {
  return !attrs.Has(name) || !attrs.GetBool(name);
}

// The matmul or add whose whole, only output is `var`, or null. Views of the
// output would be further readers.
const Op* OnlyWriter(const Program& program, VarId var, std::string_view type) {
  if (program.var(var).kind != VarKind::kTemp || program.var(var).is_view()) {
    return nullptr;
  }
  const std::vector<OpId>& writers = program.Writers(var);
  if (writers.size() != 1) return nullptr;
  const Op& op = program.op(writers[0]);
  return op.type == type && op.Out1("out") == var ? &op : nullptr;
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
        if (op->type == "add") MatchBias(*op);
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
  void MatchBias(const Op& add) {
    const VarId bias = add.In1("y");
    const VarId product = add.In1("x");
    const Op* matmul = OnlyWriter(program_, product, "matmul");
    if (matmul == nullptr || matmul->HasIn("bias") ||
        !IsFalse(matmul->attrs, "accumulate") || taken_.count(matmul->id) > 0) {
      return;
    }
    const Shape& shape = program_.var(product).shape;
    if (program_.var(product).dtype != DType::kFp32 ||
        program_.var(bias).dtype != DType::kFp32 || shape.rank() == 0 ||
        program_.var(bias).shape != Shape{shape.dim(-1)} ||
        program_.Readers(product).size() != 1 || viewed_.count(product) > 0 ||
        product == program_.loss || !SameWhereabouts(*matmul, add)) {
      return;
    }
    taken_.insert(add.id);
    matches_.push_back({Kind::kBias, matmul->id, add.id});
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
    for (std::string_view slot : {"x", "y"}) {
      const Var& term = program_.var(add->In1(slot));
      if (term.shape != program_.var(sum).shape ||
          term.dtype != program_.var(sum).dtype) {
        return;
      }
    }
    if (!StaysInOrder(*add, norm)) return;
    taken_.insert(add->id);
    matches_.push_back({Kind::kNorm, add->id, norm.id});
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
      for (const Slot& slot : between.outputs) {
        for (VarId id : slot.vars) {
          for (std::string_view term : {"x", "y"}) {
            if (program_.StorageOf(id) == program_.StorageOf(add.In1(term))) {
              return false;
            }
          }
        }
      }
    }
    return true;
  }

  void Fuse(const Match& match) {
    const Op first = program_.op(match.first);
    Op& op = program_.mutable_op(match.second);
    if (match.kind == Kind::kBias) {
      const VarId bias = op.In1("y");
      op.type = first.type;
      op.inputs = first.inputs;
      op.SetIn("bias", {bias});
      op.attrs = first.attrs;
      unused_.push_back(first.Out1("out"));
    } else {
      const VarId sum = op.In1("x");
      op.type = "add_layer_norm";
      op.inputs = {{"x", {first.In1("x")}},
                   {"residual", {first.In1("y")}},
                   {"weight", {op.In1("weight")}},
                   {"bias", {op.In1("bias")}}};
      op.outputs.insert(op.outputs.begin(), {"sum", {sum}});
    }
    for (OpId before : first.after) {
      if (std::count(op.after.begin(), op.after.end(), before) == 0) {
        op.after.push_back(before);
      }
    }
    replaced_[match.first] = match.second;
    erased_.push_back(match.first);
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
    if (!Fuser(result).Run()) return false;
    program = std::move(result);
    return true;
  }
};

}  // namespace

std::unique_ptr<Pass> MakeFuseOps(PassOptions&) {
  return std::make_unique<FuseOps>();
}

}  // namespace plo
