// See rule 4 of fuse_ops.cc.
//
// The gradient op comes later than the op whose output it takes on, so readers
// of that output in between, the gradient of a weight say, must follow it. All
// follow that the gradient op does not need, in their order: the bucket of a
// bias, which could stay, would be allocated beside that of the weight. If the
// gradient op needs the output itself, through others, the two stay apart.
#include "passes/fuse_recomputed.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace plo {
namespace {

constexpr std::array<std::string_view, 4> kTypes = {"gelu", "relu", "silu",
                                                    "tanh"};

// What some ops touch and wait for: whom they must not overtake.
class Footprint {
 public:
  explicit Footprint(const Program& program) : program_(program) {}

  void Add(const Op& op) {
    awaited_.insert(op.after.begin(), op.after.end());
    for (const Slot& slot : op.inputs) AddSlot(slot, /*write=*/false);
    for (const Slot& slot : op.outputs) AddSlot(slot, /*write=*/true);
  }

  // True if the ops need `op`, which stands before them, to stay there: one
  // waits for it, reads what it writes, or writes what it reads or writes.
  bool Needs(const Op& op) const {
    return awaited_.count(op.id) > 0 ||
           AnyConflict(op.inputs, /*write=*/false) ||
           AnyConflict(op.outputs, /*write=*/true);
  }

 private:
  struct Bytes {
    int64_t begin, end;
    bool write;
  };

  void AddSlot(const Slot& slot, bool write) {
    for (VarId id : slot.vars) {
      touched_[program_.StorageOf(id)].push_back(BytesOf(id, write));
    }
  }

  bool AnyConflict(const std::vector<Slot>& slots, bool write) const {
    for (const Slot& slot : slots) {
      for (VarId id : slot.vars) {
        const auto touched = touched_.find(program_.StorageOf(id));
        if (touched == touched_.end()) continue;
        const Bytes mine = BytesOf(id, write);
        for (const Bytes& other : touched->second) {
          if ((mine.write || other.write) && mine.begin < other.end &&
              other.begin < mine.end) {
            return true;
          }
        }
      }
    }
    return false;
  }

  // Of the storage; all of it for a view that is elsewhere on each rank.
  Bytes BytesOf(VarId id, bool write) const {
    const int64_t begin = program_.OffsetInStorage(id, 0);
    if (begin != program_.OffsetInStorage(id, 1)) {
      return {0, program_.var(program_.StorageOf(id)).bytes(), write};
    }
    return {begin, begin + program_.var(id).bytes(), write};
  }

  const Program& program_;
  std::unordered_set<OpId> awaited_;
  std::unordered_map<VarId, std::vector<Bytes>> touched_;
};

class RecomputedFuser {
 public:
  explicit RecomputedFuser(Program& program) : program_(program) {}

  bool Run() {
    Collect();
    if (pairs_.empty()) return false;
    for (const auto& op : program_.ops(Section::kMicro)) {
      positions_[op->id] = order_.size();
      order_.push_back(op->id);
    }
    for (const Pair& pair : pairs_) TryFuse(pair);
    if (gone_.empty()) return false;
    program_.Reorder(Section::kMicro, order_);
    program_.EraseOps(gone_);
    return true;
  }

 private:
  struct Pair {
    OpId again, grad;
  };

  void Collect() {
    std::unordered_set<OpId> awaited, before, taken;
    for (int s = 0; s < kSectionCount; ++s) {
      for (const auto& op : program_.ops(static_cast<Section>(s))) {
        awaited.insert(op->after.begin(), op->after.end());
      }
    }
    for (const auto& op : program_.ops(Section::kMicro)) {
      before.insert(op->id);
      if (op->role != Role::kBackward ||
          std::count(kTypes.begin(), kTypes.end(), op->type) == 0 ||
          awaited.count(op->id) > 0 || !OwnsOutput(*op) ||
          IsRecomputed(op->In1("x"))) {
        continue;
      }
      for (OpId reader : program_.Readers(op->In1("x"))) {
        const Op& grad = program_.op(reader);
        if (before.count(reader) == 0 && IsGradOf(grad, *op) &&
            taken.insert(reader).second) {
          pairs_.push_back({op->id, reader});
          break;
        }
      }
    }
  }

  // Its output is a temp that nothing else writes.
  bool OwnsOutput(const Op& op) const {
    const VarId out = op.Out1("out");
    const Var& var = program_.var(out);
    return var.kind == VarKind::kTemp && !var.is_view() &&
           out != program_.loss && program_.Writers(out).size() == 1;
  }

  // Full recompute peaks here, where a block's activations are back: a matmul
  // must not come in front of the one that waits until older buckets are free.
  bool IsRecomputed(VarId id) const {
    const Var& storage = program_.var(program_.StorageOf(id));
    return storage.relation == Relation::kRecomputeOf;
  }

  static bool IsGradOf(const Op& grad, const Op& op) {
    return grad.type == op.type + "_grad" && grad.In1("x") == op.In1("x") &&
           grad.Out1("out") == kNoId && grad.attrs == op.attrs &&
           grad.section == op.section && grad.role == op.role &&
           grad.stream == op.stream &&
           grad.first_micro_only == op.first_micro_only;
  }

  void TryFuse(const Pair& pair) {
    const Op& again = program_.op(pair.again);
    Op& grad = program_.mutable_op(pair.grad);
    const size_t begin = positions_.at(pair.again);
    const size_t end = positions_.at(pair.grad);
    Footprint needy(program_);
    needy.Add(grad);
    std::vector<OpId> staying, moving;  // the last one first
    for (size_t i = end - 1; i > begin; --i) {
      const Op& op = program_.op(order_[i]);
      const bool stays = needy.Needs(op);
      if (stays) needy.Add(op);
      (stays ? staying : moving).push_back(op.id);
    }
    if (needy.Needs(again)) return;
    grad.SetOut("out", {again.Out1("out")});
    for (OpId id : again.after) {
      if (std::count(grad.after.begin(), grad.after.end(), id) == 0) {
        grad.after.push_back(id);
      }
    }
    gone_.push_back(pair.again);
    std::vector<OpId> order = {pair.again};  // until all are erased
    order.insert(order.end(), staying.rbegin(), staying.rend());
    order.push_back(pair.grad);
    order.insert(order.end(), moving.rbegin(), moving.rend());
    for (size_t i = 0; i < order.size(); ++i) {
      order_[begin + i] = order[i];
      positions_[order[i]] = begin + i;
    }
  }

  Program& program_;
  std::vector<Pair> pairs_;  // in program order
  std::vector<OpId> order_;  // of micro, from here on
  std::unordered_map<OpId, size_t> positions_;
  std::vector<OpId> gone_;
};

}  // namespace

bool FuseRecomputed(Program& program) { return RecomputedFuser(program).Run(); }

}  // namespace plo
