// What a run knows of the machine before it chooses by it.
#ifndef PLO_PADDLE_LITE_OFFLOAD_MACHINE_H_
#define PLO_PADDLE_LITE_OFFLOAD_MACHINE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "framework/ir/types.h"
#include "framework/plan/rates.h"
#include "framework/runtime/comm.h"
#include "paddle_lite_offload/train_config.h"

namespace plo {

struct NamedRates {
  Rates rates;
  std::string source;  // "--rates", "cached in FILE" or "built in"
};

struct Machine {
  std::optional<NamedRates> rates;
  // Bytes that a device has for an arena; 0: unknown.
  int64_t device_memory = 0;
};

// "nvidia_h200", "cpu_intel_xeon_..."; empty for a GPU that is not here.
std::string DeviceModel(DeviceKind device);

// Where `plo calibrate` keeps the rates of so many ranks of a device; empty
// where there is no folder for that.
std::string CachedRatesPath(const std::string& device_model, int world_size);

// Of --rates, else what `plo calibrate` measured here for so many ranks, else
// on CUDA those of an H200, else none: CPUs differ by more than tenfold. A bad
// file of --rates is an error, a bad cached one a warning.
std::optional<NamedRates> FindRates(const TrainConfig& config,
                                    DeviceKind device, int world_size);

// The free memory of the GPU, less what libraries will still take; 0 on a CPU
// and without a GPU.
int64_t FreeDeviceMemory(DeviceKind device, int ordinal);

// Gives all ranks the rates of the first and the least memory of any.
void AgreeOnMachine(Comm& comm, Machine& machine);

// "h200 (built in)".
std::string Describe(const NamedRates& rates);

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_MACHINE_H_
