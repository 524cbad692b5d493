#include "framework/plan/operands.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "framework/ir/checked_math.h"

namespace plo::planning {
namespace {

// Of all storages together. Far above any machine, and far enough below 2^63
// that no sum over storages and no workspace computed from operands overflows.
constexpr int64_t kMostBytes = int64_t{1} << 60;

// Where the bytes of a var are: in which owner, from where.
struct Location {
  VarId owner = kNoId;
  int64_t offset = 0;
  int64_t rank_stride = 0;
};

Location Locate(const Program& program, VarId id) {
  Location at{id, 0, 0};
  for (const Var* v = &program.var(id); v->is_view();
       v = &program.var(at.owner)) {
    at.offset += v->byte_offset;
    at.rank_stride += v->rank_stride_bytes;
    at.owner = v->view_of;
  }
  return at;
}

bool IsPersistent(VarKind kind) {
  return kind == VarKind::kParam || kind == VarKind::kState;
}

// Owners whose first access in the program is not a write: their values come
// from somewhere else.
std::unordered_set<VarId> ReadFirst(const Program& program) {
  std::unordered_set<VarId> seen, read_first;
  for (Section section : {Section::kMicro, Section::kUpdate}) {
    for (const auto& op : program.ops(section)) {
      for (const Slot& slot : op->inputs) {
        for (VarId v : slot.vars) {
          const VarId owner = program.StorageOf(v);
          if (seen.insert(owner).second) read_first.insert(owner);
        }
      }
      for (const Slot& slot : op->outputs) {
        for (VarId v : slot.vars) seen.insert(program.StorageOf(v));
      }
    }
  }
  return read_first;
}

class LaunchBuilder {
 public:
  LaunchBuilder(const OpRegistry& registry, DeviceKind device, Plan& plan)
      : registry_(registry), device_(device), plan_(plan) {}

  void BuildMain(const Program& program, const std::vector<VarId>& fetches) {
    Enter(program, 0);
    for (VarId id : program.vars()) {
      const Var& var = program.var(id);
      if (!var.is_view() && IsPersistent(var.kind)) {
        storage_of_[id] = {AddVarStorage(var, /*persistent=*/true), 0, 0};
      }
    }
    main_ = &program;
    main_storages_ = storage_of_;
    BuildStartup(program);
    BuildGraph(program, fetches);
  }

  void BuildEval(const Program& program, const std::vector<VarId>& fetches) {
    Enter(program, static_cast<int>(plan_.graphs.size()));
    const std::unordered_set<VarId> read_first = ReadFirst(program);
    for (VarId id : program.vars()) {
      const Var& var = program.var(id);
      if (var.is_view()) continue;
      // A state that the program writes before it reads it is its own.
      if (var.kind == VarKind::kParam ||
          (var.kind == VarKind::kState && read_first.count(id) > 0)) {
        storage_of_[id] = SharedStorage(program, var);
      }
    }
    BuildGraph(program, fetches);
  }

 private:
  struct Home {
    StorageIndex storage = -1;
    int64_t offset = 0;
    int64_t rank_stride = 0;
  };

  void Enter(const Program& program, int graph) {
    program_ = &program;
    graph_ = graph;
    storage_of_.clear();
  }

  // The storage of the main program's persistent var of the same name.
  Home SharedStorage(const Program& program, const Var& var) const {
    const VarId there = main_->FindVar(var.name);
    PLO_ENFORCE(there != kNoId, kNotFound, "program '", program.name,
                "' shares ", Name(var.kind), " ", Describe(var),
                ", which program '", main_->name, "' does not have");
    const Location at = Locate(*main_, there);
    const auto home = main_storages_.find(at.owner);
    PLO_ENFORCE(home != main_storages_.end(), kInvalidArgument, "program '",
                program.name, "' shares ", Describe(var),
                ", which does not outlive a step in program '", main_->name,
                "'");
    PLO_ENFORCE(main_->var(there).dtype == var.dtype &&
                    main_->var(there).bytes() == var.bytes(),
                kInvalidArgument, "program '", program.name, "' shares ",
                Describe(var), ", which is ", Describe(main_->var(there)),
                " in program '", main_->name, "'");
    return {home->second.storage, at.offset, at.rank_stride};
  }

  StorageIndex AddStorage(Storage storage) {
    PLO_ENFORCE(storage.bytes <= kMostBytes - kArenaAlignment - total_bytes_,
                kInvalidArgument, "the tensors of program '", program_->name,
                "' take more than ", kMostBytes, " bytes: '", storage.name,
                "' takes ", storage.bytes, ", those before it ", total_bytes_);
    total_bytes_ += storage.bytes + kArenaAlignment;
    plan_.storages.push_back(std::move(storage));
    return static_cast<StorageIndex>(plan_.storages.size()) - 1;
  }

  StorageIndex AddVarStorage(const Var& var, bool persistent) {
    Storage storage;
    storage.name = var.name;
    storage.var = var.id;
    storage.place = var.place;
    storage.category = var.category;
    storage.bytes = var.bytes();
    storage.persistent = persistent;
    storage.graph = persistent ? 0 : graph_;
    return AddStorage(std::move(storage));
  }

  StorageIndex AddRing(const Var& var, int slots, const char* suffix) {
    Storage storage;
    storage.name = var.name + suffix;
    storage.place = Place::kPinned;
    storage.category = MemoryCategory::kCommunication;
    storage.bytes =
        CheckedMul(var.bytes(), slots, "the bytes of " + storage.name);
    storage.persistent = true;
    return AddStorage(std::move(storage));
  }

  Operand VarOperand(VarId id, bool write) {
    const Location at = Locate(*program_, id);
    auto home = storage_of_.find(at.owner);
    if (home == storage_of_.end()) {
      const StorageIndex fresh =
          AddVarStorage(program_->var(at.owner), /*persistent=*/false);
      home = storage_of_.emplace(at.owner, Home{fresh, 0, 0}).first;
    }
    Operand operand;
    operand.var = id;
    operand.storage = home->second.storage;
    operand.offset = home->second.offset + at.offset;
    operand.bytes = program_->var(id).bytes();
    operand.rank_stride = home->second.rank_stride + at.rank_stride;
    operand.read = !write;
    operand.write = write;
    return operand;
  }

  static Operand RingOperand(StorageIndex ring, int64_t bytes, bool write) {
    Operand operand;
    operand.storage = ring;
    operand.bytes = bytes;
    operand.read = !write;
    operand.write = write;
    return operand;
  }

  Launch OpLaunch(const Op& op, Section section, size_t index) {
    Launch launch;
    launch.op = op.id;
    launch.section = section;
    launch.stream = op.stream;
    launch.first_micro_only = section == Section::kMicro && op.first_micro_only;
    for (const Slot& slot : op.inputs) {
      for (VarId v : slot.vars) launch.operands.push_back(VarOperand(v, false));
    }
    for (const Slot& slot : op.outputs) {
      for (VarId v : slot.vars) launch.operands.push_back(VarOperand(v, true));
    }
    const OpSchema& schema = registry_.Get(op.type);
    launch.workspace_bytes =
        schema.WorkspaceBytes(OpView(*program_, op), device_);
    PLO_ENFORCE(launch.workspace_bytes >= 0, kInternal, Describe(op), ": ",
                launch.workspace_bytes, " bytes of workspace");
    if (launch.workspace_bytes > 0) {
      Storage storage;
      storage.name = StrCat("workspace#", index);
      storage.place =
          op.stream == StreamKind::kHost ? Place::kPinned : Place::kDevice;
      storage.bytes = launch.workspace_bytes;
      storage.graph = graph_;
      Operand operand;
      operand.storage = AddStorage(std::move(storage));
      operand.bytes = launch.workspace_bytes;
      operand.write = true;
      launch.operands.push_back(operand);
    }
    return launch;
  }

  void BuildStartup(const Program& program) {
    plan_.graphs.emplace_back();
    graph_ = kStartupGraph;
    for (const auto& op : program.ops(Section::kStartup)) {
      auto& launches = plan_.graphs[0].startup;
      launches.push_back(OpLaunch(*op, Section::kStartup, launches.size()));
    }
    // What startup writes and the step reads must be persistent: temps of the
    // two sections never share a storage.
    graph_ = 0;
    storage_of_ = main_storages_;
  }

  void BuildGraph(const Program& program, const std::vector<VarId>& fetches) {
    if (graph_ > 0) plan_.graphs.emplace_back();
    std::vector<Launch> launches;
    std::vector<VarId> feeds;
    for (VarId id : program.vars()) {
      const Var& var = program.var(id);
      if (var.kind != VarKind::kFeed || var.is_view()) continue;
      feeds.push_back(id);
      Launch launch;
      launch.kind = LaunchKind::kFeed;
      launch.var = id;
      launch.first_micro_only = true;
      launch.operands = {
          RingOperand(AddRing(var, kStepsInFlight, "@feed_ring"), var.bytes(),
                      /*write=*/false),
          VarOperand(id, /*write=*/true)};
      launches.push_back(std::move(launch));
    }
    for (const auto& op : program.ops(Section::kMicro)) {
      launches.push_back(OpLaunch(*op, Section::kMicro, launches.size()));
    }
    const auto micro_count = static_cast<int32_t>(launches.size());
    for (const auto& op : program.ops(Section::kUpdate)) {
      launches.push_back(OpLaunch(*op, Section::kUpdate, launches.size()));
    }
    for (VarId id : fetches) {
      PLO_ENFORCE(program.HasVar(id), kNotFound, "program '", program.name,
                  "' has no var with id ", id, " to fetch");
      const Var& var = program.var(id);
      Launch launch;
      launch.kind = LaunchKind::kFetch;
      launch.var = id;
      launch.section = Section::kUpdate;
      launch.operands = {
          VarOperand(id, /*write=*/false),
          RingOperand(AddRing(var, kFetchSlots, "@fetch_ring"), var.bytes(),
                      /*write=*/true)};
      launches.push_back(std::move(launch));
    }
    GraphPlan& graph = plan_.graphs.back();
    graph.name = program.name;
    graph.launches = std::move(launches);
    graph.micro_count = micro_count;
    graph.accumulate_steps = program.accumulate_steps;
    graph.feeds = std::move(feeds);
    graph.fetches = fetches;
  }

  const OpRegistry& registry_;
  const DeviceKind device_;
  Plan& plan_;
  const Program* program_ = nullptr;
  const Program* main_ = nullptr;
  int graph_ = 0;
  int64_t total_bytes_ = 0;  // of storages, with room to align each
  std::unordered_map<VarId, Home> storage_of_;  // owners of program_
  std::unordered_map<VarId, Home> main_storages_;
};

}  // namespace

ByteRange RangeOfAllRanks(const Operand& operand, int world_size) {
  const int64_t shift = operand.rank_stride * (world_size - 1);
  return {operand.offset + std::min<int64_t>(shift, 0),
          operand.offset + operand.bytes + std::max<int64_t>(shift, 0)};
}

std::vector<const Program*> GraphPrograms(const Program& program,
                                          const PlanOptions& options) {
  std::vector<const Program*> programs = {&program};
  programs.insert(programs.end(), options.eval_programs.begin(),
                  options.eval_programs.end());
  return programs;
}

void BuildLaunches(const Program& program, const PlanOptions& options,
                   const OpRegistry& registry, Plan& plan) {
  PLO_ENFORCE(options.eval_fetches.size() <= options.eval_programs.size(),
              kInvalidArgument, "fetches of ", options.eval_fetches.size(),
              " eval programs, but there are ", options.eval_programs.size());
  PLO_ENFORCE(program.accumulate_steps >= 1, kInvalidArgument, "program '",
              program.name, "' has accumulate_steps ",
              program.accumulate_steps);
  LaunchBuilder builder(registry, options.device, plan);
  builder.BuildMain(program, options.fetches);
  for (size_t i = 0; i < options.eval_programs.size(); ++i) {
    builder.BuildEval(*options.eval_programs[i], i < options.eval_fetches.size()
                                                     ? options.eval_fetches[i]
                                                     : std::vector<VarId>{});
  }
}

}  // namespace plo::planning
