#include "paddle_lite_offload/graph_builder.h"

#include <algorithm>
#include <atomic>

#include "framework/ir/verifier.h"
#include "operators/register_ops.h"

namespace plo {
namespace {

// Zero is the id of the empty value.
int32_t NextProgramId() {
  static std::atomic<int32_t> last{0};
  return ++last;
}

const char* FillType(Init::Kind kind) {
  switch (kind) {
    case Init::Kind::kConstant:
      return "fill_constant";
    case Init::Kind::kNormal:
      return "fill_normal";
    case Init::Kind::kUniform:
      return "fill_uniform";
  }
  PLO_THROW(kInternal, "bad init kind ", static_cast<int>(kind));
}

AttrMap FillAttrs(const Init& init, const std::string& key,
                  const Shape& shape) {
  AttrMap attrs;
  attrs.Set("shape", Attr(shape.dims()));
  attrs.Set("dtype", "fp32");
  if (init.kind == Init::Kind::kConstant) {
    attrs.Set("value", Attr(init.a));
    return attrs;
  }
  const bool normal = init.kind == Init::Kind::kNormal;
  attrs.Set(normal ? "mean" : "low", Attr(init.a));
  attrs.Set(normal ? "std" : "high", Attr(init.b));
  attrs.Set("key", Attr(key));
  return attrs;
}

}  // namespace

std::string Site::FileAndLine(std::string_view file, int64_t line) {
  const size_t slash = file.rfind('/');
  if (slash != std::string_view::npos) file.remove_prefix(slash + 1);
  return StrCat(file, ":", line);
}

RegionScope::RegionScope(GraphBuilder& builder, std::string_view name)
    : builder_(builder) {
  builder_.PushRegion(name);
}

RegionScope::~RegionScope() { builder_.PopRegion(); }

GraphBuilder::GraphBuilder(std::string name, int64_t seed)
    : id_(NextProgramId()) {
  RegisterBuiltinOps();
  program_.name = std::move(name);
  program_.seed = seed;
}

// --- Regions and names ---

void GraphBuilder::PushRegion(std::string_view name) {
  PLO_ENFORCE(!name.empty() && name.find('/') == std::string_view::npos,
              kInvalidArgument, "a region needs a name without '/', got '",
              name, "'");
  regions_.emplace_back(name);
}

void GraphBuilder::PopRegion() {
  PLO_ENFORCE(!regions_.empty(), kFailedPrecondition,
              "there is no region to leave");
  regions_.pop_back();
}

std::string GraphBuilder::region() const {
  std::string path;
  for (const std::string& part : regions_) {
    path += (path.empty() ? "" : "/") + part;
  }
  return path;
}

std::string GraphBuilder::Scoped(std::string_view name) const {
  const std::string path = region();
  return path.empty() ? std::string(name) : path + "/" + std::string(name);
}

const Var& GraphBuilder::Get(Value value) const {
  PLO_ENFORCE(!built_, kFailedPrecondition,
              "this GraphBuilder has already built its program");
  PLO_ENFORCE(!value.empty(), kInvalidArgument,
              "an operand is missing: the value is empty");
  PLO_ENFORCE(value.program_id == id_, kInvalidArgument,
              "the value belongs to another GraphBuilder");
  return program_.var(value.id);
}

const Shape& GraphBuilder::shape(Value value) const { return Get(value).shape; }
DType GraphBuilder::dtype(Value value) const { return Get(value).dtype; }
const std::string& GraphBuilder::name(Value value) const {
  return Get(value).name;
}

// --- Vars ---

Value GraphBuilder::Feed(std::string_view name, DType dtype, Shape shape,
                         Site site) {
  PLO_ENFORCE(!built_, kFailedPrecondition,
              "this GraphBuilder has already built its program");
  Require(program_.FindVar(name) == kNoId, site, "there is already a var '",
          name, "'");
  Require(shape.rank() > 0, site, "feed '", name,
          "' needs a leading batch dimension");
  ByteSize(dtype, shape);  // throws on overflow and negative dimensions
  Var var;
  var.name = std::string(name);
  var.dtype = dtype;
  var.shape = std::move(shape);
  var.kind = VarKind::kFeed;
  var.region = region();
  return {id_, program_.AddVar(std::move(var))};
}

Value GraphBuilder::Param(std::string_view name, Shape shape, const Init& init,
                          const ParamAttrs& attrs, Site site) {
  PLO_ENFORCE(!built_, kFailedPrecondition,
              "this GraphBuilder has already built its program");
  const std::string full = Scoped(name);
  Require(program_.FindVar(full) == kNoId, site, "there is already a var '",
          full, "'");
  Require(shape.numel() > 0, site, "param '", full,
          "' has no elements: ", shape);
  ByteSize(DType::kFp32, shape);
  Var var;
  var.name = full;
  var.shape = shape;
  var.kind = VarKind::kParam;
  var.category = MemoryCategory::kParams;
  var.region = region();
  var.param = attrs;
  const VarId id = program_.AddVar(std::move(var));
  OpSpec fill;
  fill.type = FillType(init.kind);
  fill.outputs = {{"out", {id}}};
  fill.attrs = FillAttrs(init, full, shape);
  fill.region = region();
  fill.location = site.text();
  program_.Append(Section::kStartup, std::move(fill));
  return {id_, id};
}

Value GraphBuilder::Name(Value value, std::string_view name, Site site) {
  Get(value);
  const VarId taken = program_.FindVar(name);
  Require(taken == kNoId || taken == value.id, site, "there is already a var '",
          name, "'");
  program_.RenameVar(value.id, std::string(name));
  return value;
}

void GraphBuilder::SetLoss(Value loss_sum, Value count, Site site) {
  for (Value value : {loss_sum, count}) {
    const Var& var = Get(value);
    Require(var.dtype == DType::kFp32 && var.shape == Shape{1}, site,
            "the loss and its count must be fp32 [1], got ", Describe(var));
  }
  Require(program_.var(count.id).kind == VarKind::kState, site,
          "the count of the loss must come from CountValid or CountElements, "
          "got ",
          Describe(program_.var(count.id)));
  program_.loss = loss_sum.id;
  program_.loss_count = count.id;
}

// --- Ops ---

VarId GraphBuilder::AddOutput(const OpSchema& schema, const Op& op,
                              const InferContext::Result& result, bool first) {
  Var var;
  var.name = program_.UniqueName(
      Scoped(first ? op.type : op.type + "_" + result.slot));
  var.dtype = result.dtype;
  var.shape = result.shape;
  var.region = region();
  for (const auto& [out, in] : schema.aliases) {
    if (out == result.slot && op.HasIn(in)) var.view_of = op.In1(in);
  }
  return program_.AddVar(std::move(var));
}

std::vector<Value> GraphBuilder::AddOp(std::string_view type,
                                       const std::vector<Operand>& inputs,
                                       AttrMap attrs, Site site) {
  return Append(type, inputs, std::move(attrs), site);
}

std::vector<Value> GraphBuilder::Append(std::string_view type,
                                        const std::vector<Operand>& inputs,
                                        AttrMap attrs, const Site& site) {
  PLO_ENFORCE(!built_, kFailedPrecondition,
              "this GraphBuilder has already built its program");
  const OpRegistry& registry = OpRegistry::Global();
  const OpSchema& schema = registry.Get(type);
  // Checked on a detached op first: nothing is left behind when it is wrong.
  Op op;
  op.id = static_cast<OpId>(program_.op_count());
  op.type = std::string(type);
  op.attrs = std::move(attrs);
  op.region = region();
  op.location = site.text();
  for (const Operand& operand : inputs) {
    std::vector<VarId> ids;
    for (Value value : operand.values) {
      if (value.empty()) continue;
      Require(value.program_id == id_, site, "op '", type, "': operand '",
              operand.slot, "' belongs to another GraphBuilder");
      ids.push_back(value.id);
    }
    if (!ids.empty()) op.SetIn(operand.slot, std::move(ids));
  }
  for (const SlotDef& slot : schema.outputs) {
    if (!slot.optional) op.SetOut(slot.name, {kNoId});  // only counted
  }
  NormalizeOp(registry, program_, op);
  const auto results = InferOp(registry, program_, op);

  OpSpec spec;
  spec.type = op.type;
  spec.inputs = op.inputs;
  spec.attrs = op.attrs;
  spec.region = op.region;
  spec.location = op.location;
  if (schema.random) spec.random_id = next_random_id_++;
  std::vector<Value> values;
  for (const SlotDef& slot : schema.outputs) {
    std::vector<VarId> ids;
    for (const InferContext::Result& result : results) {
      if (result.slot != slot.name) continue;
      ids.push_back(AddOutput(schema, op, result, values.empty()));
      values.push_back({id_, ids.back()});
    }
    if (!ids.empty()) spec.outputs.push_back({slot.name, std::move(ids)});
  }
  program_.Append(Section::kMicro, std::move(spec));
  return values;
}

Value GraphBuilder::Count(std::string_view type, std::string_view slot,
                          Value feed, AttrMap attrs, const Site& site) {
  Require(Get(feed).kind == VarKind::kFeed, site, "op '", type,
          "' counts a feed, got ", Describe(Get(feed)));
  const Value count =
      Append(type, {{std::string(slot), {feed}}}, std::move(attrs), site)[0];
  // Written in the first micro-step, read in all of them.
  Var& var = program_.mutable_var(count.id);
  var.kind = VarKind::kState;
  var.category = MemoryCategory::kWorkspace;
  program_.mutable_op(program_.ops(Section::kMicro).back()->id)
      .first_micro_only = true;
  return count;
}

Program GraphBuilder::Build(Site site) {
  PLO_ENFORCE(!built_, kFailedPrecondition,
              "this GraphBuilder has already built its program");
  Require(regions_.empty(), site, "region '", region(), "' is still open");
  Verify(program_);
  built_ = true;
  return std::move(program_);
}

}  // namespace plo
