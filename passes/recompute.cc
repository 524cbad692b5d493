// recompute(policy=none|cheap|selective|full, regions=a+b): runs forward ops
// again in backward instead of keeping what they wrote.
//
// Before                               After
//   layer_norm(x) -> n, mean, rstd       layer_norm(x) -> n, mean, rstd
//   matmul(n, w) -> y                    matmul(n, w) -> y
//   ...                                  ...
//   matmul(n, y@grad) -> w@grad          layer_norm(x) -> n@recompute, ...
//                                        matmul(n@recompute, y@grad) -> w@grad
//
// A clone stands in front of the first backward op that reads it, so that it
// lives no longer than needed; ops that need each other are cloned together
// and each op once. Clones have role backward, the attributes and random_id of
// their original (dropout draws the same numbers), and outputs in the relation
// recompute_of. All backward readers of a cloned output read the clone.
//
// Which ops are cloned, if backward reads an output of theirs:
//   cheap      Ops with OpSchema::cheap whose inputs backward reads anyway (or
//              persist, or are cloned), or are smaller than what is saved. An
//              op of which backward reads only small outputs (the statistics
//              of a norm) keeps them.
//   selective  The same, and every op of the regions listed, by whole path
//              components: core_attn, layer3/core_attn. Default: core_attn.
//   full       The same, and every op of the blocks. A block is a top-level
//              region whose name ends in a digit (layer0, layer1, ...). What
//              another block reads is kept: the inputs of the blocks.
// Ops with effects beyond their temps (collectives, states, first_micro_only)
// are never cloned. Views of cloned vars are cloned with them.
//
// Needs: append_backward. A GPT block in 16 bit under `cheap` keeps 20 bytes
// per token and hidden unit: the block's input, qkv (3), the attention's
// output, the input of the second norm and the wide activation (4).
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "framework/ir/op_registry.h"
#include "passes/passes.h"

namespace plo {
namespace {

enum class Policy { kNone, kCheap, kSelective, kFull };

std::string_view TopLevel(std::string_view region) {
  return region.substr(0, region.find('/'));
}

// The block a region belongs to, or an empty name.
std::string_view BlockOf(std::string_view region) {
  const std::string_view top = TopLevel(region);
  const bool numbered = !top.empty() && top.back() >= '0' && top.back() <= '9';
  return numbered ? top : std::string_view();
}

// True if the components of `wanted` stand side by side in `region`.
bool InRegion(const std::string& region, const std::string& wanted) {
  return ("/" + region + "/").find("/" + wanted + "/") != std::string::npos;
}

class Recomputer {
 public:
  Recomputer(Program& program, Policy policy,
             const std::vector<std::string>& regions)
      : program_(program), policy_(policy), regions_(regions) {}

  bool Run() {
    Collect();
    for (const auto& op : program_.ops(Section::kMicro)) {
      if (op->role == Role::kForward) Classify(*op);
    }
    if (std::none_of(ops_.begin(), ops_.end(),
                     [](const auto& entry) { return entry.second.selected; })) {
      return false;
    }
    Rewrite();
    return true;
  }

 private:
  // What is known of a forward op.
  struct OpFacts {
    bool can_clone = false;  // its inputs are at hand in backward
    bool selected = false;   // backward reads the clone's outputs
  };

  VarId Storage(VarId id) const { return program_.StorageOf(id); }
  bool IsTemp(VarId id) const {
    return program_.var(Storage(id)).kind == VarKind::kTemp;
  }

  void Collect() {
    std::unordered_map<VarId, std::string_view> written_in;
    for (const auto& op : program_.ops(Section::kMicro)) {
      if (op->role == Role::kForward) {
        const std::string_view block = BlockOf(op->region);
        for (const Slot& slot : op->inputs) {
          for (VarId id : slot.vars) {
            const auto it = written_in.find(Storage(id));
            if (it != written_in.end() && it->second != block) {
              leaves_block_.insert(Storage(id));
            }
          }
        }
        for (const Slot& slot : op->outputs) {
          for (VarId id : slot.vars) {
            producer_[id] = op.get();
            written_in.emplace(Storage(id), block);
            if (program_.Writers(id).size() > 1) rewritten_.insert(id);
          }
        }
      } else {
        for (const Slot& slot : op->inputs) {
          for (VarId id : slot.vars) {
            read_vars_.insert(id);
            read_storages_.insert(Storage(id));
          }
        }
      }
    }
  }

  bool Forced(const Op& op) const {
    if (policy_ == Policy::kSelective) {
      return std::any_of(regions_.begin(), regions_.end(),
                         [&](const std::string& wanted) {
                           return InRegion(op.region, wanted);
                         });
    }
    return policy_ == Policy::kFull && !BlockOf(op.region).empty();
  }

  // Running it again changes nothing but its own outputs.
  bool IsPure(const Op& op, const OpSchema& schema) const {
    if (schema.side_effect || schema.collective || op.first_micro_only ||
        op.stream != StreamKind::kCompute) {
      return false;
    }
    for (const Slot& slot : op.outputs) {
      for (VarId id : slot.vars) {
        if (!IsTemp(id) || rewritten_.count(id) > 0) return false;
        // A part of a storage that other ops fill too.
        if (program_.var(id).is_view() && !IsView(op, schema)) return false;
        if (policy_ == Policy::kFull && Forced(op) &&
            leaves_block_.count(Storage(id)) > 0) {
          return false;
        }
        if (id == program_.loss) return false;
      }
    }
    return true;
  }

  // True if all that the op writes are views of what it reads.
  bool IsView(const Op& op, const OpSchema& schema) const {
    for (const Slot& slot : op.outputs) {
      const bool alias = std::any_of(
          schema.aliases.begin(), schema.aliases.end(),
          [&](const auto& pair) { return pair.first == slot.name; });
      for (VarId id : slot.vars) {
        if (!alias || !program_.var(id).is_view()) return false;
      }
    }
    return true;
  }

  // Backward gets this input from a clone, or could.
  bool FromClone(VarId id) const {
    const auto it = producer_.find(id);
    if (it == producer_.end()) return false;
    const auto facts = ops_.find(it->second->id);
    return facts != ops_.end() && facts->second.can_clone;
  }

  void Classify(const Op& op) {
    const OpSchema& schema = OpRegistry::Global().Get(op.type);
    const bool forced = Forced(op);
    const bool view = IsView(op, schema);
    if (!(schema.cheap || forced || view) || !IsPure(op, schema)) return;
    int64_t saved = 0, written = 0;
    bool read = false;
    for (const Slot& slot : op.outputs) {
      for (VarId id : slot.vars) {
        written += program_.var(id).bytes();
        if (read_storages_.count(Storage(id)) == 0) continue;
        saved += program_.var(id).bytes();
        // The storage may be read through a view of it.
        read |= !view || read_vars_.count(id) > 0;
      }
    }
    bool all_cloned = true;
    int64_t newly_kept = 0;
    for (const Slot& slot : op.inputs) {
      for (VarId id : slot.vars) {
        if (FromClone(id)) continue;
        all_cloned = false;
        if (IsTemp(id) && read_storages_.count(Storage(id)) == 0) {
          newly_kept += program_.var(id).bytes();
        }
      }
    }
    OpFacts& facts = ops_[op.id];
    if (view && !forced) {
      // A view of a kept var costs nothing.
      facts.can_clone = all_cloned && !op.inputs.empty();
      facts.selected = facts.can_clone && read;
      return;
    }
    facts.can_clone = forced || newly_kept == 0 || newly_kept < saved;
    facts.selected =
        facts.can_clone && read && (forced || 4 * saved >= written);
  }

  // True if backward shall read a clone of `id`.
  bool UseClone(VarId id) const {
    const auto it = producer_.find(id);
    if (it == producer_.end()) return false;
    const auto facts = ops_.find(it->second->id);
    if (facts == ops_.end() || !facts->second.can_clone) return false;
    return facts->second.selected || read_storages_.count(Storage(id)) == 0;
  }

  void Rewrite() {
    // Ops by pointer: appending moves the list, not the ops.
    std::vector<Op*> original;
    for (const auto& op : program_.ops(Section::kMicro)) {
      original.push_back(op.get());
    }
    for (Op* op : original) {
      if (op->role == Role::kBackward) {
        for (Slot& slot : op->inputs) {
          for (VarId& id : slot.vars) {
            if (UseClone(id)) id = CloneOf(id);
          }
        }
      }
      order_.push_back(op->id);
    }
    program_.Reorder(Section::kMicro, order_);
  }

  // The clone of a var; clones its producer, and what that needs, now.
  VarId CloneOf(VarId id) {
    const auto known = clones_.find(id);
    if (known != clones_.end()) return known->second;
    const Op& op = *producer_.at(id);
    OpSpec spec;
    spec.type = op.type;
    spec.inputs = op.inputs;
    spec.outputs = op.outputs;
    spec.attrs = op.attrs;
    spec.role = Role::kBackward;
    spec.region = op.region;
    spec.location = op.location;
    spec.random_id = op.random_id;
    for (Slot& slot : spec.inputs) {
      for (VarId& in : slot.vars) {
        if (UseClone(in)) in = CloneOf(in);
      }
    }
    for (Slot& slot : spec.outputs) {
      for (VarId& out : slot.vars) {
        Var var = program_.var(out);
        var.id = kNoId;
        var.name = program_.UniqueName(var.name + "@recompute");
        var.relation = Relation::kRecomputeOf;
        var.related_to = out;
        if (var.is_view()) {
          const auto base = clones_.find(var.view_of);
          PLO_ENFORCE(base != clones_.end(), kInternal, Describe(op), ": '",
                      program_.var(out).name, "' is a view of '",
                      program_.var(var.view_of).name,
                      "', which is not recomputed");
          var.view_of = base->second;
        }
        const VarId clone = program_.AddVar(std::move(var));
        clones_[out] = clone;
        out = clone;
      }
    }
    order_.push_back(program_.Append(Section::kMicro, std::move(spec)).id);
    return clones_.at(id);
  }

  Program& program_;
  const Policy policy_;
  const std::vector<std::string>& regions_;
  std::unordered_map<VarId, const Op*> producer_;        // forward ops
  std::unordered_set<VarId> rewritten_;                  // several writers
  std::unordered_set<VarId> read_vars_, read_storages_;  // by backward ops
  std::unordered_set<VarId> leaves_block_;               // storages
  std::unordered_map<OpId, OpFacts> ops_;
  std::unordered_map<VarId, VarId> clones_;
  std::vector<OpId> order_;
};

class Recompute : public Pass {
 public:
  Recompute(Policy policy, std::vector<std::string> regions)
      : policy_(policy), regions_(std::move(regions)) {}
  std::string_view name() const override { return "recompute"; }

  bool Run(Program& program) override {
    if (policy_ == Policy::kNone) return false;
    bool has_backward = false;
    for (const auto& op : program.ops(Section::kMicro)) {
      has_backward |= op->role == Role::kBackward;
    }
    PLO_ENFORCE(has_backward, kFailedPrecondition,
                "recompute comes after append_backward");
    for (const std::string& wanted : regions_) CheckRegion(program, wanted);
    Program result = program.Clone();
    if (!Recomputer(result, policy_, regions_).Run()) return false;
    program = std::move(result);
    return true;
  }

 private:
  static void CheckRegion(const Program& program, const std::string& wanted) {
    for (const auto& op : program.ops(Section::kMicro)) {
      if (InRegion(op->region, wanted)) return;
    }
    PLO_THROW(kInvalidArgument, "recompute: no op is in region '", wanted, "'");
  }

  Policy policy_;
  std::vector<std::string> regions_;
};

Policy ParsePolicy(const std::string& text) {
  if (text == "none") return Policy::kNone;
  if (text == "cheap") return Policy::kCheap;
  if (text == "selective") return Policy::kSelective;
  if (text == "full") return Policy::kFull;
  PLO_THROW(kInvalidArgument,
            "recompute: policy must be none, cheap, "
            "selective or full, got '",
            text, "'");
}

}  // namespace

std::unique_ptr<Pass> MakeRecompute(PassOptions& options) {
  const Policy policy = ParsePolicy(options.String("policy", "cheap"));
  std::vector<std::string> regions = options.List("regions");
  PLO_ENFORCE(regions.empty() || policy == Policy::kSelective, kInvalidArgument,
              "recompute: regions go with policy=selective only");
  if (regions.empty() && policy == Policy::kSelective) regions = {"core_attn"};
  return std::make_unique<Recompute>(policy, std::move(regions));
}

}  // namespace plo
