// Tiny programs for the tests of the planner, with schemas of their own.
#ifndef PLO_TESTS_FRAMEWORK_PLAN_TEST_UTIL_H_
#define PLO_TESTS_FRAMEWORK_PLAN_TEST_UTIL_H_

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "framework/ir/op_registry.h"
#include "framework/ir/program.h"
#include "framework/plan/plan.h"

namespace plo {

// Ops without meaning: `op` (x* -> y*), `unary` (x -> y, in place allowed),
// `twins` (x -> y, z, either in place), `both` (x, w -> y, z: y in place of
// either, z of w), `scratch` (x* -> y*, attribute bytes of
// workspace), `transfer` (a copy), `reduce_scatter`, `all_reduce`, `all_gather`
// (collectives).
inline OpRegistry TestRegistry() {
  OpRegistry registry;
  const auto add = [&](const char* type, auto&& change) {
    OpSchema schema;
    schema.type = type;
    schema.inputs = {{"x", true, true}};
    schema.outputs = {{"y", true, true}};
    schema.infer = [](InferContext&) {};
    change(schema);
    registry.Register(schema);
  };
  add("op", [](OpSchema&) {});
  add("unary", [](OpSchema& s) { s.inplace = {{"y", "x"}}; });
  add("twins", [](OpSchema& s) {
    s.outputs.push_back({"z"});
    s.inplace = {{"y", "x"}, {"z", "x"}};
  });
  add("both", [](OpSchema& s) {
    s.inputs.push_back({"w"});
    s.outputs.push_back({"z"});
    s.inplace = {{"y", "x"}, {"y", "w"}, {"z", "w"}};
  });
  add("scratch", [](OpSchema& s) {
    s.attrs = {{"bytes", AttrType::kInt}};
    s.workspace_bytes = [](const OpView& v) {
      return v.attrs().GetInt("bytes");
    };
  });
  add("transfer", [](OpSchema& s) { s.where = OpSchema::Where::kCopy; });
  for (const char* type : {"reduce_scatter", "all_reduce", "all_gather"}) {
    add(type, [](OpSchema& s) { s.collective = true; });
  }
  return registry;
}

// A program under construction. Sizes are in bytes and multiples of four.
struct TestProgram {
  Program program;

  VarId Add(const std::string& name, int64_t bytes, VarKind kind) {
    Var var;
    var.name = name;
    var.shape = Shape{bytes / 4};
    var.kind = kind;
    var.category = kind == VarKind::kParam ? MemoryCategory::kParams
                                           : MemoryCategory::kActivations;
    return program.AddVar(var);
  }
  VarId Temp(const std::string& name, int64_t bytes) {
    return Add(name, bytes, VarKind::kTemp);
  }
  VarId State(const std::string& name, int64_t bytes) {
    return Add(name, bytes, VarKind::kState);
  }
  VarId Pinned(VarId id) {
    program.mutable_var(id).place = Place::kPinned;
    return id;
  }
  VarId View(const std::string& name, VarId of, int64_t offset, int64_t bytes,
             int64_t rank_stride = 0) {
    Var var;
    var.name = name;
    var.shape = Shape{bytes / 4};
    var.kind = program.var(of).kind;
    var.place = program.var(of).place;
    var.category = program.var(of).category;
    var.view_of = of;
    var.byte_offset = offset;
    var.rank_stride_bytes = rank_stride;
    return program.AddVar(var);
  }
  OpId Op(Section section, StreamKind stream, std::vector<VarId> in,
          std::vector<VarId> out, const std::string& type = "op",
          bool first_micro_only = false) {
    OpSpec spec;
    spec.type = type;
    spec.inputs = {{"x", std::move(in)}};
    spec.outputs = {{"y", std::move(out)}};
    spec.stream = stream;
    spec.first_micro_only = first_micro_only;
    return program.Append(section, spec).id;
  }
  OpId Micro(std::vector<VarId> in, std::vector<VarId> out,
             StreamKind stream = StreamKind::kCompute,
             const std::string& type = "op") {
    return Op(Section::kMicro, stream, std::move(in), std::move(out), type);
  }
  OpId Update(std::vector<VarId> in, std::vector<VarId> out,
              StreamKind stream = StreamKind::kCompute,
              const std::string& type = "op") {
    return Op(Section::kUpdate, stream, std::move(in), std::move(out), type);
  }
  void After(OpId op, OpId earlier) {
    program.mutable_op(op).after.push_back(earlier);
  }

  Plan Build(const PlanOptions& options = {}) const {
    return BuildPlan(program, options, TestRegistry());
  }
};

inline LaunchIndex LaunchOf(const Plan& plan, OpId op) {
  const auto& launches = plan.graphs[0].launches;
  for (size_t i = 0; i < launches.size(); ++i) {
    if (launches[i].kind == LaunchKind::kOp && launches[i].op == op) {
      return static_cast<LaunchIndex>(i);
    }
  }
  return -1;
}

// The ops whose launches an op's launch waits for.
inline std::vector<OpId> WaitsOf(const Plan& plan, OpId op) {
  std::vector<OpId> ops;
  const auto& launches = plan.graphs[0].launches;
  for (LaunchIndex wait : launches[LaunchOf(plan, op)].waits) {
    ops.push_back(launches[wait].op);
  }
  return ops;
}

inline const Storage& StorageOf(const Plan& plan, const std::string& name) {
  for (const Storage& storage : plan.storages) {
    if (storage.name == name) return storage;
  }
  PLO_THROW(kNotFound, "no storage '", name, "'");
}

inline std::vector<std::pair<int, int>> LiveOf(const Plan& plan,
                                               const std::string& name) {
  std::vector<std::pair<int, int>> live;
  for (const LiveRange& range : StorageOf(plan, name).live) {
    live.emplace_back(range.begin, range.end);
  }
  return live;
}

}  // namespace plo

#endif  // PLO_TESTS_FRAMEWORK_PLAN_TEST_UTIL_H_
