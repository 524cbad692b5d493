// Stands in for the CUDA device and the NCCL comm where they are not built.
#include "framework/ir/error.h"
#include "framework/runtime/comm.h"
#include "framework/runtime/device.h"

namespace plo {

std::unique_ptr<Device> CreateCudaDevice(const CudaDeviceOptions& options) {
  PLO_THROW(kFailedPrecondition, "CUDA device ", options.ordinal,
            " asked for, but ", CudaDeviceProblem());
}

std::string CudaDeviceProblem() {
  return "there is no GPU that plo could use: it is built without CUDA";
}

std::string CudaDeviceModel() { return ""; }

std::unique_ptr<Comm> CreateNcclComm(const LaunchInfo& info,
                                     const CommOptions&) {
  PLO_THROW(kFailedPrecondition, "rank ", info.rank, " asks for NCCL, but ",
            CudaDeviceProblem());
}

}  // namespace plo
