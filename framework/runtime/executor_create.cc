// Executor::Create: checks the plan, allocates the arenas, binds every launch
// to its kernel and addresses.
#include <algorithm>
#include <array>

#include "framework/ir/error.h"
#include "framework/ir/verifier.h"
#include "framework/runtime/executor_core.h"
#include "framework/runtime/memory_check.h"
#include "glog/logging.h"

namespace plo {
namespace {

constexpr int64_t kGuardBytes = 64 << 10;

Tensor MakeTensor(const Var& var, std::byte* data) {
  return Tensor{data, var.dtype, var.shape, var.shape.numel()};
}

}  // namespace

uint64_t BoundGraph::launches_per_step() const {
  const auto micro = static_cast<uint64_t>(plan->micro_count);
  const auto repeats = static_cast<uint64_t>(plan->accumulate_steps);
  return micro * repeats + (plan->launches.size() - micro);
}

ExecutorCore::ExecutorCore(const Program& main_program, Plan the_plan,
                           Device& the_device, Comm* the_comm,
                           const ExecutorOptions& the_options,
                           const std::vector<const Program*>& the_eval_programs)
    : program(main_program.Clone()),
      plan(std::move(the_plan)),
      device(the_device),
      comm(the_comm),
      options(the_options),
      data_step(the_options.initial_data_step) {
  streams.fill(-1);
  for (const Program* eval : the_eval_programs) {
    eval_programs.push_back(eval->Clone());
  }
  env.rank = comm != nullptr ? comm->rank() : 0;
  env.world_size = comm != nullptr ? comm->size() : 1;
  env.accumulate_steps = program.accumulate_steps;
  env.seed = program.seed;
  env.comm = comm;
  env.pool = options.host_pool;
  env.device_error = device.error_slot();
  if (env.device_error != nullptr) *env.device_error = {};
  CheckPlan();
  CheckRanks();
  try {
    if (options.check_races) CheckRaces(plan, program, env.rank);
    AllocateArenas();
    for (size_t i = 0; i < plan.graphs.size(); ++i) {
      BindGraph(i == 0 ? program : eval_programs[i - 1], plan.graphs[i]);
    }
    if (options.verify_writes || options.poison_freed) {
      check_ = std::make_unique<MemoryCheck>(*this);
    }
    for (const auto& graph : graphs) MakeSegments(*graph);
  } catch (const std::exception& error) {
    FreeArenas();
    // The other ranks may have passed and wait for this one's first part.
    if (comm != nullptr) {
      comm->Abort(StrCat("rank ", env.rank, " cannot start: ", error.what()));
    }
    throw;
  }
}

void ExecutorCore::CheckRanks() {
  PLO_ENFORCE(program.world_size == env.world_size, kFailedPrecondition,
              "program '", program.name, "' is made for ", program.world_size,
              " ranks, this run has ", env.world_size);
  if (comm == nullptr) return;
  PLO_ENFORCE(env.world_size == 1 || comm->device() == device.kind(),
              kFailedPrecondition, "the ranks' comm takes ",
              comm->device() == DeviceKind::kCpu ? "host" : "GPU",
              " memory, but the executor runs on ", device.name());
  CheckSameOnAllRanks(*comm, ProgramHash(program), "program");
  CheckSameOnAllRanks(*comm, CollectiveHash(program),
                      "sequence of collectives");
  // Dropout is keyed by it.
  CheckSameOnAllRanks(*comm, static_cast<uint64_t>(data_step),
                      "initial data step");
}

void ExecutorCore::CheckPlan() const {
  PLO_ENFORCE(plan.graphs.size() == eval_programs.size() + 1, kInternal,
              "plan of ", plan.graphs.size(), " graphs for one program and ",
              eval_programs.size(), " eval programs");
  for (const Storage& storage : plan.storages) {
    const PlacePeak& peak =
        storage.place == Place::kDevice ? plan.device : plan.pinned;
    PLO_ENFORCE(storage.offset >= 0 && storage.offset % kArenaAlignment == 0 &&
                    storage.bytes >= 0 &&
                    storage.offset + storage.bytes <= peak.arena_bytes,
                kInternal, "storage '", storage.name, "' of ", storage.bytes,
                " bytes at offset ", storage.offset, " is not within the ",
                Name(storage.place), " arena of ", peak.arena_bytes, " bytes");
  }
}

void ExecutorCore::AllocateArenas() {
  const int64_t bytes = plan.device.arena_bytes;
  if (options.canary) {
    try {
      device_arena = static_cast<std::byte*>(
          device.Allocate(Place::kDevice, bytes + kGuardBytes));
      guard_bytes = kGuardBytes;
    } catch (const Error& error) {
      // A plan may use the last byte of a limit: then there is no guard.
      if (error.code() != ErrorCode::kOutOfMemory) throw;
    }
  }
  if (device_arena == nullptr) {
    device_arena = static_cast<std::byte*>(
        device.Allocate(Place::kDevice, std::max<int64_t>(bytes, 1)));
  }
  if (plan.pinned.arena_bytes > 0) {
    pinned_arena = static_cast<std::byte*>(
        device.Allocate(Place::kPinned, plan.pinned.arena_bytes));
  }
  if (options.canary) FillCanary(device, device_arena, bytes + guard_bytes);
}

void ExecutorCore::FreeArenas() {
  if (device_arena != nullptr) device.Free(Place::kDevice, device_arena);
  if (pinned_arena != nullptr) device.Free(Place::kPinned, pinned_arena);
}

StreamId ExecutorCore::StreamOf(StreamKind kind) {
  StreamId& stream = streams[static_cast<size_t>(kind)];
  if (stream < 0) stream = device.CreateStream(kind);
  return stream;
}

BoundRange ExecutorCore::RangeOf(const Operand& operand) const {
  PLO_ENFORCE(operand.storage >= 0 &&
                  operand.storage < static_cast<int>(plan.storages.size()),
              kInternal, "operand in storage ", operand.storage, " of ",
              plan.storages.size());
  const Storage& storage = plan.storages[static_cast<size_t>(operand.storage)];
  const int64_t offset = operand.offset + env.rank * operand.rank_stride;
  PLO_ENFORCE(offset >= 0 && offset + operand.bytes <= storage.bytes, kInternal,
              "operand of ", operand.bytes, " bytes at offset ", offset,
              " is not within storage '", storage.name, "' of ", storage.bytes,
              " bytes");
  return BoundRange{arena(storage.place) + storage.offset + offset,
                    operand.bytes,
                    operand.storage,
                    operand.var,
                    operand.read,
                    operand.write};
}

KernelContext ExecutorCore::BindOp(const BoundGraph& graph,
                                   const BoundLaunch& bound) const {
  auto bind_slots = [&](const std::vector<Slot>& slots) {
    std::vector<KernelContext::BoundSlot> result;
    for (const Slot& slot : slots) {
      KernelContext::BoundSlot& out = result.emplace_back();
      out.name = slot.name;
      for (const VarId id : slot.vars) {
        const auto range = std::find_if(
            bound.ranges.begin(), bound.ranges.end(),
            [id](const BoundRange& candidate) { return candidate.var == id; });
        PLO_ENFORCE(range != bound.ranges.end(), kInternal, Describe(*bound.op),
                    ": the plan lacks operand ",
                    Describe(graph.program->var(id)));
        out.tensors.push_back(MakeTensor(graph.program->var(id), range->data));
      }
    }
    return result;
  };
  Tensor workspace;
  for (const BoundRange& range : bound.ranges) {
    if (range.var != kNoId) continue;
    workspace.data = range.data;
    workspace.numel = range.bytes;
  }
  return KernelContext(bound.op, &env, bind_slots(bound.op->inputs),
                       bind_slots(bound.op->outputs), workspace);
}

// A feed or fetch is run by the device's copy kernels, one context per slot.
void ExecutorCore::BindRing(const BoundGraph& graph, BoundLaunch& bound) {
  const bool feed = bound.launch->kind == LaunchKind::kFeed;
  PLO_ENFORCE(bound.ranges.size() == 2, kInternal, "a ",
              feed ? "feed" : "fetch", " launch has ", bound.ranges.size(),
              " operands");
  const BoundRange& ring = bound.ranges[feed ? 0 : 1];
  const BoundRange& value = bound.ranges[feed ? 1 : 0];
  const Storage& storage = plan.storages[static_cast<size_t>(ring.storage)];
  const int wanted = feed ? kStepsInFlight : kFetchSlots;
  PLO_ENFORCE(storage.bytes >= wanted * ring.bytes &&
                  storage.place == Place::kPinned && ring.bytes == value.bytes,
              kInternal, "ring '", storage.name, "' is not ", wanted,
              " pinned slots of ", value.bytes, " bytes");
  bound.ring = ring.data;
  bound.slot_bytes = ring.bytes;

  OpSpec spec;
  const Var& var = graph.program->var(bound.launch->var);
  auto op = std::make_unique<Op>();
  op->type = feed ? "copy_h2d" : "copy_d2h";
  op->inputs = {{"x", {var.id}}};
  op->outputs = {{"out", {var.id}}};
  op->section = bound.launch->section;
  op->stream = bound.launch->stream;
  bound.op = op.get();
  copy_ops.push_back(std::move(op));
  for (int i = 0; i < wanted; ++i) {
    const Tensor host = MakeTensor(var, ring.data + i * ring.bytes);
    const Tensor on_device = MakeTensor(var, value.data);
    bound.contexts.emplace_back(
        bound.op, &env,
        std::vector<KernelContext::BoundSlot>{{"x", {feed ? host : on_device}}},
        std::vector<KernelContext::BoundSlot>{
            {"out", {feed ? on_device : host}}},
        Tensor{});
  }
}

BoundLaunch ExecutorCore::Bind(const BoundGraph& graph, const Launch& launch,
                               int index) {
  BoundLaunch bound;
  bound.core = this;
  bound.graph = &graph;
  bound.launch = &launch;
  bound.index = index;
  bound.stream = StreamOf(launch.stream);
  for (const Operand& operand : launch.operands) {
    bound.ranges.push_back(RangeOf(operand));
  }
  if (launch.kind == LaunchKind::kOp) {
    bound.op = &graph.program->op(launch.op);
    bound.contexts.push_back(BindOp(graph, bound));
  } else {
    BindRing(graph, bound);
  }
  // Host work is the CPU's on every device.
  bound.kernel = KernelRegistry::Global().Get(
      bound.op->type,
      launch.stream == StreamKind::kHost ? DeviceKind::kCpu : device.kind());
  return bound;
}

void ExecutorCore::BindGraph(const Program& of_program,
                             const GraphPlan& graph_plan) {
  graphs.push_back(std::make_unique<BoundGraph>());
  BoundGraph& graph = *graphs.back();
  graph.program = &of_program;
  graph.plan = &graph_plan;
  for (const Launch& launch : graph_plan.startup) {
    const int index = static_cast<int>(graph.startup.size());
    graph.startup.push_back(Bind(graph, launch, index));
    graph.startup.back().position = index;
  }
  int position = 0;
  for (const Launch& launch : graph_plan.launches) {
    graph.launches.push_back(
        Bind(graph, launch, static_cast<int>(graph.launches.size())));
    graph.launches.back().position = position;
    if (launch.stream == StreamKind::kCompute) ++position;
  }
  for (const Launch& launch : graph_plan.launches) {
    for (const LaunchIndex index : launch.waits) {
      graph.launches[static_cast<size_t>(index)].waited_on = true;
    }
  }
  // The caller waits for fetches and, by the last launch of each stream, for
  // steps; not for what was issued later.
  std::array<BoundLaunch*, kStreamCount> last{};
  for (BoundLaunch& bound : graph.launches) {
    last[static_cast<size_t>(bound.launch->stream)] = &bound;
    if (bound.launch->kind == LaunchKind::kFetch) bound.waited_on = true;
  }
  for (BoundLaunch* bound : last) {
    if (bound != nullptr) bound->waited_on = true;
  }
  auto find = [&](LaunchKind kind, VarId var) {
    for (BoundLaunch& bound : graph.launches) {
      if (bound.launch->kind == kind && bound.launch->var == var) return &bound;
    }
    PLO_THROW(kInternal, "the plan has no launch for ",
              kind == LaunchKind::kFeed ? "feed " : "fetch ",
              Describe(of_program.var(var)));
  };
  for (const VarId var : graph_plan.feeds) {
    graph.feeds.push_back(find(LaunchKind::kFeed, var));
  }
  for (const VarId var : graph_plan.fetches) {
    graph.fetches.push_back(find(LaunchKind::kFetch, var));
  }
}

}  // namespace plo
