// The device that a test runs on: PLO_TEST_DEVICE is cpu, the default, or cuda.
// The same tests then cover both; on cuda all are skipped without a GPU.
#ifndef PLO_TESTS_FRAMEWORK_TEST_DEVICE_H_
#define PLO_TESTS_FRAMEWORK_TEST_DEVICE_H_

#include <cstdint>
#include <memory>

#include "framework/runtime/device.h"

namespace plo {

DeviceKind TestDeviceKind();

// Limits are bytes; 0 means none.
std::unique_ptr<Device> CreateTestDevice(int64_t device_memory_limit = 0,
                                         int64_t host_memory_limit = 0);

}  // namespace plo

#endif  // PLO_TESTS_FRAMEWORK_TEST_DEVICE_H_
