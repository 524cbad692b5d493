// Stands in for the CUDA device and the NCCL comm where they are not built.
#include "framework/ir/error.h"
#include "framework/runtime/comm.h"
#include "framework/runtime/device.h"

namespace plo {

std::unique_ptr<Device> CreateCudaDevice(const CudaDeviceOptions& options) {
  PLO_THROW(kFailedPrecondition, "CUDA device ", options.ordinal,
            " asked for, but plo is built without CUDA / no GPU");
}

bool CudaDeviceAvailable() { return false; }

std::string CudaDeviceModel() { return ""; }

std::unique_ptr<Comm> CreateNcclComm(const LaunchInfo& info,
                                     const CommOptions&) {
  PLO_THROW(kFailedPrecondition, "rank ", info.rank,
            " asks for NCCL, but plo is built without CUDA");
}

}  // namespace plo
