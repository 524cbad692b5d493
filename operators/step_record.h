// The record that one op writes per step and every optimizer kernel reads.
#ifndef PLO_OPERATORS_STEP_RECORD_H_
#define PLO_OPERATORS_STEP_RECORD_H_

#include <cstdint>

#include "operators/host_device.h"

namespace plo {

// Entries of the record, fp32; the rest is zero.
enum StepRecordEntry {
  kRecordSkip = 0,             // 1: some gradient is not finite, else 0
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

}  // namespace plo

#endif  // PLO_OPERATORS_STEP_RECORD_H_
