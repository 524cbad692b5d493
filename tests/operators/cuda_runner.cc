#include "tests/operators/cuda_runner.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "framework/ir/error.h"

namespace plo::testing {
namespace {

constexpr size_t kAlignment = 256;

struct LaunchTask {
  const CudaRunner::Launch& launch;
  const std::vector<void*>& addresses;
  DeviceErrorSlot* error;
};

void RunLaunchTask(void* context, const StepInfo&, void* native_stream) {
  auto* task = static_cast<LaunchTask*>(context);
  task->launch(task->addresses, task->error, native_stream);
}

}  // namespace

DeviceKind TestDevice() {
  const char* name = std::getenv("PLO_TEST_DEVICE");
  return name != nullptr && std::string_view(name) == "cuda" ? DeviceKind::kCuda
                                                             : DeviceKind::kCpu;
}

void SkipTest(const std::string& reason) {
  [&] { GTEST_SKIP() << reason; }();
  // The exception that googletest takes for an outcome already recorded.
  throw ::testing::AssertionException(::testing::TestPartResult(
      ::testing::TestPartResult::kSkip, __FILE__, __LINE__, reason.c_str()));
}

CudaRunner& CudaRunner::Get() {
  // Never destroyed: the driver may be gone when static objects are.
  static CudaRunner* runner = nullptr;
  if (runner != nullptr) return *runner;
  std::string reason;
  try {
    runner = new CudaRunner(CreateCudaDevice({}));
  } catch (const Error& error) {
    reason = error.what();
  }
  // ctest looks for these words.
  if (runner == nullptr) SkipTest("no usable GPU: " + reason);
  return *runner;
}

CudaRunner::CudaRunner(std::unique_ptr<Device> device)
    : device_(std::move(device)),
      stream_(device_->CreateStream(StreamKind::kCompute)),
      error_(new (device_->Allocate(Place::kPinned, sizeof(DeviceErrorSlot)))
                 DeviceErrorSlot) {}

void CudaRunner::Reserve(size_t bytes) {
  if (image_.size() >= bytes) return;
  if (arena_ != nullptr) device_->Free(Place::kDevice, arena_);
  arena_ = nullptr;
  image_.resize(bytes + bytes / 2);
  arena_ = static_cast<unsigned char*>(
      device_->Allocate(Place::kDevice, static_cast<int64_t>(image_.size())));
}

DeviceErrorSlot CudaRunner::Run(const std::vector<HostBytes>& operands,
                                const Launch& launch) {
  std::vector<size_t> offsets;
  size_t total = 0;
  for (const HostBytes& operand : operands) {
    offsets.push_back(total + operand.misalign);
    const size_t bytes = operand.count + operand.misalign;
    total += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  Reserve(total);
  std::vector<void*> addresses;
  for (size_t i = 0; i < operands.size(); ++i) {
    std::memcpy(image_.data() + offsets[i], operands[i].data,
                operands[i].count);
    addresses.push_back(arena_ + offsets[i]);
  }
  device_->Write(image_.data(), arena_, static_cast<int64_t>(total));

  *error_ = DeviceErrorSlot();
  LaunchTask task{launch, addresses, error_};
  try {
    device_->Synchronize(
        stream_, device_->Launch(stream_, {RunLaunchTask, &task, {}, true}));
  } catch (...) {
    device_->ClearError();
    throw;
  }
  device_->Read(arena_, image_.data(), static_cast<int64_t>(total));
  for (size_t i = 0; i < operands.size(); ++i) {
    std::memcpy(operands[i].data, image_.data() + offsets[i],
                operands[i].count);
  }
  return *error_;
}

}  // namespace plo::testing
