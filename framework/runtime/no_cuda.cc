// Stands in for the CUDA device where it is not built.
#include "framework/ir/error.h"
#include "framework/runtime/device.h"

namespace plo {

std::unique_ptr<Device> CreateCudaDevice(const CudaDeviceOptions& options) {
  PLO_THROW(kFailedPrecondition, "CUDA device ", options.ordinal,
            " asked for, but plo is built without CUDA / no GPU");
}

bool CudaDeviceAvailable() { return false; }

}  // namespace plo
