#include "tests/framework/test_device.h"

#include <cstdlib>
#include <string_view>

#include "framework/ir/error.h"
#include "gtest/gtest.h"

namespace plo {
namespace {

class SkipWithoutGpu : public testing::Environment {
 public:
  void SetUp() override {
    if (TestDeviceKind() == DeviceKind::kCuda && !CudaDeviceAvailable()) {
      GTEST_SKIP() << "no usable GPU";
    }
  }
};

[[maybe_unused]] testing::Environment* const skip_without_gpu =
    testing::AddGlobalTestEnvironment(new SkipWithoutGpu);

}  // namespace

DeviceKind TestDeviceKind() {
  const char* text = std::getenv("PLO_TEST_DEVICE");
  const std::string_view name = text != nullptr ? text : "cpu";
  PLO_ENFORCE(name == "cpu" || name == "cuda", kInvalidArgument,
              "PLO_TEST_DEVICE is \"", name, "\", expected cpu or cuda");
  return name == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu;
}

std::unique_ptr<Device> CreateTestDevice(int64_t device_memory_limit,
                                         int64_t host_memory_limit) {
  if (TestDeviceKind() == DeviceKind::kCuda) {
    CudaDeviceOptions options;
    options.device_memory_limit = device_memory_limit;
    options.host_memory_limit = host_memory_limit;
    return CreateCudaDevice(options);
  }
  CpuDeviceOptions options;
  options.device_memory_limit = device_memory_limit;
  options.host_memory_limit = host_memory_limit;
  return CreateCpuDevice(options);
}

}  // namespace plo
