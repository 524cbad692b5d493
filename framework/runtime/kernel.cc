#include "framework/runtime/kernel.h"

#include "framework/ir/error.h"

namespace plo {
namespace {

const Tensor* FindTensor(const std::vector<KernelContext::BoundSlot>& slots,
                         std::string_view name, int i) {
  for (const auto& slot : slots) {
    if (slot.name != name) continue;
    if (i < 0 || i >= static_cast<int>(slot.tensors.size())) return nullptr;
    return &slot.tensors[static_cast<size_t>(i)];
  }
  return nullptr;
}

int CountTensors(const std::vector<KernelContext::BoundSlot>& slots,
                 std::string_view name) {
  for (const auto& slot : slots) {
    if (slot.name == name) return static_cast<int>(slot.tensors.size());
  }
  return 0;
}

std::string_view DeviceName(DeviceKind device) {
  return device == DeviceKind::kCpu ? "cpu" : "cuda";
}

}  // namespace

const Tensor& KernelContext::In(std::string_view slot, int i) const {
  const Tensor* tensor = TryIn(slot, i);
  PLO_ENFORCE(tensor != nullptr, kInternal, Describe(*op_), ": no input '",
              slot, "' number ", i);
  return *tensor;
}

const Tensor& KernelContext::Out(std::string_view slot, int i) const {
  const Tensor* tensor = TryOut(slot, i);
  PLO_ENFORCE(tensor != nullptr, kInternal, Describe(*op_), ": no output '",
              slot, "' number ", i);
  return *tensor;
}

const Tensor* KernelContext::TryIn(std::string_view slot, int i) const {
  return FindTensor(inputs_, slot, i);
}

const Tensor* KernelContext::TryOut(std::string_view slot, int i) const {
  return FindTensor(outputs_, slot, i);
}

int KernelContext::InCount(std::string_view slot) const {
  return CountTensors(inputs_, slot);
}

int KernelContext::OutCount(std::string_view slot) const {
  return CountTensors(outputs_, slot);
}

KernelRegistry& KernelRegistry::Global() {
  static KernelRegistry* const registry = new KernelRegistry;
  return *registry;
}

void KernelRegistry::Register(std::string_view op_type, DeviceKind device,
                              Kernel kernel) {
  const bool added =
      kernels_.emplace(std::pair(std::string(op_type), device), kernel).second;
  PLO_ENFORCE(added, kFailedPrecondition, "the ", DeviceName(device),
              " kernel of op '", op_type, "' is registered twice");
}

Kernel KernelRegistry::Get(std::string_view op_type, DeviceKind device) const {
  Kernel kernel = Find(op_type, device);
  PLO_ENFORCE(kernel != nullptr, kUnimplemented, "op '", op_type,
              "' has no kernel for device ", DeviceName(device));
  return kernel;
}

Kernel KernelRegistry::Find(std::string_view op_type, DeviceKind device) const {
  auto it = kernels_.find(std::pair(std::string(op_type), device));
  return it == kernels_.end() ? nullptr : it->second;
}

}  // namespace plo
