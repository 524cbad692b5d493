// Feeds and fetches: copies on the compute stream, by the kernels of copy_h2d
// and copy_d2h.
#include <atomic>
#include <chrono>
#include <thread>

#include "framework/ir/error.h"
#include "framework/runtime/executor.h"
#include "gtest/gtest.h"
#include "operators/register_ops.h"
#include "tests/framework/test_device.h"

namespace plo {
namespace {

Var MakeVar(const std::string& name, VarKind kind, DType dtype, Shape shape,
            Place place = Place::kDevice) {
  Var var;
  var.name = name;
  var.kind = kind;
  var.dtype = dtype;
  var.shape = std::move(shape);
  var.place = place;
  var.category = MemoryCategory::kWorkspace;
  return var;
}

// Bytes that differ from place to place and from salt to salt.
HostTensor Pattern(DType dtype, Shape shape, int salt) {
  HostTensor tensor;
  tensor.dtype = dtype;
  tensor.data.resize(static_cast<size_t>(shape.numel() * SizeOf(dtype)));
  tensor.shape = std::move(shape);
  for (size_t i = 0; i < tensor.data.size(); ++i) {
    tensor.data[i] = static_cast<std::byte>(i * 31 + i / 251 + salt * 7);
  }
  return tensor;
}

std::unique_ptr<Executor> MakeExecutor(const Program& program, Device& device,
                                       std::vector<VarId> fetches) {
  PlanOptions options;
  options.fetches = std::move(fetches);
  options.device = device.kind();
  return Executor::Create(program, BuildPlan(program, options), device,
                          nullptr);
}

TEST(FeedAndFetchTest, FedBytesComeBackFromTheDevice) {
  RegisterBuiltinOps();
  auto device = CreateTestDevice();
  // Odd and even, below and above what threads copy.
  const std::pair<DType, int64_t> cases[] = {
      {DType::kFp32, 1},         {DType::kFp32, 4096}, {DType::kFp32, 1001},
      {DType::kFp32, 4'300'003}, {DType::kBf16, 3},    {DType::kBf16, 16},
      {DType::kBool, 1},         {DType::kBool, 999},  {DType::kInt32, 16384}};
  for (const auto& [dtype, n] : cases) {
    SCOPED_TRACE(testing::Message() << dtype << " " << n);
    Program program;
    const VarId x =
        program.AddVar(MakeVar("x", VarKind::kFeed, dtype, Shape{n}));
    auto executor = MakeExecutor(program, *device, {x});
    for (int step = 0; step < 4; ++step) {  // all slots of the rings
      const HostTensor fed = Pattern(dtype, Shape{n}, step);
      const auto fetched = executor->Fetch(executor->Run({{"x", fed}}));
      ASSERT_EQ(fetched[0].data, fed.data) << step;
    }
  }
}

std::atomic<bool> release{false};
std::atomic<bool> gave_up{false};

// Host work that ends when the test says so.
void Hold(KernelContext& context) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!release.load()) {
    if (std::chrono::steady_clock::now() > deadline) {
      gave_up = true;
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  *context.Out("out").as<float>() = 2 * *context.In("x").as<float>();
}

// States travel in both directions and wait for the host; the step's feeds and
// fetches, and the next step's, pass them by.
TEST(FeedAndFetchTest, FeedsAndFetchesDoNotWaitForOtherCopies) {
  RegisterBuiltinOps();
  OpSchema schema;
  schema.type = "test_hold";
  schema.inputs = {{"x"}};
  schema.outputs = {{"out"}};
  schema.infer = [](InferContext&) {};
  schema.where = OpSchema::Where::kDeviceOrHost;
  OpRegistry::Global().Register(std::move(schema));
  KernelRegistry::Global().Register("test_hold", DeviceKind::kCpu, Hold);

  Program program;
  const auto add = [&](const char* name, VarKind kind, Place place) {
    return program.AddVar(MakeVar(name, kind, DType::kFp32, Shape{1}, place));
  };
  const VarId x = add("x", VarKind::kFeed, Place::kDevice);
  const VarId before = add("before", VarKind::kState, Place::kPinned);
  const VarId held = add("held", VarKind::kState, Place::kPinned);
  const VarId up = add("up", VarKind::kState, Place::kDevice);
  const VarId down = add("down", VarKind::kState, Place::kPinned);
  const auto append = [&](const char* type, VarId from, VarId to,
                          StreamKind stream) {
    OpSpec spec;
    spec.type = type;
    spec.inputs = {{"x", {from}}};
    spec.outputs = {{"out", {to}}};
    spec.stream = stream;
    program.Append(Section::kUpdate, std::move(spec));
  };
  append("test_hold", before, held, StreamKind::kHost);
  append("copy_h2d", held, up, StreamKind::kH2D);
  append("copy_d2h", up, down, StreamKind::kD2H);

  auto device = CreateTestDevice();
  auto executor = MakeExecutor(program, *device, {x});
  executor->WriteVar("before", Pattern(DType::kFp32, Shape{1}, 3));
  for (int step = 0; step < 2; ++step) {
    const HostTensor fed = Pattern(DType::kFp32, Shape{1}, step);
    const auto fetched = executor->Fetch(executor->Run({{"x", fed}}));
    EXPECT_EQ(fetched[0].data, fed.data);
  }
  EXPECT_FALSE(gave_up.load()) << "a fetch waited for the host";
  release = true;
  executor->Drain();
  EXPECT_EQ(executor->ReadVar("down").ToDoubles()[0],
            2 * executor->ReadVar("before").ToDoubles()[0]);
}

}  // namespace
}  // namespace plo
