// Runs kernels on a GPU for the op harness, when PLO_TEST_DEVICE=cuda is set.
#ifndef PLO_TESTS_OPERATORS_CUDA_RUNNER_H_
#define PLO_TESTS_OPERATORS_CUDA_RUNNER_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "framework/ir/types.h"
#include "framework/runtime/device.h"
#include "framework/runtime/kernel.h"

namespace plo::testing {

// kCuda when PLO_TEST_DEVICE=cuda, else kCpu.
DeviceKind TestDevice();

// Ends the running test as skipped. For the thread that runs the test.
[[noreturn]] void SkipTest(const std::string& reason);

class CudaRunner {
 public:
  // Skips the test where there is no usable GPU.
  static CudaRunner& Get();

  struct HostBytes {
    unsigned char* data = nullptr;
    size_t count = 0;
    size_t misalign = 0;  // bytes by which its address misses an aligned one
  };
  using Launch = std::function<void(const std::vector<void*>& addresses,
                                    DeviceErrorSlot* error, void* stream)>;
  // Copies `operands` to 256-byte aligned addresses of the device, or as far
  // behind as they say, calls `launch` with them, waits, and copies everything
  // back. Rethrows what `launch` threw; returns the error that kernels left.
  DeviceErrorSlot Run(const std::vector<HostBytes>& operands,
                      const Launch& launch);

 private:
  explicit CudaRunner(std::unique_ptr<Device> device);
  void Reserve(size_t bytes);

  std::unique_ptr<Device> device_;
  StreamId stream_;
  DeviceErrorSlot* error_;  // pinned
  unsigned char* arena_ = nullptr;
  std::vector<unsigned char> image_;  // of the arena
};

}  // namespace plo::testing

#endif  // PLO_TESTS_OPERATORS_CUDA_RUNNER_H_
