#include "paddle_lite_offload/train_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <type_traits>

#include "paddle_lite_offload/flag_conditions.h"
#include "paddle_lite_offload/train_config_fields.h"

namespace plo {
namespace {

// Generous, and small enough that no later sum of bytes overflows.
constexpr int64_t kMaxLayers = 10000;
constexpr double kMaxParameters = 1e15;
constexpr int64_t kMaxWarmupSteps = 1000000000000;
constexpr int64_t kMaxAccumulateSteps = 1 << 20;
// Above it sampling would take days.
constexpr int64_t kMaxGenerate = 1 << 20;
constexpr int64_t kMaxBucketMb = 1 << 20;

void RequireOneOf(const char* flag, std::string_view value,
                  std::initializer_list<std::string_view> choices) {
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return;
  std::string list;
  for (std::string_view choice : choices) {
    list += (list.empty() ? "" : ", ") + std::string(choice);
  }
  PLO_THROW(kInvalidArgument, "--", flag, "=", value, ": expected one of ",
            list);
}

void RequireAtLeast(const char* flag, int64_t value, int64_t least) {
  PLO_ENFORCE(value >= least, kInvalidArgument, "--", flag,
              " must be at least ", least, ", got ", value);
}

// Also as the fp32 that it is at run time.
void RequirePositive(const char* flag, double value) {
  PLO_ENFORCE(static_cast<float>(value) > 0, kInvalidArgument, "--", flag,
              " must be a positive finite number, got ", value);
}

// The scale and its inverse are fp32 at run time.
void RequireLossScale(const char* flag, double value) {
  PLO_ENFORCE(value >= 0x1p-126 && value <= 0x1p126, kInvalidArgument, "--",
              flag, " must be in [2^-126, 2^126], got ", value);
}

// Whether they are used or not.
void CheckNumbersAreFinite(const TrainConfig& config) {
  TrainConfig copy = config;
  VisitFields(copy, [](const char* flag, auto field, const char*) {
    if constexpr (std::is_same_v<decltype(field), double*>) {
      constexpr double kMax = std::numeric_limits<float>::max();
      PLO_ENFORCE(std::fabs(*field) <= kMax, kInvalidArgument, "--", flag,
                  " must be a finite number in the range of fp32, got ",
                  *field);
    }
  });
}

// At '+'; an empty text has no parts.
std::vector<std::string> SplitList(const char* flag, const std::string& text) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (!text.empty() && begin <= text.size()) {
    const size_t end = std::min(text.find('+', begin), text.size());
    PLO_ENFORCE(end > begin, kInvalidArgument, "--", flag, "=", text,
                ": an item of the list is empty");
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// The number in `text`, or nothing unless all of it is one.
std::optional<double> ParseNumber(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end) return std::nullopt;
  return value;
}

// In floating point: the sizes have not been checked yet.
double EstimateParameters(const TrainConfig& c) {
  const auto layers = static_cast<double>(c.layers);
  const auto hidden = static_cast<double>(c.hidden);
  if (c.model == "mlp") {
    const MlpConfig shape;
    return hidden * ((layers - 1) * hidden + static_cast<double>(shape.inputs) +
                     static_cast<double>(shape.outputs));
  }
  const double ffn =
      c.ffn_hidden > 0 ? static_cast<double>(c.ffn_hidden) : 4 * hidden;
  return layers * hidden * (4 * hidden + 2 * ffn) +
         hidden * (2.0 * static_cast<double>(c.vocab_size) +
                   static_cast<double>(c.seq_len));
}

void CheckModel(const TrainConfig& c) {
  RequireOneOf("model", c.model, {"mlp", "gpt"});
  RequireAtLeast("layers", c.layers, 1);
  PLO_ENFORCE(c.layers <= kMaxLayers, kInvalidArgument,
              "--layers must be at most ", kMaxLayers, ", got ", c.layers);
  RequireAtLeast("hidden", c.hidden, 1);
  RequireAtLeast("heads", c.heads, 1);
  RequireAtLeast("kv_heads", c.kv_heads, 0);
  RequireAtLeast("ffn_hidden", c.ffn_hidden, 0);
  RequireAtLeast("seq_len", c.seq_len, 1);
  RequireAtLeast("vocab_size", c.vocab_size, 1);
  RequireAtLeast("micro_batch", c.micro_batch, 1);
  PLO_ENFORCE(c.dropout >= 0 && c.dropout < 1, kInvalidArgument,
              "--dropout must be in [0, 1), got ", c.dropout);
  if (c.model == "gpt") {
    PLO_ENFORCE(c.hidden % c.heads == 0, kInvalidArgument, "--heads=", c.heads,
                " does not divide --hidden=", c.hidden);
    PLO_ENFORCE(c.kv_heads == 0 || c.heads % c.kv_heads == 0, kInvalidArgument,
                "--kv_heads=", c.kv_heads,
                " does not divide --heads=", c.heads);
  }
  PLO_ENFORCE(c.vocab_size <= INT32_MAX, kInvalidArgument,
              "--vocab_size must be at most ", INT32_MAX,
              ", since token ids are int32, got ", c.vocab_size);
  const double parameters = EstimateParameters(c);
  const std::string of_gpt =
      StrCat(" --ffn_hidden=", c.ffn_hidden, " --vocab_size=", c.vocab_size,
             " --seq_len=", c.seq_len);
  PLO_ENFORCE(parameters < kMaxParameters, kInvalidArgument,
              "a model of about ", parameters,
              " params overflows: --layers=", c.layers, " --hidden=", c.hidden,
              c.model == "gpt" ? of_gpt : "");
}

void CheckSteps(const TrainConfig& c, int world_size) {
  RequireAtLeast("steps", c.steps, 1);
  PLO_ENFORCE(
      c.accumulate_steps >= 1 && c.accumulate_steps <= kMaxAccumulateSteps,
      kInvalidArgument, "--accumulate_steps must be in [1, ",
      kMaxAccumulateSteps, "], got ", c.accumulate_steps);
  int64_t samples = 0;
  PLO_ENFORCE(
      !__builtin_mul_overflow(c.micro_batch, c.accumulate_steps, &samples) &&
          !__builtin_mul_overflow(samples, int64_t{world_size}, &samples) &&
          !__builtin_mul_overflow(samples, c.seq_len, &samples) &&
          !__builtin_mul_overflow(samples, c.steps, &samples),
      kInvalidArgument,
      "the number of tokens of the run overflows: --steps=", c.steps,
      " --micro_batch=", c.micro_batch,
      " --accumulate_steps=", c.accumulate_steps, " --seq_len=", c.seq_len);
  PLO_ENFORCE(c.text.empty() || c.tokens.empty(), kInvalidArgument,
              "--text and --tokens exclude each other");
  PLO_ENFORCE(c.model == "gpt" || (c.text.empty() && c.tokens.empty()),
              kInvalidArgument, "--text and --tokens need --model=gpt; the ",
              "mlp learns a function of random vectors");
  PLO_ENFORCE(c.text.empty() || c.vocab_size >= 256, kInvalidArgument,
              "--text needs --vocab_size of at least 256, one id per byte, "
              "got ",
              c.vocab_size);
  PLO_ENFORCE(c.generate >= 0 && c.generate <= kMaxGenerate, kInvalidArgument,
              "--generate must be in [0, ", kMaxGenerate, "], got ",
              c.generate);
  PLO_ENFORCE(c.generate == 0 || c.model == "gpt", kInvalidArgument,
              "--generate needs --model=gpt");
  PLO_ENFORCE(c.generate == 0 || c.vocab_size >= 256, kInvalidArgument,
              "--generate writes bytes and needs --vocab_size of at least 256");
  PLO_ENFORCE(std::isfinite(c.temperature) && c.temperature >= 0,
              kInvalidArgument, "--temperature must be a finite number and ",
              "not negative, got ", c.temperature);
}

bool HasDynamicLossScale(const TrainConfig& c) {
  return c.loss_scale == "dynamic" ||
         (c.loss_scale == "auto" && c.dtype == "fp16");
}

void CheckNumerics(const TrainConfig& c) {
  RequireOneOf("dtype", c.dtype, {"fp32", "bf16", "fp16"});
  RequireOneOf("grad_dtype", c.grad_dtype, {"same", "fp32"});
  RequireOneOf("grad_reduce_dtype", c.grad_reduce_dtype,
               {"same", "fp32", "bf16", "fp16"});
  const std::string& bucket = c.grad_dtype == "same" ? c.dtype : c.grad_dtype;
  PLO_ENFORCE(c.grad_reduce_dtype == "same" || c.grad_reduce_dtype == bucket,
              kUnimplemented, "--grad_reduce_dtype=", c.grad_reduce_dtype,
              " with gradients of ", bucket,
              " is not built yet; --grad_dtype=fp32 reduces in fp32");
  if (c.clip_norm != 0) RequirePositive("clip_norm", c.clip_norm);
  RequireLossScale("init_loss_scale", c.init_loss_scale);
  RequireLossScale("min_loss_scale", c.min_loss_scale);
  PLO_ENFORCE(!HasDynamicLossScale(c) || c.min_loss_scale <= c.init_loss_scale,
              kInvalidArgument, "--min_loss_scale=", c.min_loss_scale,
              " exceeds --init_loss_scale=", c.init_loss_scale);
  PLO_ENFORCE(std::isfinite(c.loss_scale_growth) && c.loss_scale_growth >= 1,
              kInvalidArgument, "--loss_scale_growth must be at least 1, got ",
              c.loss_scale_growth);
  PLO_ENFORCE(c.loss_scale_backoff > 0 && c.loss_scale_backoff <= 1,
              kInvalidArgument, "--loss_scale_backoff must be in (0, 1], got ",
              c.loss_scale_backoff);
  PLO_ENFORCE(c.loss_scale_window >= 1 && c.loss_scale_window <= INT32_MAX,
              kInvalidArgument, "--loss_scale_window must be in [1, ",
              INT32_MAX, "], got ", c.loss_scale_window);
  InitialLossScale(c);
  PLO_ENFORCE(c.warmup_steps >= 0 && c.warmup_steps <= kMaxWarmupSteps,
              kInvalidArgument, "--warmup_steps must be in [0, ",
              kMaxWarmupSteps, "], got ", c.warmup_steps);
  RequireOneOf("optimizer", c.optimizer, {"adamw", "adam", "sgd"});
  RequireOneOf("lr_schedule", c.lr_schedule, {"constant", "linear", "cosine"});
  const Optimizer optimizer = MakeOptimizer(c);
  try {
    optimizer.Validate();
  } catch (const Error& error) {
    // Its messages begin with the name of a field, which is that of the flag.
    throw Error(error.code(), "--" + error.message());
  }
}

void CheckMemory(const TrainConfig& c, int world_size) {
  PLO_ENFORCE(c.sharding_stage >= 0 && c.sharding_stage <= 3, kInvalidArgument,
              "--sharding_stage must be 0, 1, 2 or 3, got ", c.sharding_stage);
  PLO_ENFORCE(c.sharding_stage != 3, kUnimplemented,
              "--sharding_stage=3 is not built yet");
  RequireAtLeast("sharding_degree", c.sharding_degree, 0);
  PLO_ENFORCE(c.sharding_degree <= world_size, kInvalidArgument,
              "--sharding_degree=", c.sharding_degree, " exceeds the ",
              world_size, " ranks");
  PLO_ENFORCE(c.sharding_degree == 0 || c.sharding_degree == world_size,
              kUnimplemented, "--sharding_degree=", c.sharding_degree,
              " below the ", world_size, " ranks is not built yet");
  RequirePositive("bucket_mb", c.bucket_mb);
  PLO_ENFORCE(c.bucket_mb <= static_cast<double>(kMaxBucketMb),
              kInvalidArgument, "--bucket_mb must be at most ", kMaxBucketMb,
              ", got ", c.bucket_mb);
  RequireOneOf("recompute", c.recompute,
               {"none", "cheap", "selective", "full"});
  PLO_ENFORCE(c.recompute != "selective" || c.model == "gpt", kInvalidArgument,
              "--recompute=selective computes attention twice and needs "
              "--model=gpt");
  RequireOneOf("offload_mode", c.offload_mode, {"overlap", "sync"});
  for (const std::string& part : SplitList("offload", c.offload)) {
    RequireOneOf("offload", part, {"none", "optimizer", "params", "auto"});
    PLO_ENFORCE(part != "params", kUnimplemented, "--offload=", part,
                " is not built yet");
  }
  RequireOneOf("offload", c.offload, {"none", "optimizer", "auto"});
  PLO_ENFORCE(c.offload_fraction >= 0 && c.offload_fraction <= 1,
              kInvalidArgument, "--offload_fraction must be in [0, 1], got ",
              c.offload_fraction);
  StreamedFraction(c);
  PLO_ENFORCE(c.offload_activations.empty(), kUnimplemented,
              "--offload_activations is not built yet");
  PLO_ENFORCE(c.prefetch_depth >= 1 && c.prefetch_depth <= 1024,
              kInvalidArgument, "--prefetch_depth must be in [1, 1024], got ",
              c.prefetch_depth);
  RequireAtLeast("device_memory_limit", c.device_memory_limit, 0);
  RequireAtLeast("host_memory_limit", c.host_memory_limit, 0);
}

void Freeze(const TrainConfig& c, Program& program) {
  try {
    MakeOptimizer(c).ApplyGroups(program);
  } catch (const Error& error) {
    PLO_THROW(kInvalidArgument, "--freeze=", c.freeze, ": ", error.message());
  }
  for (VarId id : program.Params()) {
    if (program.var(id).param.trainable) return;
  }
  PLO_THROW(kInvalidArgument, "--freeze=", c.freeze,
            " leaves no param to train");
}

}  // namespace

void ValidateTrainConfig(const TrainConfig& c, int world_size) {
  CheckNumbersAreFinite(c);
  CheckModel(c);
  CheckSteps(c, world_size);
  CheckNumerics(c);
  CheckMemory(c, world_size);
  RequireOneOf("device", c.device, {"auto", "cpu", "cuda"});
  PLO_ENFORCE(c.save_dir.empty(), kUnimplemented,
              "--save_dir: checkpoints are not built yet");
  PLO_ENFORCE(c.save_every == 0, kUnimplemented,
              "--save_every: checkpoints are not built yet");
  PLO_ENFORCE(c.resume.empty(), kUnimplemented,
              "--resume: checkpoints are not built yet");
  for (const IdleFlag& flag : FindIdleFlags(c)) {
    PLO_THROW(kInvalidArgument, Describe(flag));
  }
}

Program BuildModel(const TrainConfig& c, ModelMode mode) {
  Program program;
  if (c.model == "mlp") {
    program = BuildMlp({.layers = c.layers,
                        .hidden = c.hidden,
                        .micro_batch = c.micro_batch,
                        .dropout = c.dropout,
                        .seed = c.seed},
                       mode);
  } else {
    program = BuildGpt(
        {.layers = c.layers,
         .hidden = c.hidden,
         .heads = c.heads,
         .kv_heads = c.kv_heads,
         .ffn_hidden = c.ffn_hidden,
         .seq_len = c.seq_len,
         .vocab_size = c.vocab_size,
         .micro_batch = mode == ModelMode::kGenerate ? 1 : c.micro_batch,
         .tied_head = c.tied_head,
         .dropout = c.dropout,
         .seed = c.seed},
        mode);
  }
  if (!c.freeze.empty()) Freeze(c, program);
  return program;
}

Optimizer MakeOptimizer(const TrainConfig& c) {
  Optimizer optimizer;
  optimizer.type = c.optimizer;
  optimizer.lr = c.lr;
  optimizer.beta1 = c.beta1;
  optimizer.beta2 = c.beta2;
  optimizer.eps = c.eps;
  optimizer.momentum = c.momentum;
  optimizer.weight_decay = c.weight_decay;
  optimizer.schedule = {.kind = c.lr_schedule,
                        .warmup_steps = c.warmup_steps,
                        // A run that ends during its warm-up has no decay.
                        .total_steps = std::max(c.steps, c.warmup_steps + 1),
                        .min_ratio = c.min_lr_ratio};
  for (const std::string& pattern : SplitList("freeze", c.freeze)) {
    optimizer.groups.push_back({.pattern = pattern, .trainable = false});
  }
  return optimizer;
}

std::optional<double> InitialLossScale(const TrainConfig& c) {
  if (c.loss_scale == "none") return std::nullopt;
  if (c.loss_scale == "auto" && c.dtype != "fp16") return std::nullopt;
  if (c.loss_scale == "auto" || c.loss_scale == "dynamic") {
    return c.init_loss_scale;
  }
  const std::optional<double> scale = ParseNumber(c.loss_scale);
  PLO_ENFORCE(scale && std::fabs(*scale) <= std::numeric_limits<float>::max(),
              kInvalidArgument, "--loss_scale=", c.loss_scale,
              ": expected dynamic, none, auto or a number");
  RequireLossScale("loss_scale", *scale);
  return scale;
}

std::optional<double> StreamedFraction(const TrainConfig& c) {
  if (c.offload_streamed_fraction == "auto") return std::nullopt;
  const std::optional<double> fraction =
      ParseNumber(c.offload_streamed_fraction);
  PLO_ENFORCE(fraction && *fraction >= 0 && *fraction <= 1, kInvalidArgument,
              "--offload_streamed_fraction=", c.offload_streamed_fraction,
              ": expected auto or a number in [0, 1]");
  return fraction;
}

DefaultPipelineOptions MakePipelineOptions(const TrainConfig& c,
                                           int world_size) {
  DefaultPipelineOptions options;
  options.dtype = ParseDType(c.dtype);
  options.recompute = c.recompute;
  options.sharding_stage = c.sharding_stage;
  options.sharding_degree = world_size;
  options.bucket_mb = c.bucket_mb;
  options.grad_dtype = c.grad_dtype;
  options.accumulate_steps = c.accumulate_steps;
  if (const auto scale = InitialLossScale(c)) {
    options.loss_scale = HasDynamicLossScale(c) ? "dynamic" : "static";
    options.init_loss_scale = *scale;
  }
  options.loss_scale_incr_ratio = c.loss_scale_growth;
  options.loss_scale_decr_ratio = c.loss_scale_backoff;
  options.loss_scale_incr_every_n = c.loss_scale_window;
  options.min_loss_scale = c.min_loss_scale;
  options.clip_norm = c.clip_norm;
  options.insert_optimizer = MakeOptimizer(c).PipelineEntry();
  options.offload_optimizer = c.offload == "optimizer";
  options.offload_fraction = c.offload_fraction;
  options.offload_streamed_fraction = StreamedFraction(c).value_or(0);
  options.offload_mode = c.offload_mode;
  options.prefetch_depth = c.prefetch_depth;
  return options;
}

std::string MakeEvalPipeline(const TrainConfig& c) {
  return c.dtype == "fp32" ? "" : "apply_amp(dtype=" + c.dtype + ")";
}

nlohmann::json ToJson(const TrainConfig& config) {
  nlohmann::json json = nlohmann::json::object();
  TrainConfig copy = config;
  VisitFields(copy, [&json](const char* name, auto field, const char*) {
    if constexpr (std::is_same_v<decltype(field), ByteCount>) {
      json[name] = *field.bytes;
    } else {
      json[name] = *field;
    }
  });
  return json;
}

}  // namespace plo
