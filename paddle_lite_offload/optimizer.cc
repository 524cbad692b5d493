#include "paddle_lite_offload/optimizer.h"

#include <charconv>
#include <cmath>

namespace plo {
namespace {

void RequireInUnitInterval(const char* what, double value) {
  PLO_ENFORCE(value >= 0 && value < 1, kInvalidArgument, what,
              " must be in [0, 1), got ", value);
}

void RequireFiniteNonNegative(const char* what, double value) {
  PLO_ENFORCE(std::isfinite(static_cast<float>(value)) && value >= 0,
              kInvalidArgument, what,
              " must be finite in fp32 and not negative, got ", value);
}

Optimizer FromAdamOptions(std::string type, const AdamOptions& options) {
  Optimizer optimizer;
  optimizer.type = std::move(type);
  optimizer.lr = options.lr;
  optimizer.beta1 = options.beta1;
  optimizer.beta2 = options.beta2;
  optimizer.eps = options.eps;
  optimizer.weight_decay = options.weight_decay;
  optimizer.schedule = options.schedule;
  return optimizer;
}

}  // namespace

std::string RoundTrip(double value) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value);
  return std::string(buffer, end.ptr);
}

bool MatchesPattern(std::string_view pattern, std::string_view text) {
  // On a mismatch the last '*' takes one character more.
  size_t p = 0, t = 0, star = std::string_view::npos, star_text = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_text = t;
    } else if (p < pattern.size() &&
               (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++star_text;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

Optimizer AdamW(const AdamOptions& options) {
  return FromAdamOptions("adamw", options);
}
Optimizer Adam(const AdamOptions& options) {
  return FromAdamOptions("adam", options);
}

Optimizer Sgd(const SgdOptions& options) {
  Optimizer optimizer;
  optimizer.type = "sgd";
  optimizer.lr = options.lr;
  optimizer.momentum = options.momentum;
  optimizer.nesterov = options.nesterov;
  optimizer.weight_decay = options.weight_decay;
  optimizer.schedule = options.schedule;
  return optimizer;
}

void Optimizer::Validate() const {
  const bool adam = type == "adamw" || type == "adam";
  PLO_ENFORCE(adam || type == "sgd", kInvalidArgument, "unknown optimizer '",
              type, "', expected adamw, adam or sgd");
  RequireFiniteNonNegative("lr", lr);
  RequireFiniteNonNegative("weight_decay", weight_decay);
  if (adam) {
    RequireInUnitInterval("beta1", beta1);
    RequireInUnitInterval("beta2", beta2);
    const auto eps32 = static_cast<float>(eps);
    PLO_ENFORCE(std::isfinite(eps32) && eps32 > 0, kInvalidArgument,
                "eps must be positive and finite in fp32, got ", eps);
  } else {
    RequireInUnitInterval("momentum", momentum);
  }
  const bool decays = schedule.kind == "linear" || schedule.kind == "cosine";
  PLO_ENFORCE(decays || schedule.kind == "constant", kInvalidArgument,
              "unknown lr_schedule '", schedule.kind,
              "', expected constant, linear or cosine");
  PLO_ENFORCE(schedule.warmup_steps >= 0, kInvalidArgument,
              "warmup_steps must not be negative, got ", schedule.warmup_steps);
  PLO_ENFORCE(!decays || schedule.total_steps > 0, kInvalidArgument,
              "lr_schedule ", schedule.kind, " needs total_steps, got ",
              schedule.total_steps);
  PLO_ENFORCE(schedule.min_ratio >= 0 && schedule.min_ratio <= 1,
              kInvalidArgument, "min_lr_ratio must be in [0, 1], got ",
              schedule.min_ratio);
}

std::string Optimizer::PipelineEntry() const {
  Validate();
  std::string entry =
      StrCat("insert_optimizer(type=", type, ",lr=", RoundTrip(lr));
  if (type == "sgd") {
    entry += ",momentum=" + RoundTrip(momentum);
    if (nesterov) entry += ",nesterov=true";
  } else {
    entry += StrCat(",beta1=", RoundTrip(beta1), ",beta2=", RoundTrip(beta2),
                    ",eps=", RoundTrip(eps));
  }
  entry += ",weight_decay=" + RoundTrip(weight_decay);
  if (schedule.kind != "constant" || schedule.warmup_steps > 0) {
    entry += StrCat(",lr_schedule=", schedule.kind,
                    ",warmup_steps=", schedule.warmup_steps,
                    ",total_steps=", schedule.total_steps,
                    ",min_lr_ratio=", RoundTrip(schedule.min_ratio));
  }
  return entry + ")";
}

void Optimizer::ApplyGroups(Program& program) const {
  for (const ParamGroup& group : groups) {
    PLO_ENFORCE(!group.lr_scale ||
                    (std::isfinite(*group.lr_scale) && *group.lr_scale >= 0),
                kInvalidArgument, "lr_scale of param group '", group.pattern,
                "' must be a finite number and not negative, got ",
                group.lr_scale.value_or(0));
    bool matched = false;
    for (VarId id : program.Params()) {
      Var& param = program.mutable_var(id);
      if (!MatchesPattern(group.pattern, param.name)) continue;
      matched = true;
      ParamAttrs& attrs = param.param;
      attrs.trainable = group.trainable.value_or(attrs.trainable);
      attrs.need_clip = group.need_clip.value_or(attrs.need_clip);
      attrs.weight_decay = group.weight_decay.value_or(attrs.weight_decay);
      attrs.lr_scale = group.lr_scale.value_or(attrs.lr_scale);
    }
    PLO_ENFORCE(matched, kNotFound, "param group '", group.pattern,
                "' matches no param");
  }
}

}  // namespace plo
