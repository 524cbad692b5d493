#include "paddle_lite_offload/timed_op.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "framework/ir/op_registry.h"
#include "operators/convert.h"

namespace plo {
namespace {

double NowUs() {
  using Us = std::chrono::duration<double, std::micro>;
  return Us(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The same numbers over and over: making new ones takes longer.
void Fill(Device& device, const Var& var, void* data) {
  const int64_t period = std::min(var.shape.numel(), int64_t{1} << 20);
  const int64_t bytes = period * SizeOf(var.dtype);
  std::vector<float> values(static_cast<size_t>(period));
  uint32_t state = 1;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = (static_cast<float>(state >> 8) + 1) * 0x1p-25f;
  }
  std::vector<std::byte> pattern(static_cast<size_t>(bytes));
  ConvertFromFloat(var.dtype, values.data(), pattern.data(), period);
  for (int64_t at = 0; at < var.bytes(); at += bytes) {
    device.Write(pattern.data(), static_cast<std::byte*>(data) + at,
                 std::min(bytes, var.bytes() - at));
  }
}

}  // namespace

TimedOp::TimedOp(Device& device, const KernelEnv& env, const Spec& spec)
    : device_(device), env_(env), work_(spec.work) {
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
  const OpSchema& schema = registry.Get(op.type);
  const bool on_host = spec.stream == StreamKind::kHost;
  const int64_t scratch =
      schema.WorkspaceBytes(OpView(program_, op), device.kind());
  Tensor workspace{nullptr, DType::kBool, Shape{}, scratch};
  if (scratch > 0) {
    workspace.data =
        Allocate(on_host ? Place::kPinned : Place::kDevice, scratch);
  }
  context_ = std::make_unique<KernelContext>(
      &op, &env_, Bind(op.inputs), Bind(op.outputs), std::move(workspace));
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

void* TimedOp::Allocate(Place place, int64_t bytes) {
  blocks_.emplace_back(place, device_.Allocate(place, bytes));
  return blocks_.back().second;
}

std::vector<KernelContext::BoundSlot> TimedOp::Bind(
    const std::vector<Slot>& slots) {
  std::vector<KernelContext::BoundSlot> bound;
  for (const Slot& slot : slots) {
    bound.push_back({slot.name, {}});
    for (const VarId id : slot.vars) {
      const Var& var = program_.var(id);
      const auto index = static_cast<size_t>(id);
      if (data_.size() <= index) data_.resize(index + 1, nullptr);
      if (data_[index] == nullptr) {
        data_[index] = Allocate(var.place, var.bytes());
        Fill(device_, var, data_[index]);
      }
      bound.back().tensors.push_back(
          {data_[index], var.dtype, var.shape, var.shape.numel()});
    }
  }
  return bound;
}

void TimedOp::Write(const std::string& slot, const void* data, int64_t bytes) {
  device_.Write(data, data_[static_cast<size_t>(program_.GetVar(slot))], bytes);
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
