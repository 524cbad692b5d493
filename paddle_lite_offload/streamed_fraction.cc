#include "paddle_lite_offload/streamed_fraction.h"

#include <vector>

#include "framework/plan/update_split.h"
#include "operators/register_ops.h"
#include "passes/pass.h"

namespace plo {
namespace {

// Elements that a rank updates, by bucket.
std::vector<int64_t> OwnedElements(const TrainConfig& config,
                                   DefaultPipelineOptions pipeline) {
  RegisterBuiltinOps();
  RegisterBuiltinPasses();
  pipeline.offload_optimizer = false;
  Program program = BuildModel(config);
  PassManager::Parse(DefaultPipeline(pipeline)).Run(program);
  std::vector<int64_t> elements;
  for (const Bucket& bucket : program.buckets) {
    if (!bucket.trainable) continue;
    elements.push_back(program.var(bucket.param_slice).shape.numel());
  }
  return elements;
}

}  // namespace

double FastestStreamedFraction(const TrainConfig& config,
                               const DefaultPipelineOptions& pipeline,
                               const std::optional<Rates>& rates) {
  if (!rates) return 0;
  const bool wide = pipeline.dtype == DType::kFp32;
  const double param = wide ? 4 : 2;
  const double grad = pipeline.grad_dtype == "fp32" ? 4 : param;
  const double moments = config.optimizer == "sgd" ? 4 : 8;
  UpdateTraffic traffic;
  // An fp32 master is what goes up; another one is rounded into a buffer.
  traffic.host_update = 2 * (4 + moments) + grad + (wide ? 0 : param);
  traffic.param = param;
  traffic.streamed = moments + (wide ? 0 : 4);
  return BestStreamedFraction(OwnedElements(config, pipeline), traffic, *rates,
                              /*hidden_seconds=*/0);
}

}  // namespace plo
