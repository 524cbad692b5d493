#include "paddle_lite_offload/timed_op.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "framework/ir/op_registry.h"

namespace plo {
namespace {

double NowUs() {
  using Us = std::chrono::duration<double, std::micro>;
  return Us(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

TimedOp::TimedOp(Device& device, const KernelEnv& env, const Spec& spec)
    : device_(device),
      env_(env),
      work_(spec.work),
      binder_(program_, [this](const Var& var) { return Allocate(var); }) {
  const OpRegistry& registry = OpRegistry::Global();
  program_.world_size = env.world_size;
  OpSpec op_spec;
  op_spec.type = spec.type;
  op_spec.attrs = spec.attrs;
  op_spec.stream = spec.stream;
  for (const Operand& in : spec.inputs) {
    op_spec.inputs.push_back({in.slot, {AddOperand(in)}});
  }
  for (const Operand& out : spec.outputs) {
    op_spec.outputs.push_back(
        {out.slot,
         {out.same_as.empty() ? AddOperand(out)
                              : program_.GetVar(out.same_as)}});
  }
  Op& op = program_.Append(Section::kMicro, std::move(op_spec));
  NormalizeOp(registry, program_, op);
  CheckInferred(registry, program_, op);
  context_ =
      std::make_unique<KernelContext>(binder_.Bind(op, env_, device.kind()));
  const bool on_host = spec.stream == StreamKind::kHost;
  kernel_ = KernelRegistry::Global().Get(
      op.type, on_host ? DeviceKind::kCpu : device.kind());
  stream_ = device.CreateStream(spec.stream);
}

TimedOp::~TimedOp() {
  try {
    Finish();
  } catch (const Error&) {  // is on its way already
  }
  for (const auto& [place, data] : blocks_) device_.Free(place, data);
}

VarId TimedOp::AddOperand(const Operand& operand) {
  Var var;
  // Outputs may have the name of an input.
  var.name = program_.UniqueName(operand.slot);
  var.dtype = operand.dtype;
  var.shape = operand.shape;
  var.place = operand.place;
  return program_.AddVar(std::move(var));
}

void* TimedOp::Allocate(const Var& var) {
  void* data = device_.Allocate(var.place, var.bytes());
  blocks_.emplace_back(var.place, data);
  if (var.category == MemoryCategory::kWorkspace) return data;
  const std::vector<std::byte> pattern = FillPattern(var, 0);
  const auto bytes = static_cast<int64_t>(pattern.size());
  for (int64_t at = 0; at < var.bytes(); at += bytes) {
    device_.Write(pattern.data(), static_cast<std::byte*>(data) + at,
                  std::min(bytes, var.bytes() - at));
  }
  return data;
}

void TimedOp::Write(const std::string& slot, const void* data, int64_t bytes) {
  device_.Write(data, binder_.Address(program_.GetVar(slot)), bytes);
}

void TimedOp::Launch(bool traced) {
  traced_ = traced;
  Task task;
  task.run = [](void* self, const StepInfo&, void* native_stream) {
    static_cast<TimedOp*>(self)->Run(native_stream);
  };
  task.context = this;
  last_ = device_.Launch(stream_, task);
}

void TimedOp::Run(void* native_stream) {
  context_->Begin({}, native_stream);
  if (!traced_) return kernel_(*context_);
  if (native_stream == nullptr) {  // the work is done on return
    const double start = NowUs();
    kernel_(*context_);
    spans_.push_back({start, NowUs() - start});
    return;
  }
  StreamTracer& tracer = *device_.tracer();
  const int64_t span = tracer.Begin(native_stream, "calibrate");
  kernel_(*context_);
  tracer.End(span);
  pending_.push_back(span);
}

void TimedOp::Finish() { device_.Synchronize(stream_, last_); }

std::vector<StreamTracer::Span> TimedOp::TakeSpans() {
  for (const int64_t id : pending_) {
    StreamTracer::Span span;
    PLO_ENFORCE(device_.tracer()->Take(id, span), kInternal,
                "a finished launch has no times");
    spans_.push_back(span);
  }
  pending_.clear();
  return std::exchange(spans_, {});
}

}  // namespace plo
