#include "paddle_lite_offload/flag_conditions.h"

#include <cstdlib>
#include <type_traits>

#include "paddle_lite_offload/train_config_fields.h"

namespace plo {
namespace {

struct Condition {
  const char* flag;
  bool (*holds)(const TrainConfig& config);
  const char* needs;
};

bool IsGpt(const TrainConfig& c) { return c.model == "gpt"; }
bool IsSgd(const TrainConfig& c) { return c.optimizer == "sgd"; }
bool IsAdam(const TrainConfig& c) { return !IsSgd(c); }
bool Generates(const TrainConfig& c) { return c.generate > 0; }
bool Offloads(const TrainConfig& c) { return c.offload != "none"; }
// No share at all is what runs without offload have.
bool HasFraction(const TrainConfig& c) {
  return c.offload == "optimizer" ||
         (c.offload == "none" && c.offload_fraction == 0);
}
bool HasStreamedFraction(const TrainConfig& c) {
  return Offloads(c) || std::atof(c.offload_streamed_fraction.c_str()) == 0;
}
bool MayRunOnGpu(const TrainConfig& c) { return c.device != "cpu"; }
bool LrDecays(const TrainConfig& c) { return c.lr_schedule != "constant"; }
bool ScalesDynamically(const TrainConfig& c) {
  return c.loss_scale == "dynamic" ||
         (c.loss_scale == "auto" && c.dtype == "fp16");
}

constexpr const char* kGpt = "--model=gpt";
constexpr const char* kAdam = "--optimizer=adamw or adam";
constexpr const char* kDynamic = "a dynamic --loss_scale";
constexpr const char* kOptimizer = "--offload=optimizer";
constexpr const char* kOffload = "--offload=optimizer or auto";

constexpr Condition kConditions[] = {
    {"heads", IsGpt, kGpt},
    {"kv_heads", IsGpt, kGpt},
    {"ffn_hidden", IsGpt, kGpt},
    {"seq_len", IsGpt, kGpt},
    {"vocab_size", IsGpt, kGpt},
    {"tied_head", IsGpt, kGpt},
    {"init_loss_scale", ScalesDynamically, kDynamic},
    {"min_loss_scale", ScalesDynamically, kDynamic},
    {"loss_scale_growth", ScalesDynamically, kDynamic},
    {"loss_scale_backoff", ScalesDynamically, kDynamic},
    {"loss_scale_window", ScalesDynamically, kDynamic},
    {"beta1", IsAdam, kAdam},
    {"beta2", IsAdam, kAdam},
    {"eps", IsAdam, kAdam},
    {"momentum", IsSgd, "--optimizer=sgd"},
    {"min_lr_ratio", LrDecays, "--lr_schedule=linear or cosine"},
    {"offload_fraction", HasFraction, kOptimizer},
    {"offload_streamed_fraction", HasStreamedFraction, kOffload},
    {"offload_mode", Offloads, kOffload},
    {"cuda_graphs", MayRunOnGpu, "--device=cuda or auto"},
    {"temperature", Generates, "--generate"},
    {"prompt", Generates, "--generate"},
};

// Calls visit(pointer or ByteCount) for the field of that name.
template <typename Visit>
void VisitField(const std::string& wanted, TrainConfig& config, Visit visit) {
  VisitFields(config, [&](const char* name, auto field, const char*) {
    if (name == wanted) visit(field);
  });
}

// Calls visit(value, default) for the field of that name.
template <typename Visit>
void VisitWithDefault(const std::string& name, TrainConfig& config,
                      Visit visit) {
  VisitField(name, config, [&](auto field) {
    using Field = decltype(field);
    TrainConfig defaults;
    VisitField(name, defaults, [&](auto other) {
      if constexpr (std::is_same_v<Field, decltype(other)>) {
        if constexpr (std::is_same_v<Field, ByteCount>) {
          visit(*field.bytes, *other.bytes);
        } else {
          visit(*field, *other);
        }
      }
    });
  });
}

bool IsDefault(const std::string& name, const TrainConfig& config) {
  bool same = true;
  TrainConfig copy = config;
  VisitWithDefault(name, copy, [&same](const auto& value, const auto& other) {
    same = value == other;
  });
  return same;
}

}  // namespace

std::vector<IdleFlag> FindIdleFlags(const TrainConfig& config) {
  std::vector<IdleFlag> idle;
  for (const Condition& condition : kConditions) {
    if (!condition.holds(config) && !IsDefault(condition.flag, config)) {
      idle.push_back({condition.flag, condition.needs});
    }
  }
  return idle;
}

std::string Describe(const IdleFlag& flag) {
  return StrCat("--", flag.name, " has no effect without ", flag.needs);
}

void ResetFlag(const std::string& name, TrainConfig& config) {
  VisitWithDefault(name, config,
                   [](auto& value, const auto& other) { value = other; });
}

}  // namespace plo
