// The ops of an optimizer step on the CPU and on a GPU, bit for bit: statistics
// of the gradients, step record, update, loss scale.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "framework/ir/float16.h"
#include "framework/ir/op_registry.h"
#include "framework/runtime/device.h"
#include "framework/runtime/kernel.h"
#include "operators/operand_binder.h"
#include "operators/register_ops.h"
#include "operators/step_record.h"
#include "tests/operators/test_util.h"

namespace plo::testing {
namespace {

using Bytes = std::vector<std::byte>;

// A program's vars and ops on one device; the ops run in order, one at a time.
class DeviceProgram {
 public:
  DeviceProgram(const Program& program, const std::vector<const Op*>& ops,
                std::unique_ptr<Device> device, const KernelEnv& env,
                int64_t misalign = 0)
      : program_(program),
        device_(std::move(device)),
        env_(env),
        misalign_(misalign),
        stream_(device_->CreateStream(StreamKind::kCompute)),
        binder_(program, [this](const Var& var) { return Allocate(var); }) {
    const KernelRegistry& kernels = KernelRegistry::Global();
    for (const Op* op : ops) {
      launches_.push_back(std::make_unique<Launch>(
          Launch{binder_.Bind(*op, env_, device_->kind()),
                 kernels.Get(op->type, device_->kind())}));
    }
  }
  ~DeviceProgram() {
    for (void* data : allocated_) device_->Free(Place::kDevice, data);
  }

  void Write(VarId var, const Bytes& bytes) {
    device_->Write(bytes.data(), binder_.Address(var),
                   static_cast<int64_t>(bytes.size()));
  }
  Bytes Read(VarId var) {
    Bytes bytes(static_cast<size_t>(program_.var(var).bytes()));
    device_->Read(binder_.Address(var), bytes.data(),
                  static_cast<int64_t>(bytes.size()));
    return bytes;
  }
  void Run() {
    Ticket last = 0;
    for (const auto& launch : launches_) {
      last = device_->Launch(stream_, {RunLaunch, launch.get(), {}, true});
    }
    device_->Synchronize(stream_, last);
  }

 private:
  struct Launch {
    KernelContext context;
    Kernel kernel;
  };

  static void RunLaunch(void* data, const StepInfo& step, void* stream) {
    Launch* launch = static_cast<Launch*>(data);
    launch->context.Begin(step, stream);
    launch->kernel(launch->context);
  }

  void* Allocate(const Var& var) {
    if (var.bytes() == 0) return nullptr;
    const bool workspace = var.category == MemoryCategory::kWorkspace;
    const int64_t skipped = workspace ? 0 : misalign_ * SizeOf(var.dtype);
    allocated_.push_back(
        device_->Allocate(Place::kDevice, var.bytes() + skipped));
    return static_cast<std::byte*>(allocated_.back()) + skipped;
  }

  const Program& program_;
  const std::unique_ptr<Device> device_;
  const KernelEnv env_;
  const int64_t misalign_;  // elements by which vars miss an aligned address
  const StreamId stream_;
  std::vector<void*> allocated_;
  OperandBinder binder_;
  std::vector<std::unique_ptr<Launch>> launches_;
};

// --- Values ---

// Ordinary values, subnormals, zeros and huge ones; all finite.
float Nasty(std::mt19937& rng) {
  switch (rng() % 8) {
    case 0: {
      const uint32_t bits = static_cast<uint32_t>(rng());
      const float value = std::bit_cast<float>(bits);
      return std::isfinite(value) ? value : 1.0f;
    }
    case 1:
      return std::bit_cast<float>(static_cast<uint32_t>(rng() % 0x00800000));
    case 2:
      return 0.0f;
    case 3:
      return std::ldexp(1.0f + static_cast<float>(rng() % 1000),
                        static_cast<int>(rng() % 200) - 120);
    default:
      return std::ldexp(static_cast<float>(rng() % 20001) - 10000, -14);
  }
}

template <typename T>
Bytes BytesOf(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

Bytes Encode(DType dtype, const std::vector<float>& values) {
  if (dtype == DType::kFp32) return BytesOf(values);
  std::vector<uint16_t> bits;
  for (const float value : values) {
    bits.push_back(dtype == DType::kBf16 ? FloatToBf16Bits(value)
                                         : FloatToFp16Bits(value));
  }
  return BytesOf(bits);
}

float FloatAt(DType dtype, const Bytes& bytes, size_t i) {
  if (dtype == DType::kFp32) {
    float value;
    std::memcpy(&value, bytes.data() + 4 * i, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, bytes.data() + 2 * i, 2);
  return dtype == DType::kBf16 ? Bf16BitsToFloat(bits) : Fp16BitsToFloat(bits);
}

// Equal bits; which NaN it is depends on the processor.
void ExpectSameBits(DType dtype, const Bytes& cpu, const Bytes& gpu,
                    const std::string& what) {
  ASSERT_EQ(cpu.size(), gpu.size()) << what;
  if (cpu == gpu) return;
  const size_t element = static_cast<size_t>(SizeOf(dtype));
  for (size_t i = 0; i < cpu.size() / element; ++i) {
    if (std::memcmp(&cpu[i * element], &gpu[i * element], element) == 0) {
      continue;
    }
    ASSERT_TRUE(IsFloat(dtype)) << what << ", element " << i;
    const float a = FloatAt(dtype, cpu, i);
    const float b = FloatAt(dtype, gpu, i);
    ASSERT_TRUE(std::isnan(a) && std::isnan(b))
        << what << ", element " << i << ": " << a << " on the CPU, " << b
        << " on the GPU";
  }
}

// --- The step ---

// Segments of more than one block of grad_stats, of one element and of none; at
// odd places, so that no vector access is whole at their ends.
struct Bucket {
  static constexpr int64_t kShard = 50000;
  static constexpr int64_t kRanks = 2;
  std::vector<int64_t> begins = {0, 301, 40003, 40004, 41216, 99991};
  std::vector<int64_t> numels = {300, 39000, 1, 0, 50000, 8};
};

struct Case {
  const char* name;
  const char* type;
  DType grad, param;
  const char* clip_mode;
  double clip;
  bool decoupled;
  int64_t misalign = 0;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class OptimizerStep {
 public:
  explicit OptimizerStep(const Case& c) : case_(c) {
    RegisterBuiltinOps();
    program_.world_size = Bucket::kRanks;
    const int64_t segments = static_cast<int64_t>(bucket_.begins.size());
    const Shape shard{Bucket::kShard};
    grad = Add("grad", c.grad, shard);
    param = Add("param", c.param, shard);
    master = Add("master", DType::kFp32, shard);
    moment1 = Add("moment1", DType::kFp32, shard);
    moment2 = Add("moment2", DType::kFp32, shard);
    stats = Add("stats", DType::kFp32, Shape{segments + 1});
    applied = Add("applied", DType::kInt64, Shape{1});
    lr = Add("lr", DType::kFp32, Shape{1});
    scale = Add("scale", DType::kFp32, Shape{1});
    good = Add("good", DType::kInt32, Shape{1});
    bad = Add("bad", DType::kInt32, Shape{1});
    record = Add("record", DType::kFp32, Shape{kStepRecordSize});
    AddStats();
    AddRecord(segments);
    AddUpdate(segments);
    AddScaling();
  }

  const Program& program() const { return program_; }
  const std::vector<const Op*>& ops() const { return ops_; }

  VarId grad, param, master, moment1, moment2, stats, applied, lr, scale, good,
      bad, record;

 private:
  VarId Add(const char* name, DType dtype, Shape shape) {
    Var var;
    var.name = name;
    var.dtype = dtype;
    var.shape = std::move(shape);
    var.kind = VarKind::kState;
    return program_.AddVar(std::move(var));
  }
  void AddOp(const char* type, std::vector<Slot> inputs,
             std::vector<Slot> outputs, AttrMap attrs) {
    OpSpec spec;
    spec.type = type;
    spec.inputs = std::move(inputs);
    spec.outputs = std::move(outputs);
    spec.attrs = std::move(attrs);
    Op& op = program_.Append(Section::kUpdate, std::move(spec));
    NormalizeOp(OpRegistry::Global(), program_, op);
    CheckInferred(OpRegistry::Global(), program_, op);
    ops_.push_back(&op);
  }

  void AddStats() {
    AddOp("grad_stats", {{"x", {grad}}, {"scale", {scale}}},
          {{"stats", {stats}}},
          Attrs({{"sliced", Attr(true)},
                 {"slice_numel", Int(Bucket::kShard)},
                 {"segment_begins", Ints(bucket_.begins)},
                 {"segment_numels", Ints(bucket_.numels)}}));
  }
  void AddRecord(int64_t segments) {
    std::vector<int64_t> need_clip(static_cast<size_t>(segments), 1);
    need_clip[1] = 0;
    need_clip.push_back(-1);
    AddOp("step_record",
          {{"stats", {stats}},
           {"applied_step", {applied}},
           {"lr", {lr}},
           {"scale", {scale}}},
          {{"record", {record}}, {"applied_step", {applied}}},
          Attrs({{"clip_mode", Str(case_.clip_mode)},
                 {"clip_norm", case_.clip},
                 {"need_clip", Ints(need_clip)},
                 {"beta1", 0.9},
                 {"beta2", 0.999}}));
  }
  void AddUpdate(int64_t segments) {
    const bool adam = std::string(case_.type) == "adamw";
    const size_t n = static_cast<size_t>(segments);
    std::vector<double> decay(n, 1.0), lr_scale(n, 1.0);
    std::vector<int64_t> need_clip(n, 1);
    decay[0] = 0;
    lr_scale[4] = 0.37;
    need_clip[1] = 0;
    std::vector<Slot> inputs = {{"grad", {grad}},
                                {"record", {record}},
                                {"stats", {stats}},
                                {"master", {master}},
                                {"moment1", {moment1}}};
    std::vector<Slot> outputs = {
        {"master", {master}}, {"moment1", {moment1}}, {"param", {param}}};
    AttrMap attrs = Attrs({{"weight_decay", 0.1},
                           {"decoupled", Attr(case_.decoupled)},
                           {"sliced", Attr(true)},
                           {"segment_begins", Ints(bucket_.begins)},
                           {"segment_numels", Ints(bucket_.numels)},
                           {"segment_weight_decay", Floats(decay)},
                           {"segment_lr_scale", Floats(lr_scale)},
                           {"segment_need_clip", Ints(need_clip)},
                           {"clip_mode", Str(case_.clip_mode)},
                           {"clip_norm", case_.clip}});
    if (adam) {
      inputs.push_back({"moment2", {moment2}});
      outputs.push_back({"moment2", {moment2}});
    } else {
      attrs.Set("nesterov", Attr(true));
    }
    AddOp(case_.type, std::move(inputs), std::move(outputs), std::move(attrs));
  }
  void AddScaling() {
    AddOp("update_loss_scaling",
          {{"record", {record}},
           {"scale", {scale}},
           {"good", {good}},
           {"bad", {bad}}},
          {{"scale", {scale}}, {"good", {good}}, {"bad", {bad}}},
          Attrs({{"incr_ratio", 1.7}, {"incr_every_n", Int(13)}}));
  }

  const Case case_;
  const Bucket bucket_;
  Program program_;
  std::vector<const Op*> ops_;
};

class OptimizerOnGpu : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr int kSteps = 1000;
  static constexpr int kPeriod = 50;  // of comparing all of the state

  void SetUp() override {
    if (!CudaDeviceAvailable()) GTEST_SKIP() << "no usable GPU";
  }
};

TEST_P(OptimizerOnGpu, HasTheBitsOfTheCpuOverAThousandSteps) {
  const Case& c = GetParam();
  const OptimizerStep step(c);
  for (const int rank : {0, 1}) {
    KernelEnv env;
    env.rank = rank;
    env.world_size = Bucket::kRanks;
    DeviceProgram cpu(step.program(), step.ops(), CreateCpuDevice(), env);
    DeviceProgram gpu(step.program(), step.ops(), CreateCudaDevice({}), env,
                      c.misalign);
    const auto write = [&](VarId var, const Bytes& bytes) {
      cpu.Write(var, bytes);
      gpu.Write(var, bytes);
    };
    const auto compare = [&](VarId id, int at) {
      const Var& var = step.program().var(id);
      ExpectSameBits(var.dtype, cpu.Read(id), gpu.Read(id),
                     StrCat(var.name, " after step ", at, " on rank ", rank));
    };

    std::mt19937 rng(static_cast<uint32_t>(17 + rank));
    const size_t n = static_cast<size_t>(Bucket::kShard);
    std::vector<float> pool;
    for (size_t i = 0; i < 4 * n; ++i) pool.push_back(Nasty(rng));
    const auto draw = [&] {
      const size_t begin = rng() % (3 * n);
      return std::vector<float>(pool.begin() + begin, pool.begin() + begin + n);
    };
    write(step.master, BytesOf(draw()));
    write(step.moment1, BytesOf(draw()));
    std::vector<float> squares = draw();
    for (float& value : squares) value = std::abs(value);
    write(step.moment2, BytesOf(squares));
    write(step.param, Encode(c.param, draw()));
    write(step.applied, BytesOf(std::vector<int64_t>{0}));
    write(step.scale, BytesOf(std::vector<float>{1024}));
    write(step.good, BytesOf(std::vector<int32_t>{0}));
    write(step.bad, BytesOf(std::vector<int32_t>{0}));
    int skipped = 0, expected_skips = 0;
    for (int at = 1; at <= kSteps; ++at) {
      std::vector<float> grads = draw();
      // Some are finite without a finite norm; half of the rest are of ordinary
      // size.
      const bool huge = at % 23 == 0 && c.grad != DType::kFp16;
      expected_skips += huge || at % 19 == 0;
      for (float& value : grads) {
        if (!huge) value = std::fmod(value, at % 2 == 0 ? 8.0f : 1e15f);
        if (c.grad == DType::kFp16) value = std::clamp(value, -6e4f, 6e4f);
        if (c.grad == DType::kBf16) value = std::clamp(value, -3e38f, 3e38f);
      }
      if (at % 19 == 0) {
        constexpr float kInf = std::numeric_limits<float>::infinity();
        constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
        // In a segment of either rank.
        grads[1000 + rng() % 30000] = at % 38 == 0 ? kNan : kInf;
      }
      write(step.grad, Encode(c.grad, grads));
      write(
          step.lr,
          BytesOf(std::vector<float>{1e-3f * static_cast<float>(1 + at % 7)}));
      cpu.Run();
      gpu.Run();
      for (const VarId var : {step.stats, step.record, step.applied, step.scale,
                              step.good, step.bad}) {
        compare(var, at);
      }
      skipped += FloatAt(DType::kFp32, gpu.Read(step.record), kRecordSkip) != 0;
      if (at % kPeriod == 0 || at == 1 || at == 19) {
        for (const VarId var :
             {step.master, step.moment1, step.moment2, step.param}) {
          compare(var, at);
        }
      }
      if (HasFatalFailure()) return;
    }
    EXPECT_EQ(skipped, expected_skips);
  }
}

constexpr DType kF32 = DType::kFp32;
constexpr DType kB16 = DType::kBf16;
constexpr DType kF16 = DType::kFp16;

INSTANTIATE_TEST_SUITE_P(
    Cases, OptimizerOnGpu,
    ::testing::Values(
        Case{"AdamFp32", "adamw", kF32, kF32, "none", 0, true},
        Case{"AdamBf16", "adamw", kB16, kB16, "global_norm", 1, true},
        Case{"AdamFp16", "adamw", kF16, kF16, "norm", 0.5, false},
        Case{"AdamMixed", "adamw", kF32, kB16, "value", 0.25, true},
        Case{"SgdBf16", "sgd_momentum", kB16, kB16, "global_norm", 1, true},
        Case{"SgdFp32", "sgd_momentum", kF32, kF32, "none", 0, false},
        Case{"AdamBf16AtAnyElement", "adamw", kB16, kB16, "global_norm", 1,
             true, 1},
        Case{"SgdMixedAtAnyElement", "sgd_momentum", kF32, kF16, "value", 0.25,
             true, 3}),
    [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace plo::testing
