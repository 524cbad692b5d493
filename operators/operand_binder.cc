#include "operators/operand_binder.h"

#include <algorithm>
#include <utility>

#include "framework/ir/op_registry.h"
#include "operators/convert.h"

namespace plo {

void* OperandBinder::Address(VarId var) {
  const auto [at, fresh] = addresses_.try_emplace(var, nullptr);
  if (fresh) at->second = allocate_(program_.var(var));
  return at->second;
}

std::vector<KernelContext::BoundSlot> OperandBinder::BindSlots(
    const std::vector<Slot>& slots) {
  std::vector<KernelContext::BoundSlot> bound;
  for (const Slot& slot : slots) {
    bound.push_back({slot.name, {}});
    for (const VarId id : slot.vars) {
      const Var& var = program_.var(id);
      bound.back().tensors.push_back(
          {Address(id), var.dtype, var.shape, var.shape.numel()});
    }
  }
  return bound;
}

KernelContext OperandBinder::Bind(const Op& op, const KernelEnv& env,
                                  DeviceKind device) {
  Var workspace;
  const int64_t bytes = OpRegistry::Global().Get(op.type).WorkspaceBytes(
      OpView(program_, op), device);
  workspace.name = "workspace";
  workspace.dtype = DType::kBool;
  workspace.shape = Shape{bytes};
  workspace.category = MemoryCategory::kWorkspace;
  if (op.stream == StreamKind::kHost) workspace.place = Place::kPinned;
  void* scratch = bytes > 0 ? allocate_(workspace) : nullptr;
  return KernelContext(&op, &env, BindSlots(op.inputs), BindSlots(op.outputs),
                       {scratch, workspace.dtype, workspace.shape, bytes});
}

std::vector<std::byte> FillPattern(const Var& var, float low) {
  const int64_t period = std::min(var.shape.numel(), int64_t{1} << 20);
  std::vector<std::byte> pattern(
      static_cast<size_t>(period * SizeOf(var.dtype)));
  if (!IsFloat(var.dtype)) return pattern;
  std::vector<float> values(static_cast<size_t>(period));
  uint32_t state = 1;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = low + static_cast<float>(state >> 8 | 1) * 0x1p-24f;
  }
  ConvertFromFloat(var.dtype, values.data(), pattern.data(), period);
  return pattern;
}

}  // namespace plo
