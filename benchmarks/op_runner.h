// Runs one op's kernel again and again, for benchmarks.
#ifndef PLO_BENCHMARKS_OP_RUNNER_H_
#define PLO_BENCHMARKS_OP_RUNNER_H_

#include <omp.h>
#include <time.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "framework/ir/op_registry.h"
#include "framework/runtime/kernel.h"
#include "operators/convert.h"
#include "operators/register_ops.h"
#include "operators/schema_util.h"

namespace plo {

struct OperandSpec {
  std::string slot;
  DType dtype = DType::kFp32;
  Shape shape;
};

// Where operands live and kernels run.
struct RunnerDevice {
  DeviceKind kind = DeviceKind::kCpu;
  void* (*allocate)(size_t bytes) = [](size_t bytes) {
    return std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  };
  void (*free)(void* data) = std::free;
  void (*upload)(void* target, const void* source, size_t bytes) =
      [](void* target, const void* source, size_t bytes) {
        std::memcpy(target, source, bytes);
      };
  void* stream = nullptr;
};

// Inputs hold small varying values; outputs with the name of an input slot
// given in `same_as` share its var.
class OpRunner {
 public:
  OpRunner(std::string type, const std::vector<OperandSpec>& inputs,
           const std::vector<std::string>& outputs, AttrMap attrs,
           const std::vector<std::pair<std::string, std::string>>& same_as = {},
           const RunnerDevice& device = {})
      : device_(device) {
    RegisterBuiltinOps();
    const OpRegistry& registry = OpRegistry::Global();
    OpSpec spec;
    spec.type = std::move(type);
    spec.attrs = std::move(attrs);
    for (const OperandSpec& in : inputs) {
      spec.inputs.push_back({in.slot, {Add(in.slot, in.dtype, in.shape)}});
    }
    for (const std::string& slot : outputs) {
      VarId id = kNoId;
      for (const auto& [out, in] : same_as) {
        if (out == slot) id = program_.GetVar(in);
      }
      if (id == kNoId) id = Add("out_" + slot, DType::kFp32, Shape{0});
      spec.outputs.push_back({slot, {id}});
    }
    Op& op = program_.Append(Section::kMicro, std::move(spec));
    NormalizeOp(registry, program_, op);
    for (const auto& result : InferOp(registry, program_, op)) {
      if (op.Out(result.slot).empty()) continue;
      Var& var = program_.mutable_var(op.Out1(result.slot));
      var.dtype = result.dtype;
      var.shape = result.shape;
    }
    const OpSchema& schema = registry.Get(op.type);
    const OpView view(program_, op);
    workspace_bytes_ = schema.WorkspaceBytes(view, device_.kind);
    if (schema.cost) flops_ = schema.cost(view).flops;
    context_ = std::make_unique<KernelContext>(
        &op, &env_, Bind(op.inputs), Bind(op.outputs),
        Tensor{Allocate(workspace_bytes_), DType::kBool, Shape{},
               workspace_bytes_});
    context_->Begin({}, device_.stream);
    kernel_ = KernelRegistry::Global().Get(op.type, device_.kind);
    operand_bytes_ = OperandBytes(view);
  }

  void Run() { kernel_(*context_); }
  double flops() const { return flops_; }
  // Read and written by a kernel that touches each operand once.
  double operand_bytes() const { return operand_bytes_; }
  int64_t workspace_bytes() const { return workspace_bytes_; }
  // Bytes of an operand, such as "x" or "out_lse".
  void* Data(const std::string& name) {
    return data_[static_cast<size_t>(program_.GetVar(name))];
  }

 private:
  VarId Add(const std::string& name, DType dtype, const Shape& shape) {
    Var var;
    var.name = name;
    var.dtype = dtype;
    var.shape = shape;
    return program_.AddVar(std::move(var));
  }

  void* Allocate(int64_t bytes) {
    const size_t size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
    blocks_.emplace_back(device_.allocate(size), device_.free);
    return blocks_.back().get();
  }

  // The same pattern over and over: making new values takes longer.
  void Fill(const Var& var, void* data) {
    const int64_t period = std::min(var.shape.numel(), int64_t{1} << 20);
    std::vector<float> values(static_cast<size_t>(period));
    uint32_t state = 12345;
    for (float& v : values) {
      state = state * 1664525u + 1013904223u;
      v = static_cast<float>(state >> 8) * 0x1p-24f - 0.5f;
    }
    const int64_t size = SizeOf(var.dtype);
    std::vector<std::byte> pattern(static_cast<size_t>(period * size));
    if (IsFloat(var.dtype)) {
      ConvertFromFloat(var.dtype, values.data(), pattern.data(), period);
    }
    for (int64_t i = 0; i < var.bytes(); i += period * size) {
      device_.upload(
          static_cast<std::byte*>(data) + i, pattern.data(),
          static_cast<size_t>(std::min(period * size, var.bytes() - i)));
    }
  }

  std::vector<KernelContext::BoundSlot> Bind(const std::vector<Slot>& slots) {
    std::vector<KernelContext::BoundSlot> bound;
    for (const Slot& slot : slots) {
      KernelContext::BoundSlot b{slot.name, {}};
      for (VarId id : slot.vars) {
        const Var& var = program_.var(id);
        const size_t index = static_cast<size_t>(id);
        if (data_.size() <= index) data_.resize(index + 1, nullptr);
        if (data_[index] == nullptr) {
          data_[index] = Allocate(var.bytes());
          Fill(var, data_[index]);
        }
        b.tensors.push_back(
            {data_[index], var.dtype, var.shape, var.shape.numel()});
      }
      bound.push_back(std::move(b));
    }
    return bound;
  }

  const RunnerDevice device_;
  Program program_;
  KernelEnv env_;
  std::vector<std::unique_ptr<void, void (*)(void*)>> blocks_;
  std::vector<void*> data_;
  std::unique_ptr<KernelContext> context_;
  Kernel kernel_ = nullptr;
  int64_t workspace_bytes_ = 0;
  double flops_ = 0;
  double operand_bytes_ = 0;
};

// With one OpenMP thread the processor time, which other processes do not
// disturb; else the wall clock.
inline double Now() {
  timespec time;
  clock_gettime(
      omp_get_max_threads() == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC,
      &time);
  return static_cast<double>(time.tv_sec) +
         static_cast<double>(time.tv_nsec) * 1e-9;
}

// Seconds per call of each function: the fastest of `rounds` batches of about
// 10 ms, taken in turns so that a slow moment hits all alike.
inline std::vector<double> BestSeconds(
    const std::vector<std::function<void()>>& functions, int rounds = 15) {
  const auto seconds = [](const std::function<void()>& fn, int calls) {
    const double begin = Now();
    for (int i = 0; i < calls; ++i) fn();
    return Now() - begin;
  };
  std::vector<int> calls;
  for (const auto& fn : functions) {
    fn();
    calls.push_back(
        std::clamp(static_cast<int>(0.01 / seconds(fn, 1)), 1, 10000));
  }
  std::vector<double> best(functions.size(), 1e30);
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < functions.size(); ++i) {
      best[i] = std::min(best[i], seconds(functions[i], calls[i]) / calls[i]);
    }
  }
  return best;
}

}  // namespace plo

#endif  // PLO_BENCHMARKS_OP_RUNNER_H_
