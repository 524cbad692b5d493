// From a config to the program and the plan of its run.
#ifndef PLO_PADDLE_LITE_OFFLOAD_PLAN_RUN_H_
#define PLO_PADDLE_LITE_OFFLOAD_PLAN_RUN_H_

#include "framework/ir/types.h"
#include "paddle_lite_offload/engine.h"
#include "paddle_lite_offload/train_config.h"

namespace plo {

// Builds the program of a valid config, in which nothing is left to be chosen,
// runs the passes and plans. Pure but for --dump_ir_dir. Throws InvalidArgument
// or Unimplemented, and OutOfMemory for a limit that cannot be met.
PreparedProgram PlanRun(const TrainConfig& config, int world_size,
                        DeviceKind device);

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_PLAN_RUN_H_
