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
#include "operators/operand_binder.h"
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
      : device_(device),
        binder_(program_, [this](const Var& var) { return Allocate(var); }) {
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
    if (schema.cost) flops_ = schema.cost(view).flops;
    context_ =
        std::make_unique<KernelContext>(binder_.Bind(op, env_, device_.kind));
    context_->Begin({}, device_.stream);
    kernel_ = KernelRegistry::Global().Get(op.type, device_.kind);
    operand_bytes_ = OperandBytes(view);
  }

  OpRunner(const OpRunner&) = delete;

  void Run() { kernel_(*context_); }
  double flops() const { return flops_; }
  // Read and written by a kernel that touches each operand once.
  double operand_bytes() const { return operand_bytes_; }
  int64_t workspace_bytes() const { return context_->workspace_bytes(); }
  // Bytes of an operand, such as "x" or "out_lse".
  void* Data(const std::string& name) {
    return binder_.Address(program_.GetVar(name));
  }

 private:
  VarId Add(const std::string& name, DType dtype, const Shape& shape) {
    Var var;
    var.name = name;
    var.dtype = dtype;
    var.shape = shape;
    return program_.AddVar(std::move(var));
  }

  void* Allocate(const Var& var) {
    const auto size = static_cast<size_t>(var.bytes());
    blocks_.emplace_back(device_.allocate(std::max<size_t>(size, 1)),
                         device_.free);
    auto* data = static_cast<std::byte*>(blocks_.back().get());
    if (var.category == MemoryCategory::kWorkspace) return data;
    const std::vector<std::byte> pattern = FillPattern(var, -0.5f);
    for (size_t at = 0; at < size; at += pattern.size()) {
      device_.upload(data + at, pattern.data(),
                     std::min(pattern.size(), size - at));
    }
    return data;
  }

  const RunnerDevice device_;
  Program program_;
  KernelEnv env_;
  std::vector<std::unique_ptr<void, void (*)(void*)>> blocks_;
  OperandBinder binder_;
  std::unique_ptr<KernelContext> context_;
  Kernel kernel_ = nullptr;
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
