#include "framework/ir/op_registry.h"

#include <algorithm>

#include "framework/ir/spelling.h"

namespace plo {
namespace {

std::string_view AttrTypeName(AttrType type) {
  static constexpr std::string_view kNames[] = {
      "bool", "int", "float", "string", "ints", "floats", "strings"};
  return kNames[static_cast<size_t>(type)];
}

// The alternatives of Attr stand in the order of AttrType.
bool HasType(const Attr& attr, AttrType type) {
  return attr.index() == static_cast<size_t>(type);
}

std::string DescribeOperands(const Program& program, const Op& op) {
  std::string out;
  for (const Slot& slot : op.inputs) {
    for (VarId v : slot.vars) {
      out += StrCat(out.empty() ? "" : ", ", slot.name, " = ",
                    Describe(program.var(v)));
    }
  }
  return out;
}

void CheckSlots(const Op& op, const std::vector<Slot>& slots,
                const std::vector<SlotDef>& defs, std::string_view side) {
  for (const Slot& slot : slots) {
    const bool known =
        std::any_of(defs.begin(), defs.end(),
                    [&](const SlotDef& def) { return def.name == slot.name; });
    PLO_ENFORCE(known, kInvalidArgument, Describe(op), ": no ", side, " slot '",
                slot.name, "'");
  }
  for (const SlotDef& def : defs) {
    size_t count = 0;
    for (const Slot& slot : slots) {
      if (slot.name == def.name) count += slot.vars.size();
    }
    PLO_ENFORCE(count > 0 || def.optional, kInvalidArgument, Describe(op), ": ",
                side, " slot '", def.name, "' is empty");
    PLO_ENFORCE(count <= 1 || def.variadic, kInvalidArgument, Describe(op),
                ": ", side, " slot '", def.name, "' takes one var, got ",
                count);
  }
}

}  // namespace

// --- InferContext ---

InferContext::InferContext(const Program& program, const Op& op)
    : program_(program), op_(op) {}

const Shape& InferContext::shape(std::string_view slot, int i) const {
  const auto& vars = op_.In(slot);
  Require(i < static_cast<int>(vars.size()), "no operand ", i, " in slot '",
          slot, "'");
  return program_.var(vars[i]).shape;
}

DType InferContext::dtype(std::string_view slot, int i) const {
  const auto& vars = op_.In(slot);
  Require(i < static_cast<int>(vars.size()), "no operand ", i, " in slot '",
          slot, "'");
  return program_.var(vars[i]).dtype;
}

void InferContext::Set(std::string_view slot, DType dtype, Shape shape, int i) {
  results_.push_back({std::string(slot), i, dtype, std::move(shape)});
}

void InferContext::FailWith(std::initializer_list<StrCatPiece> message) const {
  PLO_THROW(kInvalidArgument, Describe(op_), ": ", StrCatPieces(message), " (",
            DescribeOperands(program_, op_), ")");
}

// --- OpView ---

const Var& OpView::In(std::string_view slot, int i) const {
  const auto& vars = op_.In(slot);
  PLO_ENFORCE(i < static_cast<int>(vars.size()), kInternal, Describe(op_),
              ": no operand ", i, " in input slot '", slot, "'");
  return program_.var(vars[i]);
}

const Var& OpView::Out(std::string_view slot, int i) const {
  const auto& vars = op_.Out(slot);
  PLO_ENFORCE(i < static_cast<int>(vars.size()), kInternal, Describe(op_),
              ": no operand ", i, " in output slot '", slot, "'");
  return program_.var(vars[i]);
}

// --- OpRegistry ---

int64_t OpSchema::WorkspaceBytes(const OpView& op, DeviceKind device) const {
  const bool on_cuda =
      device == DeviceKind::kCuda && op.op().stream != StreamKind::kHost;
  const auto& bytes = on_cuda ? cuda_workspace_bytes : workspace_bytes;
  return bytes ? bytes(op) : 0;
}

OpRegistry& OpRegistry::Global() {
  static OpRegistry registry;
  return registry;
}

void OpRegistry::Register(OpSchema schema) {
  std::string type = schema.type;
  PLO_ENFORCE(schemas_.emplace(type, std::move(schema)).second,
              kFailedPrecondition, "op '", type, "' is registered twice");
}

const OpSchema* OpRegistry::Find(std::string_view type) const {
  const auto it = schemas_.find(type);
  return it == schemas_.end() ? nullptr : &it->second;
}

const OpSchema& OpRegistry::Get(std::string_view type) const {
  if (const OpSchema* schema = Find(type)) return *schema;
  PLO_THROW(kNotFound, "no op type '", type, "'", DidYouMean(type, Types()));
}

std::vector<std::string> OpRegistry::Types() const {
  std::vector<std::string> types;
  for (const auto& [name, unused] : schemas_) types.push_back(name);
  return types;
}

// --- Checks ---

void CheckOp(const OpRegistry& registry, const Op& op) {
  const OpSchema& schema = registry.Get(op.type);
  CheckSlots(op, op.inputs, schema.inputs, "input");
  CheckSlots(op, op.outputs, schema.outputs, "output");
  for (const auto& [name, value] : op.attrs) {
    const auto def =
        std::find_if(schema.attrs.begin(), schema.attrs.end(),
                     [&](const AttrDef& d) { return d.name == name; });
    PLO_ENFORCE(def != schema.attrs.end(), kInvalidArgument, Describe(op),
                ": no attribute '", name, "'");
    PLO_ENFORCE(HasType(value, def->type), kInvalidArgument, Describe(op),
                ": attribute '", name, "' must be of type ",
                AttrTypeName(def->type));
  }
  for (const AttrDef& def : schema.attrs) {
    PLO_ENFORCE(op.attrs.Has(def.name), kInvalidArgument, Describe(op),
                ": attribute '", def.name, "' is missing");
  }
}

void NormalizeOp(const OpRegistry& registry, const Program& program, Op& op) {
  for (const AttrDef& def : registry.Get(op.type).attrs) {
    if (!def.required && !op.attrs.Has(def.name)) {
      op.attrs.Set(def.name, def.default_value);
    }
  }
  CheckOp(registry, op);
  (void)program;
}

void NormalizeProgram(Program& program, const OpRegistry& registry) {
  for (int s = 0; s < kSectionCount; ++s) {
    for (const auto& op : program.ops(static_cast<Section>(s))) {
      NormalizeOp(registry, program, *op);
    }
  }
}

std::vector<InferContext::Result> InferOp(const OpRegistry& registry,
                                          const Program& program,
                                          const Op& op) {
  InferContext context(program, op);
  registry.Get(op.type).infer(context);
  return context.results();
}

void CheckInferred(const OpRegistry& registry, const Program& program,
                   const Op& op) {
  for (const auto& result : InferOp(registry, program, op)) {
    const auto& vars = op.Out(result.slot);
    if (result.index >= static_cast<int>(vars.size())) continue;  // optional
    const Var& out = program.var(vars[result.index]);
    PLO_ENFORCE(out.dtype == result.dtype && out.shape == result.shape,
                kInvalidArgument, Describe(op), ": output ", result.slot,
                " is ", Describe(out), ", expected ", result.dtype, " ",
                result.shape, " (", DescribeOperands(program, op), ")");
  }
}

}  // namespace plo
