// Kernels: what runs when a launch comes up on its stream.
#ifndef PLO_FRAMEWORK_RUNTIME_KERNEL_H_
#define PLO_FRAMEWORK_RUNTIME_KERNEL_H_

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/ir/program.h"
#include "framework/runtime/comm.h"
#include "framework/runtime/device.h"

namespace plo {

class HostPool;

// A dense operand, bound once when the executor is created.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kFp32;
  Shape shape;
  int64_t numel = 0;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// What all kernels of an executor share.
struct KernelEnv {
  int rank = 0;
  int world_size = 1;
  int accumulate_steps = 1;
  int64_t seed = 0;
  Comm* comm = nullptr;      // null for one rank without communication
  HostPool* pool = nullptr;  // threads of the host Adam; null: run inline
  DeviceErrorSlot* device_error = nullptr;  // null on the CPU, which throws
};

// Passed to a kernel at each launch. Slot lookups compare a few short strings;
// kernels may do them at every call.
class KernelContext {
 public:
  struct BoundSlot {
    std::string name;
    std::vector<Tensor> tensors;
  };

  KernelContext(const Op* op, const KernelEnv* env,
                std::vector<BoundSlot> inputs, std::vector<BoundSlot> outputs,
                Tensor workspace)
      : op_(op),
        env_(env),
        inputs_(std::move(inputs)),
        outputs_(std::move(outputs)),
        workspace_(std::move(workspace)) {}

  // Throw Internal when the operand is absent.
  const Tensor& In(std::string_view slot, int i = 0) const;
  const Tensor& Out(std::string_view slot, int i = 0) const;
  // Null when absent.
  const Tensor* TryIn(std::string_view slot, int i = 0) const;
  const Tensor* TryOut(std::string_view slot, int i = 0) const;
  int InCount(std::string_view slot) const;
  int OutCount(std::string_view slot) const;

  const Op& op() const { return *op_; }
  const AttrMap& attrs() const { return op_->attrs; }
  const KernelEnv& env() const { return *env_; }
  const StepInfo& step() const { return step_; }
  void* native_stream() const { return native_stream_; }
  // The planned scratch, OpSchema::workspace_bytes long, 256-byte aligned.
  void* workspace() const { return workspace_.data; }
  int64_t workspace_bytes() const { return workspace_.numel; }

  // An object of the kernel's own that lives as long as the executor, made on
  // first use: cached primitives, descriptors. One per launch.
  template <typename T, typename Make>
  T& Cached(Make&& make) {
    if (!cache_) cache_ = std::make_shared<T>(make());
    return *static_cast<T*>(cache_.get());
  }

  // Set by the executor before each call.
  void Begin(const StepInfo& step, void* native_stream) {
    step_ = step;
    native_stream_ = native_stream;
  }

 private:
  const Op* op_;
  const KernelEnv* env_;
  std::vector<BoundSlot> inputs_;
  std::vector<BoundSlot> outputs_;
  Tensor workspace_;  // numel is in bytes
  StepInfo step_;
  void* native_stream_ = nullptr;
  std::shared_ptr<void> cache_;
};

// Runs or enqueues the op. May throw plo::Error; the device carries it to the
// next synchronise point.
using Kernel = void (*)(KernelContext& context);

class KernelRegistry {
 public:
  static KernelRegistry& Global();
  void Register(std::string_view op_type, DeviceKind device, Kernel kernel);
  // Throws Unimplemented naming the op and the device.
  Kernel Get(std::string_view op_type, DeviceKind device) const;
  Kernel Find(std::string_view op_type, DeviceKind device) const;

 private:
  std::map<std::pair<std::string, DeviceKind>, Kernel> kernels_;
};

}  // namespace plo

#endif  // PLO_FRAMEWORK_RUNTIME_KERNEL_H_
