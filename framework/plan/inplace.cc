#include <string_view>

#include "framework/plan/operands.h"

namespace plo::planning {
namespace {

// What decides whether a storage may be taken over.
struct Use {
  LaunchIndex first = -1;
  LaunchIndex last = -1;
  bool first_reads = false;  // the first launch reads it: the value came before
  bool compute_only = true;
  bool every_micro = true;  // no first_micro_only launch touches it
  bool fixed = false;       // feed, fetch, other section
};

class Merger {
 public:
  Merger(const Program& program, const OpRegistry& registry, int graph_index,
         Plan& plan)
      : program_(program),
        registry_(registry),
        graph_index_(graph_index),
        plan_(plan),
        graph_(plan.graphs[graph_index]) {}

  void Run() {
    Collect();
    taken_by_.assign(plan_.storages.size(), -1);
    given_.assign(plan_.storages.size(), false);
    for (size_t i = 0; i < graph_.launches.size(); ++i) {
      const Launch& launch = graph_.launches[i];
      if (launch.kind != LaunchKind::kOp || launch.first_micro_only ||
          launch.stream != StreamKind::kCompute) {
        continue;
      }
      const Op& op = program_.op(launch.op);
      for (const auto& [out_slot, in_slot] : registry_.Get(op.type).inplace) {
        TryMerge(static_cast<LaunchIndex>(i), op, out_slot, in_slot);
      }
    }
    for (Launch& launch : graph_.launches) {
      for (Operand& operand : launch.operands) {
        operand.storage = Root(operand.storage);
      }
    }
  }

 private:
  void Collect() {
    uses_.assign(plan_.storages.size(), {});
    for (size_t i = 0; i < graph_.launches.size(); ++i) {
      const Launch& launch = graph_.launches[i];
      for (const Operand& operand : launch.operands) {
        Use& use = uses_[operand.storage];
        if (use.first < 0) use.first = static_cast<LaunchIndex>(i);
        if (use.first == static_cast<LaunchIndex>(i)) {
          use.first_reads |= operand.read;
        }
        use.last = static_cast<LaunchIndex>(i);
        use.compute_only &= launch.stream == StreamKind::kCompute;
        use.every_micro &= !launch.first_micro_only;
        use.fixed |= launch.kind != LaunchKind::kOp;
      }
    }
  }

  StorageIndex Root(StorageIndex storage) const {
    while (taken_by_[storage] >= 0) storage = taken_by_[storage];
    return storage;
  }

  bool Eligible(const Storage& storage, const Use& use) const {
    return !storage.persistent && storage.graph == graph_index_ &&
           storage.bytes > 0 && use.every_micro && !use.first_reads &&
           (use.first < graph_.micro_count) == (use.last < graph_.micro_count);
  }

  // The only operand of the launch that touches the storage of `var`, or null.
  const Operand* SoleOperand(const Launch& launch, VarId var) const {
    const Operand* found = nullptr;
    for (const Operand& operand : launch.operands) {
      if (operand.var == var) found = &operand;
    }
    if (found == nullptr) return nullptr;
    int touching = 0;
    for (const Operand& operand : launch.operands) {
      touching += operand.storage == found->storage;
    }
    return touching == 1 ? found : nullptr;
  }

  void TryMerge(LaunchIndex index, const Op& op, std::string_view out_slot,
                std::string_view in_slot) {
    const VarId out = op.Out1(out_slot);
    const VarId in = op.In1(in_slot);
    if (out == kNoId || in == kNoId || program_.var(out).is_view()) return;
    const Launch& launch = graph_.launches[index];
    const Operand* to = SoleOperand(launch, out);
    const Operand* from = SoleOperand(launch, in);
    if (to == nullptr || from == nullptr) return;
    const Storage& target = plan_.storages[to->storage];
    const Storage& source = plan_.storages[from->storage];
    const Use& target_use = uses_[to->storage];
    const Use& source_use = uses_[from->storage];
    // The operand covers the storage: a view of the whole is as good.
    const bool whole = from->offset == 0 && from->rank_stride == 0 &&
                       from->bytes == source.bytes && to->bytes == source.bytes;
    if (!whole || !Eligible(target, target_use) ||
        !Eligible(source, source_use) || source_use.fixed ||
        !source_use.compute_only || source_use.last != index ||
        target_use.first != index || taken_by_[to->storage] >= 0 ||
        given_[from->storage] || target.bytes != source.bytes ||
        target.place != source.place || target.category != source.category) {
      return;
    }
    taken_by_[to->storage] = from->storage;
    given_[from->storage] = true;
  }

  const Program& program_;
  const OpRegistry& registry_;
  const int graph_index_;
  Plan& plan_;
  GraphPlan& graph_;
  std::vector<Use> uses_;
  std::vector<StorageIndex> taken_by_;  // the storage whose bytes it has now
  std::vector<bool> given_;             // its bytes went to an output
};

void RemoveUnused(Plan& plan) {
  std::vector<bool> used(plan.storages.size(), false);
  const auto each_operand = [&plan](auto&& visit) {
    for (GraphPlan& graph : plan.graphs) {
      for (auto* launches : {&graph.startup, &graph.launches}) {
        for (Launch& launch : *launches) {
          for (Operand& operand : launch.operands) visit(operand);
        }
      }
    }
  };
  each_operand([&](const Operand& operand) { used[operand.storage] = true; });
  std::vector<StorageIndex> renumbered(plan.storages.size(), -1);
  size_t kept = 0;
  for (size_t i = 0; i < plan.storages.size(); ++i) {
    if (!used[i] && !plan.storages[i].persistent) continue;
    renumbered[i] = static_cast<StorageIndex>(kept);
    if (kept != i) plan.storages[kept] = std::move(plan.storages[i]);
    ++kept;
  }
  plan.storages.resize(kept);
  each_operand(
      [&](Operand& operand) { operand.storage = renumbered[operand.storage]; });
}

}  // namespace

void MergeInPlace(const std::vector<const Program*>& programs,
                  const OpRegistry& registry, Plan& plan) {
  for (size_t g = 0; g < plan.graphs.size(); ++g) {
    Merger(*programs[g], registry, static_cast<int>(g), plan).Run();
  }
  RemoveUnused(plan);
}

}  // namespace plo::planning
