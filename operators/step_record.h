// The record that one op writes per step and every optimizer kernel reads.
#ifndef PLO_OPERATORS_STEP_RECORD_H_
#define PLO_OPERATORS_STEP_RECORD_H_

#include <cstdint>

#include "operators/host_device.h"

namespace plo {

// Entries of the record, fp32; the rest is zero.
enum StepRecordEntry {
  kRecordSkip = 0,             // 1: no finite update can be made, else 0
  kRecordLr = 1,               // learning rate of this update
  kRecordBiasCorrection1 = 2,  // 1 - beta1^t, t counting applied updates
  kRecordBiasCorrection2 = 3,
  kRecordMultiplier = 4,   // 1 / loss scale, times the clip coefficient
  kRecordUnclipped = 5,    // 1 / loss scale
  kRecordNorm = 6,         // global gradient norm, unscaled, before clipping
  kRecordLossScale = 7,    // the scale this step's gradients carry
  kRecordAppliedStep = 8,  // updates applied after this step
  kRecordNonfinite = 9,    // number of gradient elements not finite
};
inline constexpr int64_t kStepRecordSize = 16;

// PyTorch's clip_grad_norm_: min(1, max_norm / (norm + 1e-6)).
PLO_HOST_DEVICE double ClipCoefficient(double max_norm, double norm) {
  const double coefficient = max_norm / (norm + 1e-6);
  return coefficient < 1.0 ? coefficient : 1.0;
}

// base^exponent by squaring: no libm, so the same bits on every machine.
PLO_HOST_DEVICE double Power(double base, int64_t exponent) {
  double result = 1.0;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result *= base;
    base *= base;
  }
  return result;
}

// The attributes of a step_record op.
struct StepRecordRule {
  double beta1, beta2;
  bool clips_global_norm;
  double clip_norm;
};

// What a step_record op reads, with the stats summed up.
struct StepInputs {
  double squares;    // of the gradients in the norm, without the scale
  double nonfinite;  // gradient elements
  double scale;
  float lr;
  int64_t applied_step;
};

// Writes the record; returns the number of updates applied after this step.
PLO_HOST_DEVICE int64_t WriteStepRecord(const StepRecordRule& rule,
                                        const StepInputs& in, float* record) {
  const double norm = __builtin_sqrt(in.squares);
  const double coefficient =
      rule.clips_global_norm ? ClipCoefficient(rule.clip_norm, norm) : 1.0;
  const float multiplier = static_cast<float>(coefficient / in.scale);
  // A counter that overflowed to infinity or NaN counts as well. Gradients that
  // are finite one by one may have no norm in fp32, or no multiplier: an update
  // would be of zeros, silently.
  const float infinity = __builtin_inff();
  const bool skip = !(in.nonfinite == 0) || !(norm < infinity) ||
                    !(multiplier > 0 && multiplier < infinity);
  const int64_t update = in.applied_step + 1;
  const int64_t applied_after = skip ? in.applied_step : update;
  for (int64_t i = 0; i < kStepRecordSize; ++i) record[i] = 0.0f;
  record[kRecordSkip] = skip ? 1.0f : 0.0f;
  record[kRecordLr] = in.lr;
  record[kRecordBiasCorrection1] =
      static_cast<float>(1.0 - Power(rule.beta1, update));
  record[kRecordBiasCorrection2] =
      static_cast<float>(1.0 - Power(rule.beta2, update));
  record[kRecordMultiplier] = multiplier;
  record[kRecordUnclipped] = static_cast<float>(1.0 / in.scale);
  record[kRecordNorm] = static_cast<float>(norm);
  record[kRecordLossScale] = static_cast<float>(in.scale);
  record[kRecordAppliedStep] = static_cast<float>(applied_after);
  record[kRecordNonfinite] = static_cast<float>(in.nonfinite);
  return applied_after;
}

// Values of the attribute need_clip, one per entry of stats.
inline constexpr int64_t kCountsInNorm = 1;
inline constexpr int64_t kNonfiniteCounter = -1;

}  // namespace plo

#endif  // PLO_OPERATORS_STEP_RECORD_H_
