#include "paddle_lite_offload/plan_run.h"

#include <utility>
#include <vector>

namespace plo {

PreparedProgram PlanRun(const TrainConfig& config, int world_size,
                        DeviceKind device) {
  Program program = BuildModel(config);
  PrepareOptions options;
  options.pipeline = DefaultPipeline(MakePipelineOptions(config, world_size));
  options.dump_ir_dir = config.dump_ir_dir;
  options.device_memory_limit = config.device_memory_limit;
  options.host_memory_limit = config.host_memory_limit;
  options.device = device;
  std::vector<EvalProgram> evals;
  if (config.generate > 0) {
    evals.push_back({BuildModel(config, ModelMode::kGenerate),
                     MakeEvalPipeline(config),
                     {"logits"}});
  }
  return Prepare(std::move(program), options, std::move(evals));
}

}  // namespace plo
