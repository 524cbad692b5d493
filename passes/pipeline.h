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

// What a training run asks of its pipeline. Values are checked by the passes,
// under the option names of their own.
struct PipelineOptions {
  DType dtype = DType::kFp32;
  std::string recompute = "cheap";             // none, cheap, selective, full
  std::vector<std::string> recompute_regions;  // for selective

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

  std::string optimizer = "adamw";  // or adam, sgd
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  double momentum = 0.9;  // of sgd
  std::string lr_schedule = "constant";
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  double min_lr_ratio = 0;

  bool offload_optimizer = false;
  double offload_fraction = 1;
  std::string offload_mode = "overlap";  // or sync

  int64_t prefetch_depth = 2;
};

// The pipeline that turns a model's forward program into a training program.
// The same options give the same text, and numbers round-trip.
std::string DefaultPipeline(const PipelineOptions& options);

// What an eval program of the same model runs through: only what changes the
// params' dtype.
std::string EvalPipeline(const PipelineOptions& options);

}  // namespace plo

#endif  // PLO_PASSES_PIPELINE_H_
