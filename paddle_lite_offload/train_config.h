// Everything that `plo train` can be told, checked before anything is built.
#ifndef PLO_PADDLE_LITE_OFFLOAD_TRAIN_CONFIG_H_
#define PLO_PADDLE_LITE_OFFLOAD_TRAIN_CONFIG_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "framework/ir/program.h"
#include "paddle_lite_offload/models.h"
#include "paddle_lite_offload/optimizer.h"
#include "passes/pipeline.h"

namespace plo {

// Fields bear the names of the flags.
struct TrainConfig {
  // --- Model ---
  std::string model = "gpt";  // or "mlp"
  int64_t layers = 4;
  int64_t hidden = 128;
  int64_t heads = 4;
  int64_t kv_heads = 0;    // 0: heads
  int64_t ffn_hidden = 0;  // 0: 4 * hidden
  int64_t seq_len = 128;
  int64_t vocab_size = 256;
  bool tied_head = true;
  double dropout = 0;
  int64_t seed = 0;

  // --- Data and steps ---
  std::string text;    // bytes of this file are the tokens
  std::string tokens;  // file of uint16 or uint32 ids
  int64_t micro_batch = 8;
  int64_t accumulate_steps = 1;
  int64_t steps = 100;

  // --- Numerics ---
  std::string dtype = "fp32";              // bf16, fp16
  std::string grad_dtype = "same";         // fp32
  std::string grad_reduce_dtype = "same";  // fp32, bf16, fp16
  std::string loss_scale = "auto";         // dynamic for fp16, else none
  double init_loss_scale = 65536;          // of a dynamic scale
  double min_loss_scale = 1;
  double loss_scale_growth = 2;      // factor
  double loss_scale_backoff = 0.5;   // factor
  int64_t loss_scale_window = 2000;  // good steps before it grows
  double clip_norm = 0;              // 0: no clipping

  // --- Optimizer ---
  std::string optimizer = "adamw";  // adam, sgd
  double lr = 1e-3;
  double weight_decay = 0.01;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double momentum = 0.9;
  std::string lr_schedule = "constant";  // linear, cosine
  int64_t warmup_steps = 0;
  double min_lr_ratio = 0.1;
  std::string freeze;  // '+'-joined patterns of params that are not trained

  // --- Memory ---
  int64_t sharding_stage = 2;
  int64_t sharding_degree = 0;  // 0: the world size
  double bucket_mb = 25;
  std::string recompute = "cheap";  // none, full, selective
  std::string offload = "none";     // optimizer, auto
  double offload_fraction = 1;
  std::string offload_streamed_fraction = "auto";
  std::string offload_mode = "overlap";  // sync
  std::string offload_activations;
  int64_t prefetch_depth = 2;
  int64_t device_memory_limit = 0;  // bytes; 0: none
  int64_t host_memory_limit = 0;

  // --- Machine and outputs ---
  std::string device = "auto";  // cpu, cuda
  bool cuda_graphs = true;
  std::string rates;  // file for the estimated step time
  std::string save_dir;
  int64_t save_every = 0;
  std::string resume;
  std::string log_dir;
  std::string trace;
  std::string dump_ir_dir;
  int64_t generate = 0;  // bytes to sample after the last step
  double temperature = 0.8;
  std::string prompt;
};

// Throws InvalidArgument for values that make no sense, alone or together, or
// have no effect, and Unimplemented for what is not built yet; messages name
// the flag. Reads no file. `world_size` ranks will run it.
void ValidateTrainConfig(const TrainConfig& config, int world_size);

// The model named by the config, with the param groups of its optimizer
// applied and no pass run. Throws InvalidArgument for a --freeze that fits no
// param or leaves none to train.
Program BuildModel(const TrainConfig& config,
                   ModelMode mode = ModelMode::kTrain);
Optimizer MakeOptimizer(const TrainConfig& config);
// The share of the offloaded state to stream through the device; nothing where
// rates are to decide.
std::optional<double> StreamedFraction(const TrainConfig& config);
// For `world_size` ranks; the optimizer is filled in. Without a given share of
// streamed states there are none.
DefaultPipelineOptions MakePipelineOptions(const TrainConfig& config,
                                           int world_size);
// The passes of an eval program of the same model; may be none.
std::string MakeEvalPipeline(const TrainConfig& config);
// The scale that training starts with, if it scales the loss.
std::optional<double> InitialLossScale(const TrainConfig& config);

// The fields by name: "config" of the JSON reports.
nlohmann::json ToJson(const TrainConfig& config);

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_TRAIN_CONFIG_H_
