#include "tests/operators/op_harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "framework/ir/float16.h"
#include "operators/register_ops.h"

namespace plo::testing {
namespace {

constexpr size_t kGuardBytes = 256;
constexpr unsigned char kCanary = 0xA5;
constexpr unsigned char kFresh = 0xFF;  // NaN in every float dtype

// 256-byte aligned bytes followed by a guard.
class Buffer {
 public:
  Buffer(size_t bytes, unsigned char fill)
      : bytes_(bytes), storage_(bytes + kGuardBytes + 256) {
    void* start = storage_.data();
    size_t space = storage_.size();
    std::align(256, bytes + kGuardBytes, start, space);
    data_ = static_cast<unsigned char*>(start);
    std::memset(data_, fill, bytes);
    std::memset(data_ + bytes, kCanary, kGuardBytes);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  unsigned char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  bool intact() const {
    return std::all_of(data_ + bytes_, data_ + bytes_ + kGuardBytes,
                       [](unsigned char c) { return c == kCanary; });
  }

 private:
  size_t bytes_;
  std::vector<unsigned char> storage_;
  unsigned char* data_;
};

void Encode(const Array& array, unsigned char* data) {
  for (size_t i = 0; i < array.values.size(); ++i) {
    const double v = array.values[i];
    switch (array.dtype) {
      case DType::kFp32:
        reinterpret_cast<float*>(data)[i] = static_cast<float>(v);
        break;
      case DType::kBf16:
        reinterpret_cast<uint16_t*>(data)[i] =
            FloatToBf16Bits(static_cast<float>(v));
        break;
      case DType::kFp16:
        reinterpret_cast<uint16_t*>(data)[i] =
            FloatToFp16Bits(static_cast<float>(v));
        break;
      case DType::kInt32:
        reinterpret_cast<int32_t*>(data)[i] = static_cast<int32_t>(v);
        break;
      case DType::kInt64:
        reinterpret_cast<int64_t*>(data)[i] = static_cast<int64_t>(v);
        break;
      case DType::kBool:
        data[i] = v != 0;
        break;
    }
  }
}

double DecodeAt(DType dtype, const unsigned char* data, size_t i) {
  switch (dtype) {
    case DType::kFp32:
      return reinterpret_cast<const float*>(data)[i];
    case DType::kBf16:
      return Bf16BitsToFloat(reinterpret_cast<const uint16_t*>(data)[i]);
    case DType::kFp16:
      return Fp16BitsToFloat(reinterpret_cast<const uint16_t*>(data)[i]);
    case DType::kInt32:
      return reinterpret_cast<const int32_t*>(data)[i];
    case DType::kInt64:
      return static_cast<double>(reinterpret_cast<const int64_t*>(data)[i]);
    case DType::kBool:
      return data[i];
  }
  return 0;
}

}  // namespace

double RoundTo(DType dtype, double value) {
  const float f = static_cast<float>(value);
  switch (dtype) {
    case DType::kFp32:
      return f;
    case DType::kBf16:
      return Bf16BitsToFloat(FloatToBf16Bits(f));
    case DType::kFp16:
      return Fp16BitsToFloat(FloatToFp16Bits(f));
    default:
      return std::trunc(value);
  }
}

double UnitRoundoff(DType dtype) {
  if (dtype == DType::kBf16) return 0x1p-8;
  if (dtype == DType::kFp16) return 0x1p-11;
  return 0x1p-24;
}

Array MakeArray(DType dtype, Shape shape, std::vector<double> values) {
  PLO_ENFORCE(static_cast<int64_t>(values.size()) == shape.numel(), kInternal,
              values.size(), " values for shape ", shape);
  for (double& v : values) v = RoundTo(dtype, v);
  return {dtype, std::move(shape), std::move(values)};
}

Array RandomArray(DType dtype, Shape shape, uint64_t seed, double low,
                  double high) {
  std::mt19937_64 engine(seed);
  std::uniform_real_distribution<double> uniform(low, high);
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  for (double& v : values) v = uniform(engine);
  return MakeArray(dtype, std::move(shape), std::move(values));
}

Array RandomInts(DType dtype, Shape shape, uint64_t seed, int64_t low,
                 int64_t high) {
  std::mt19937_64 engine(seed);
  std::uniform_int_distribution<int64_t> uniform(low, high - 1);
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  for (double& v : values) v = static_cast<double>(uniform(engine));
  return MakeArray(dtype, std::move(shape), std::move(values));
}

Array ScalarArray(DType dtype, double value) {
  return MakeArray(dtype, {1}, {value});
}

AttrMap Attrs(std::vector<std::pair<std::string, Attr>> values) {
  AttrMap attrs;
  for (auto& [name, value] : values) attrs.Set(name, std::move(value));
  return attrs;
}

// --- OpHarness ---

struct OpHarness::Impl {
  DeviceKind device;
  size_t misalign = 0;
  Program program;
  std::map<VarId, std::shared_ptr<Buffer>> buffers;

  Tensor Bind(VarId id) {
    const Var& var = program.var(id);
    auto it = buffers.find(id);
    if (it == buffers.end()) {
      it = buffers
               .emplace(id, std::make_shared<Buffer>(
                                static_cast<size_t>(var.bytes()), kFresh))
               .first;
    }
    return {it->second->data(), var.dtype, var.shape, var.shape.numel()};
  }

  void Call(const Op& op, const KernelEnv& env, const StepInfo& step,
            Buffer& workspace);
  void CallOnCuda(const Op& op, const KernelEnv& env, const StepInfo& step,
                  Buffer& workspace);
  // Binds the operands, each at where(buffer), and calls the kernel.
  template <typename Where>
  void CallWith(Kernel kernel, const Op& op, const KernelEnv& env,
                const StepInfo& step, Buffer& workspace, void* stream,
                const Where& where);
};

OpHarness::OpHarness(DeviceKind device) : impl_(std::make_unique<Impl>()) {
  impl_->device = device;
  RegisterBuiltinOps();
}
OpHarness::~OpHarness() = default;
Program& OpHarness::program() { return impl_->program; }

VarId OpHarness::AddInput(const std::string& name, const Array& value,
                          Place place) {
  Var var;
  var.name = impl_->program.UniqueName(name);
  var.dtype = value.dtype;
  var.shape = value.shape;
  var.kind = VarKind::kState;
  var.place = place;
  const VarId id = impl_->program.AddVar(std::move(var));
  const Tensor tensor = impl_->Bind(id);
  Encode(value, tensor.as<unsigned char>());
  return id;
}

Op& OpHarness::AddOp(OpSpec spec, bool inplace) {
  Program& program = impl_->program;
  const OpRegistry& registry = OpRegistry::Global();
  Place place = Place::kDevice;
  for (const Slot& slot : spec.inputs) {
    for (VarId id : slot.vars) place = program.var(id).place;
  }
  // Outputs asked for by kNoId get their types from the shape rule below.
  std::vector<VarId> made;
  for (Slot& slot : spec.outputs) {
    for (VarId& id : slot.vars) {
      if (id != kNoId) continue;
      Var var;
      var.name = program.UniqueName(slot.name);
      var.place = place;
      id = program.AddVar(std::move(var));
      made.push_back(id);
    }
  }
  Op& op = program.Append(Section::kMicro, std::move(spec));
  NormalizeOp(registry, program, op);
  const OpSchema& schema = registry.Get(op.type);
  size_t inferred = 0;
  for (const auto& result : InferOp(registry, program, op)) {
    const std::vector<VarId>& vars = op.Out(result.slot);
    if (result.index >= static_cast<int>(vars.size())) continue;
    ++inferred;
    const VarId id = vars[static_cast<size_t>(result.index)];
    if (std::count(made.begin(), made.end(), id) == 0) continue;
    program.mutable_var(id).dtype = result.dtype;
    program.mutable_var(id).shape = result.shape;
    // Outputs that share an input's bytes.
    auto shared = schema.aliases;
    if (inplace) {
      shared.insert(shared.end(), schema.inplace.begin(), schema.inplace.end());
    }
    for (const auto& [out, in] : shared) {
      if (out != result.slot || result.index != 0 || !op.HasIn(in)) continue;
      const VarId source = op.In(in)[0];
      if (program.var(source).bytes() != program.var(id).bytes()) continue;
      impl_->Bind(source);
      impl_->buffers[id] = impl_->buffers[source];
      break;
    }
  }
  size_t outputs = 0;
  for (const Slot& slot : op.outputs) outputs += slot.vars.size();
  PLO_ENFORCE(inferred == outputs, kInternal, "the shape rule of '", op.type,
              "' sets ", inferred, " of ", outputs, " outputs");
  CheckInferred(registry, program, op);
  return op;
}

Op& OpHarness::AddCase(const OpCase& c) {
  impl_->misalign = c.misalign;
  OpSpec spec;
  spec.type = c.type;
  spec.attrs = c.attrs;
  spec.random_id = c.random_id;
  if (c.place == Place::kPinned) spec.stream = StreamKind::kHost;
  for (const auto& [slot, arrays] : c.inputs) {
    Slot s{slot, {}};
    for (const Array& array : arrays) {
      s.vars.push_back(AddInput(slot, array, c.place));
    }
    spec.inputs.push_back(std::move(s));
  }
  for (const std::string& text : c.outputs) {
    const size_t star = text.find('*');
    const size_t count =
        star == std::string::npos ? 1 : std::stoul(text.substr(star + 1));
    spec.outputs.push_back(
        {text.substr(0, star), std::vector<VarId>(count, kNoId)});
  }
  for (const auto& [out, in] : c.same_var) {
    for (Slot& slot : spec.outputs) {
      if (slot.name != out) continue;
      for (const Slot& source : spec.inputs) {
        if (source.name == in) slot.vars = source.vars;
      }
    }
  }
  return AddOp(std::move(spec), c.inplace);
}

template <typename Where>
void OpHarness::Impl::CallWith(Kernel kernel, const Op& op,
                               const KernelEnv& env, const StepInfo& step,
                               Buffer& workspace, void* stream,
                               const Where& where) {
  const auto bind = [&](const std::vector<Slot>& slots) {
    std::vector<KernelContext::BoundSlot> bound;
    for (const Slot& slot : slots) {
      KernelContext::BoundSlot b{slot.name, {}};
      for (VarId id : slot.vars) {
        b.tensors.push_back(Bind(id));
        b.tensors.back().data = where(*buffers[id]);
      }
      bound.push_back(std::move(b));
    }
    return bound;
  };
  const auto bytes = static_cast<int64_t>(workspace.bytes());
  KernelContext context(&op, &env, bind(op.inputs), bind(op.outputs),
                        {where(workspace), DType::kBool, Shape{bytes}, bytes});
  context.Begin(step, stream);
  kernel(context);
}

void OpHarness::Impl::Call(const Op& op, const KernelEnv& env,
                           const StepInfo& step, Buffer& workspace) {
  if (device == DeviceKind::kCuda && op.stream != StreamKind::kHost) {
    return CallOnCuda(op, env, step, workspace);
  }
  CallWith(KernelRegistry::Global().Get(op.type, DeviceKind::kCpu), op, env,
           step, workspace, nullptr,
           [](const Buffer& buffer) { return buffer.data(); });
}

void OpHarness::Impl::CallOnCuda(const Op& op, const KernelEnv& env,
                                 const StepInfo& step, Buffer& workspace) {
  CudaRunner& runner = CudaRunner::Get();
  const Kernel kernel =
      KernelRegistry::Global().Find(op.type, DeviceKind::kCuda);
  if (kernel == nullptr) SkipTest(op.type + " has no CUDA kernel");
  // Operands with the canaries behind them.
  std::vector<CudaRunner::HostBytes> operands;
  std::map<const Buffer*, size_t> index;
  const auto add = [&](const Buffer& buffer, size_t misaligned) {
    if (!index.emplace(&buffer, operands.size()).second) return;
    operands.push_back(
        {buffer.data(), buffer.bytes() + kGuardBytes, misaligned});
  };
  add(workspace, 0);
  for (const auto* slots : {&op.inputs, &op.outputs}) {
    for (const Slot& slot : *slots) {
      for (VarId id : slot.vars) {
        const Tensor tensor = Bind(id);
        add(*buffers[id], misalign * static_cast<size_t>(SizeOf(tensor.dtype)));
      }
    }
  }
  const DeviceErrorSlot error =
      runner.Run(operands, [&](const std::vector<void*>& addresses,
                               DeviceErrorSlot* slot, void* stream) {
        KernelEnv cuda_env = env;
        cuda_env.device_error = slot;
        CallWith(kernel, op, cuda_env, step, workspace, stream,
                 [&](const Buffer& b) { return addresses[index.at(&b)]; });
      });
  if (error.kind == DeviceErrorSlot::kNone) return;
  EXPECT_EQ(error.op, op.id);
  const bool token = op.type.rfind("embedding", 0) == 0;
  PLO_THROW(kInvalidArgument, token ? "token id " : "label ", error.value,
            " at position ", error.element, " is out of range [0, ",
            error.bound, ")");
}

void OpHarness::Run(const Op& op, const StepInfo& step, const KernelEnv& env) {
  const OpSchema& schema = OpRegistry::Global().Get(op.type);
  Program& program = impl_->program;
  for (const auto* slots : {&op.inputs, &op.outputs}) {
    for (const Slot& slot : *slots) {
      for (VarId id : slot.vars) impl_->Bind(id);
    }
  }

  // What must not change: input buffers that are not output buffers.
  std::map<Buffer*, std::vector<unsigned char>> before;
  for (const Slot& slot : op.inputs) {
    for (VarId id : slot.vars) {
      Buffer* buffer = impl_->buffers[id].get();
      before[buffer] = {buffer->data(), buffer->data() + buffer->bytes()};
    }
  }
  for (const Slot& slot : op.outputs) {
    for (VarId id : slot.vars) before.erase(impl_->buffers[id].get());
  }

  const int64_t workspace_bytes =
      schema.WorkspaceBytes(OpView(program, op), impl_->device);
  Buffer workspace(static_cast<size_t>(workspace_bytes), kCanary);
  impl_->Call(op, env, step, workspace);

  EXPECT_TRUE(workspace.intact()) << op.type << " wrote past its workspace";
  if (workspace_bytes > 0) {
    EXPECT_NE(workspace.data()[workspace_bytes - 1], kCanary)
        << op.type << " leaves the end of its workspace of " << workspace_bytes
        << " bytes unused";
  }
  for (const Slot& slot : op.outputs) {
    for (VarId id : slot.vars) {
      EXPECT_TRUE(impl_->buffers[id]->intact())
          << op.type << " wrote past output " << slot.name;
    }
  }
  for (const auto& [buffer, bytes] : before) {
    EXPECT_TRUE(bytes.empty() ||
                std::memcmp(bytes.data(), buffer->data(), bytes.size()) == 0)
        << op.type << " changed an input";
  }
}

Array OpHarness::Read(VarId id) const {
  const Tensor tensor = impl_->Bind(id);
  Array array{tensor.dtype, tensor.shape, {}};
  array.values.resize(static_cast<size_t>(tensor.numel));
  for (size_t i = 0; i < array.values.size(); ++i) {
    array.values[i] = DecodeAt(tensor.dtype, tensor.as<unsigned char>(), i);
  }
  return array;
}

namespace {

SlotArrays ReadOutputs(const OpHarness& harness, const Op& op) {
  SlotArrays result;
  for (const Slot& slot : op.outputs) {
    for (VarId id : slot.vars) result[slot.name].push_back(harness.Read(id));
  }
  return result;
}

template <typename Fn>
std::string MessageOf(Fn&& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

SlotArrays RunOp(const OpCase& c, DeviceKind device) {
  OpHarness harness(device);
  Op& op = harness.AddCase(c);
  harness.Run(op, c.step, c.env);
  return ReadOutputs(harness, op);
}

std::string ErrorOf(const OpCase& c) {
  return MessageOf([&] {
    OpHarness harness;
    harness.AddCase(c);
  });
}

std::string RunErrorOf(const OpCase& c) {
  OpHarness harness;
  Op& op = harness.AddCase(c);
  return MessageOf([&] { harness.Run(op, c.step, c.env); });
}

void ExpectNear(const Array& got, const std::vector<double>& want,
                double relative, double absolute, const std::string& what) {
  ASSERT_EQ(got.values.size(), want.size()) << what;
  int reported = 0;
  for (size_t i = 0; i < want.size() && reported < 5; ++i) {
    const double bound = absolute + relative * std::abs(want[i]);
    if (std::abs(got.values[i] - want[i]) <= bound) continue;
    ADD_FAILURE() << what << ": element " << i << " is " << got.values[i]
                  << ", expected " << want[i] << " within " << bound;
    ++reported;
  }
}

void ExpectSame(const Array& got, const Array& want, const std::string& what) {
  EXPECT_EQ(got.dtype, want.dtype) << what;
  ASSERT_EQ(got.shape, want.shape) << what;
  int reported = 0;
  for (size_t i = 0; i < want.values.size() && reported < 5; ++i) {
    const double a = got.values[i], b = want.values[i];
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    ADD_FAILURE() << what << ": element " << i << " is " << a << ", expected "
                  << b;
    ++reported;
  }
}

}  // namespace plo::testing
