// The built-in passes and their default order.
#ifndef PLO_PASSES_PIPELINE_H_
#define PLO_PASSES_PIPELINE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "framework/ir/types.h"

namespace plo {

// Fills PassRegistry::Global(). Idempotent and thread-safe.
void RegisterBuiltinPasses();

// What a training run asks of its passes. Values are checked by the passes,
// under the option names of their own.
struct DefaultPipelineOptions {
  DType dtype = DType::kFp32;
  std::string recompute = "cheap";  // none, cheap, selective, full
  std::vector<std::string> recompute_regions = {};  // for selective

  int64_t sharding_stage = 2;
  int64_t sharding_degree = 1;  // ranks
  double bucket_mb = 25;
  std::string grad_dtype = "same";  // or fp32
  int64_t accumulate_steps = 1;

  std::string loss_scale = "none";  // none, static or dynamic
  double init_loss_scale = 65536;   // the scale itself if static
  double loss_scale_incr_ratio = 2;
  double loss_scale_decr_ratio = 0.5;
  int64_t loss_scale_incr_every_n = 2000;
  int64_t loss_scale_decr_every_n = 1;
  double min_loss_scale = 1;

  std::string clip_mode = "global_norm";  // or norm, value
  double clip_norm = 0;                   // 0: gradients are not clipped

  // The whole entry, made by who knows the optimizer.
  std::string insert_optimizer = "insert_optimizer(type=adamw)";

  bool offload_optimizer = false;
  double offload_fraction = 1;
  double offload_streamed_fraction = 0;      // of what is offloaded
  int64_t offload_streamed_chunk = 1398016;  // elements: slots of 16 MiB
  std::string offload_mode = "overlap";      // or sync

  int64_t prefetch_depth = 2;
};

// The pipeline that turns a model's forward program into a training program:
// the one place that knows the order. The same options give the same text, and
// numbers round-trip.
std::string DefaultPipeline(const DefaultPipelineOptions& options);

}  // namespace plo

#endif  // PLO_PASSES_PIPELINE_H_
