// The passes of a training run as pipeline text.
#ifndef PLO_PADDLE_LITE_OFFLOAD_PIPELINE_TEXT_H_
#define PLO_PADDLE_LITE_OFFLOAD_PIPELINE_TEXT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "framework/ir/types.h"
#include "paddle_lite_offload/optimizer.h"

namespace plo {

struct LossScaling {
  bool dynamic = true;
  double init = 65536;
  // Of a dynamic scale.
  double growth = 2;
  double backoff = 0.5;
  int64_t window = 2000;
  double min = 1;
};

struct PipelineOptions {
  DType dtype = DType::kFp32;
  bool fp32_grads = false;  // gradient buckets of 16-bit programs in fp32
  std::string recompute = "cheap";
  int sharding_stage = 0;
  double bucket_mb = 25;
  int64_t accumulate_steps = 1;
  std::optional<LossScaling> loss_scaling = {};
  double clip_norm = 0;  // 0: no clipping
  bool offload_optimizer = false;
  double offload_fraction = 1;
  std::string offload_mode = "overlap";
  int64_t prefetch_depth = 2;
};

// For `world_size` ranks. Values are checked by the passes themselves.
std::string MakePipeline(const PipelineOptions& options,
                         const Optimizer& optimizer, int world_size);

// For an eval program that shares the params; empty in fp32.
std::string MakeEvalPipeline(DType dtype);

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_PIPELINE_TEXT_H_
