#include "tests/framework/executor_harness.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "framework/ir/error.h"
#include "framework/ir/op_registry.h"
#include "framework/runtime/kernel.h"

namespace plo::harness {
namespace {

void Fill(KernelContext& context) {
  const Tensor& out = context.Out("out");
  std::fill_n(out.as<float>(), out.numel,
              static_cast<float>(context.attrs().GetFloat("value")));
}

void Scale(KernelContext& context) {
  const Tensor& x = context.In("x");
  const Tensor& out = context.Out("out");
  const auto factor = static_cast<float>(context.attrs().GetFloat("factor"));
  for (int64_t i = 0; i < out.numel; ++i) {
    out.as<float>()[i] = x.as<float>()[i] * factor;
  }
}

void Add(KernelContext& context) {
  const float* x = context.In("x").as<float>();
  const float* y = context.In("y").as<float>();
  const Tensor& out = context.Out("out");
  for (int64_t i = 0; i < out.numel; ++i) out.as<float>()[i] = x[i] + y[i];
}

void Copy(KernelContext& context) {
  const Tensor& x = context.In("x");
  std::memcpy(context.Out("out").data, x.data,
              static_cast<size_t>(x.numel * SizeOf(x.dtype)));
}

void SliceMicro(KernelContext& context) {
  const Tensor& out = context.Out("out");
  const float* x = context.In("x").as<float>();
  std::copy_n(x + context.step().micro_index * out.numel, out.numel,
              out.as<float>());
}

void Accumulate(KernelContext& context) {
  const float* x = context.In("x").as<float>();
  const Tensor& acc = context.Out("acc");
  const bool first = context.step().micro_index == 0;
  for (int64_t i = 0; i < acc.numel; ++i) {
    acc.as<float>()[i] = first ? x[i] : acc.as<float>()[i] + x[i];
  }
}

void WriteStep(KernelContext& context) {
  const Tensor& out = context.Out("out");
  std::fill_n(out.as<float>(), out.numel, 0.0f);
  out.as<float>()[0] = static_cast<float>(context.step().data_step);
  out.as<float>()[1] = static_cast<float>(context.step().micro_index);
}

void Fail(KernelContext& context) {
  PLO_ENFORCE(context.In("x").as<float>()[0] != 13.0f, kInvalidArgument,
              "x[0] is 13");
  Copy(context);
}

void CheckIndex(KernelContext& context) {
  const Tensor& x = context.In("x");
  for (int64_t i = 0; i < x.numel; ++i) {
    PLO_ENFORCE(x.as<float>()[i] < kIndexBound, kInvalidArgument, "index ",
                x.as<float>()[i], " at position ", i, " is out of range [0, ",
                kIndexBound, ")");
  }
  Copy(context);
}

void Overrun(KernelContext& context) {
  Copy(context);
  const Tensor& out = context.Out("out");
  out.as<char>()[out.numel * 4] ^= 0x55;
}

void Workspace(KernelContext& context) {
  Copy(context);
  std::memset(context.workspace(), 0x11,
              static_cast<size_t>(context.attrs().GetInt("touch")));
}

void Stray(KernelContext& context) {
  Copy(context);
  context.In("x").as<float>()[0] += 1;
}

void AllReduce(KernelContext& context) {
  const Tensor& out = context.Out("out");
  context.env().comm->AllReduce(out.data, out.numel, out.dtype, Reduction::kSum,
                                context.native_stream());
}

}  // namespace

void RegisterTestOps() {
  static const bool registered = [] {
    const auto add = [](const char* type, std::vector<SlotDef> inputs,
                        std::vector<AttrDef> attrs, Kernel kernel) {
      OpSchema schema;
      schema.type = type;
      schema.inputs = std::move(inputs);
      schema.outputs = {{"out"}};
      schema.attrs = std::move(attrs);
      schema.infer = [](InferContext&) {};
      schema.collective = schema.type == "test_all_reduce";
      schema.reads_step =
          schema.type == "test_slice" || schema.type == "test_step";
      if (schema.type == "test_accumulate") schema.outputs = {{"acc"}};
      if (schema.type == "test_workspace") {
        schema.workspace_bytes = [](const OpView& view) {
          return view.attrs().GetInt("touch");
        };
      }
      if (schema.type == "copy_h2d" || schema.type == "copy_d2h") {
        schema.where = OpSchema::Where::kCopy;
      } else {
        schema.where = OpSchema::Where::kDeviceOrHost;
      }
      OpRegistry::Global().Register(std::move(schema));
      KernelRegistry::Global().Register(type, DeviceKind::kCpu, kernel);
    };
    add("test_fill", {}, {{"value", AttrType::kFloat}}, Fill);
    add("test_scale", {{"x"}}, {{"factor", AttrType::kFloat}}, Scale);
    add("test_add", {{"x"}, {"y"}}, {}, Add);
    add("test_slice", {{"x"}}, {}, SliceMicro);
    add("test_accumulate", {{"x"}, {"acc"}}, {}, Accumulate);
    add("test_step", {{"x"}}, {}, WriteStep);
    add("test_fail", {{"x"}}, {}, Fail);
    add("test_index", {{"x"}}, {}, CheckIndex);
    add("test_overrun", {{"x"}}, {}, Overrun);
    add("test_workspace", {{"x"}}, {{"touch", AttrType::kInt}}, Workspace);
    add("test_stray", {{"x"}}, {}, Stray);
    add("test_all_reduce", {{"x"}}, {}, AllReduce);
    add("copy_h2d", {{"x"}}, {}, Copy);
    add("copy_d2h", {{"x"}}, {}, Copy);
    RegisterCudaTestOps();
    return true;
  }();
  (void)registered;
}

VarId TestProgram::Add(VarKind kind, const std::string& name, Shape shape,
                       Place place, MemoryCategory category) {
  Var var;
  var.name = name;
  var.kind = kind;
  var.shape = std::move(shape);
  var.place = place;
  var.category = category;
  return program.AddVar(std::move(var));
}

Op& TestProgram::Do(Section section, const std::string& type,
                    std::vector<VarId> inputs, VarId output, StreamKind stream,
                    AttrMap attrs) {
  const bool accumulate = type == "test_accumulate";
  OpSpec spec;
  spec.type = type;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const char* slot = i == 0 ? "x" : accumulate ? "acc" : "y";
    spec.inputs.push_back({slot, {inputs[i]}});
  }
  spec.outputs = {{accumulate ? "acc" : "out", {output}}};
  spec.stream = stream;
  spec.attrs = std::move(attrs);
  if (section == Section::kUpdate) spec.role = Role::kUpdate;
  return program.Append(section, std::move(spec));
}

Op& TestProgram::Fill(VarId var, double value) {
  return Do(Section::kStartup, "test_fill", {}, var, StreamKind::kCompute,
            Attrs("value", value));
}

AttrMap Attrs(const std::string& name, Attr value) {
  AttrMap attrs;
  attrs.Set(name, std::move(value));
  return attrs;
}

namespace {

class NaivePlanner {
 public:
  NaivePlanner(const Program& main, Plan& plan) : main_(main), plan_(plan) {}

  void AddGraph(const Program& program, int graph_index,
                const std::vector<VarId>& fetches, int64_t workspace) {
    graph_index_ = graph_index;
    GraphPlan graph;
    graph.name = program.name;
    graph.accumulate_steps = program.accumulate_steps;
    graph.fetches = fetches;
    for (const auto& op : program.ops(Section::kStartup)) {
      graph.startup.push_back(OpLaunch(program, *op, workspace));
    }
    for (const VarId id : program.vars()) {
      if (program.var(id).kind != VarKind::kFeed) continue;
      graph.feeds.push_back(id);
      graph.launches.push_back(RingLaunch(program, LaunchKind::kFeed, id));
    }
    for (const auto& op : program.ops(Section::kMicro)) {
      graph.launches.push_back(OpLaunch(program, *op, workspace));
    }
    graph.micro_count = static_cast<int32_t>(graph.launches.size());
    for (const auto& op : program.ops(Section::kUpdate)) {
      graph.launches.push_back(OpLaunch(program, *op, workspace));
    }
    for (const VarId id : fetches) {
      graph.launches.push_back(RingLaunch(program, LaunchKind::kFetch, id));
    }
    const auto count = static_cast<LaunchIndex>(graph.launches.size());
    int32_t compute = 0;
    for (LaunchIndex i = 0; i < count; ++i) {
      Launch& launch = graph.launches[static_cast<size_t>(i)];
      // Also after the repetition of micro, and the step, before.
      launch.waits = i > 0 ? std::vector{i - 1}
                           : std::vector{count - 1, graph.micro_count - 1};
      compute += launch.stream == StreamKind::kCompute;
    }
    for (Storage& storage : plan_.storages) {
      if (!storage.persistent && storage.graph == graph_index) {
        storage.live = {{0, 2 * compute}};
      }
    }
    plan_.graphs.push_back(std::move(graph));
  }

 private:
  StorageIndex AddStorage(Storage storage) {
    PlacePeak& peak =
        storage.place == Place::kDevice ? plan_.device : plan_.pinned;
    storage.offset = (peak.arena_bytes + kArenaAlignment - 1) /
                     kArenaAlignment * kArenaAlignment;
    storage.graph = storage.persistent ? 0 : graph_index_;
    peak.arena_bytes = storage.offset + storage.bytes;
    peak.live_peak_bytes += storage.bytes;
    peak.by_category[static_cast<size_t>(storage.category)] += storage.bytes;
    plan_.storages.push_back(std::move(storage));
    return static_cast<StorageIndex>(plan_.storages.size()) - 1;
  }

  StorageIndex StorageOf(const Program& program, VarId id) {
    const Var& var = program.var(program.StorageOf(id));
    const auto it = by_name_.find(var.name);
    if (it != by_name_.end()) return it->second;
    Storage storage;
    storage.name = var.name;
    storage.var = main_.FindVar(var.name);
    storage.place = var.place;
    storage.category = var.category;
    storage.bytes = var.bytes();
    storage.persistent =
        var.kind == VarKind::kParam || var.kind == VarKind::kState;
    return by_name_[var.name] = AddStorage(storage);
  }

  Operand MakeOperand(const Program& program, VarId id) {
    Operand operand;
    operand.var = id;
    operand.storage = StorageOf(program, id);
    operand.offset = program.OffsetInStorage(id, 0);
    operand.rank_stride = program.OffsetInStorage(id, 1) - operand.offset;
    operand.bytes = program.var(id).bytes();
    return operand;
  }

  Launch OpLaunch(const Program& program, const Op& op, int64_t workspace) {
    Launch launch;
    launch.op = op.id;
    launch.section = op.section;
    launch.stream = op.stream;
    launch.first_micro_only = op.first_micro_only;
    const auto add = [&](const std::vector<Slot>& slots, bool Operand::*flag) {
      for (const Slot& slot : slots) {
        for (const VarId id : slot.vars) {
          auto it = std::find_if(launch.operands.begin(), launch.operands.end(),
                                 [&](const Operand& o) { return o.var == id; });
          if (it == launch.operands.end()) {
            launch.operands.push_back(MakeOperand(program, id));
            it = launch.operands.end() - 1;
          }
          (*it).*flag = true;
        }
      }
    };
    add(op.inputs, &Operand::read);
    add(op.outputs, &Operand::write);
    if (op.type == "test_workspace" && workspace > 0) {
      Storage storage;
      storage.name = StrCat("workspace#", op.id);
      storage.bytes = workspace;
      Operand operand;
      operand.storage = AddStorage(storage);
      operand.bytes = workspace;
      operand.write = true;
      launch.operands.push_back(operand);
      launch.workspace_bytes = workspace;
    }
    return launch;
  }

  Launch RingLaunch(const Program& program, LaunchKind kind, VarId id) {
    const bool feed = kind == LaunchKind::kFeed;
    Launch launch;
    launch.kind = kind;
    launch.var = id;
    launch.section = feed ? Section::kMicro : Section::kUpdate;
    launch.stream = feed ? StreamKind::kH2D : StreamKind::kD2H;
    launch.first_micro_only = feed;
    Operand value = MakeOperand(program, id);
    value.read = !feed;
    value.write = feed;
    Storage storage;
    storage.name = program.var(id).name + (feed ? "@feed_ring" : "@fetch_ring");
    storage.place = Place::kPinned;
    storage.bytes = value.bytes * (feed ? kStepsInFlight : kFetchSlots);
    Operand ring;
    ring.storage = AddStorage(storage);
    ring.bytes = value.bytes;
    ring.read = feed;
    ring.write = !feed;
    launch.operands =
        feed ? std::vector{ring, value} : std::vector{value, ring};
    return launch;
  }

  const Program& main_;
  Plan& plan_;
  int graph_index_ = 0;
  std::map<std::string, StorageIndex> by_name_;
};

}  // namespace

Plan NaivePlan(const Program& program, std::vector<VarId> fetches,
               const std::vector<const Program*>& evals, int64_t workspace) {
  Plan plan;
  NaivePlanner planner(program, plan);
  planner.AddGraph(program, 0, fetches, workspace);
  for (size_t i = 0; i < evals.size(); ++i) {
    // Eval programs of the tests fetch what they call "result".
    planner.AddGraph(*evals[i], static_cast<int>(i) + 1,
                     {evals[i]->GetVar("result")}, workspace);
  }
  return plan;
}

LaunchIndex FindLaunch(const Plan& plan, OpId op) {
  const auto& launches = plan.graphs[0].launches;
  for (size_t i = 0; i < launches.size(); ++i) {
    if (launches[i].kind == LaunchKind::kOp && launches[i].op == op) {
      return static_cast<LaunchIndex>(i);
    }
  }
  PLO_THROW(kNotFound, "no launch of op ", op);
}

LaunchIndex FindLaunch(const Plan& plan, LaunchKind kind, VarId var) {
  const auto& launches = plan.graphs[0].launches;
  for (size_t i = 0; i < launches.size(); ++i) {
    if (launches[i].kind == kind && launches[i].var == var) {
      return static_cast<LaunchIndex>(i);
    }
  }
  PLO_THROW(kNotFound, "no launch of var ", var);
}

Storage& FindStorage(Plan& plan, const std::string& name) {
  for (Storage& storage : plan.storages) {
    if (storage.name == name) return storage;
  }
  PLO_THROW(kNotFound, "no storage '", name, "'");
}

HostTensor Floats(Shape shape, const std::vector<float>& values) {
  return HostTensor::Of(DType::kFp32, std::move(shape), values);
}

std::vector<double> Values(Executor& executor, const std::string& name) {
  return executor.ReadVar(name).ToDoubles();
}

}  // namespace plo::harness
