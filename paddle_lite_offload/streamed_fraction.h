// What --offload_streamed_fraction=auto stands for.
#ifndef PLO_PADDLE_LITE_OFFLOAD_STREAMED_FRACTION_H_
#define PLO_PADDLE_LITE_OFFLOAD_STREAMED_FRACTION_H_

#include <optional>

#include "framework/plan/simulator.h"
#include "paddle_lite_offload/train_config.h"

namespace plo {

// The share of the offloaded optimizer state to stream through the device so
// that updates end first; 0 without rates. The same on all ranks.
double FastestStreamedFraction(const TrainConfig& config,
                               const DefaultPipelineOptions& pipeline,
                               const std::optional<Rates>& rates);

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_STREAMED_FRACTION_H_
