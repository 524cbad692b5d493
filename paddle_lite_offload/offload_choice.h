// What --offload=auto and --offload_streamed_fraction=auto stand for.
#ifndef PLO_PADDLE_LITE_OFFLOAD_OFFLOAD_CHOICE_H_
#define PLO_PADDLE_LITE_OFFLOAD_OFFLOAD_CHOICE_H_

#include <string>

#include "framework/ir/types.h"
#include "paddle_lite_offload/machine.h"
#include "paddle_lite_offload/train_config.h"

namespace plo {

// Whether the machine has a say in what the config means.
bool ChoosesByMachine(const TrainConfig& config);
// Whether that includes the memory of its devices.
bool ChoosesByMemory(const TrainConfig& config);

// The config, which must be valid, with numbers in the place of auto; valid
// again, and the same for the same machine.
//
// offload=auto becomes the least offload with which the planned peak keeps to
// --device_memory_limit, else to the memory of the machine's devices, and to
// --host_memory_limit; full offload where none does. Throws InvalidArgument
// when there is nothing to keep to. A share of streamed states is the one that
// ends updates first by the rates, of those that do not raise the peak or that
// keep to --device_memory_limit; 0 without rates.
TrainConfig ChooseOffload(const TrainConfig& config, int world_size,
                          DeviceKind device, const Machine& machine);

// "--offload=optimizer --offload_fraction=0.5 ..."; empty where nothing was
// chosen.
std::string DescribeChoice(const TrainConfig& given, const TrainConfig& chosen);

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_OFFLOAD_CHOICE_H_
