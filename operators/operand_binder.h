// Ops bound to operands of their own, without a plan: to time them, to test
// them.
#ifndef PLO_OPERATORS_OPERAND_BINDER_H_
#define PLO_OPERATORS_OPERAND_BINDER_H_

#include <cstddef>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "framework/ir/program.h"
#include "framework/runtime/kernel.h"

namespace plo {

// Ops bound by one binder share their vars. Thread-compatible.
class OperandBinder {
 public:
  // Allocates a var, or a workspace (MemoryCategory::kWorkspace). Who allocates
  // frees, after the last use of a context.
  using Allocate = std::function<void*(const Var& var)>;

  OperandBinder(const Program& program, Allocate allocate)
      : program_(program), allocate_(std::move(allocate)) {}

  // Of the var; allocates it at the first call.
  void* Address(VarId var);

  // The operands and the workspace of `op` for its kernel on `device`. `op` and
  // `env` must outlive the context.
  KernelContext Bind(const Op& op, const KernelEnv& env, DeviceKind device);

 private:
  std::vector<KernelContext::BoundSlot> BindSlots(
      const std::vector<Slot>& slots);

  const Program& program_;
  const Allocate allocate_;
  std::map<VarId, void*> addresses_;
};

// Bytes to fill a var with, over and over, since making as many as large ones
// take is slow: the same numbers between low and low + 1 each time, zeros where
// the dtype is no float. Of at most 2^20 elements.
std::vector<std::byte> FillPattern(const Var& var, float low);

}  // namespace plo

#endif  // PLO_OPERATORS_OPERAND_BINDER_H_
