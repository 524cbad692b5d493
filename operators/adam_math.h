// The optimizer updates of one element: the one formula that every kernel
// (scalar, AVX2, AVX-512, CUDA) computes operation by operation.
//
// Each operation is one correctly rounded IEEE operation and every fused
// multiply-add is spelled out, so all kernels give the same bits. Factors that
// are the same for many elements are folded on the host, in double, once per
// step and segment; see AdamScalars.
#ifndef PLO_OPERATORS_ADAM_MATH_H_
#define PLO_OPERATORS_ADAM_MATH_H_

#include "operators/host_device.h"
#include "operators/step_record.h"

namespace plo {

// m <- beta1 m + (1 - beta1) g
// v <- beta2 v + (1 - beta2) g^2
// p <- p - lr wd p - (lr / bc1) m / (sqrt(v) / sqrt(bc2) + eps)
struct AdamScalars {
  float grad_multiplier;  // unscales and clips by norm
  float clip_value;       // bound of |g|; infinity when not clipping by value
  float l2;               // weight decay added to the gradient, or 0
  float decay;            // lr * weight decay, decoupled, or 0
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float inv_sqrt_bias2;  // 1 / sqrt(bias correction 2)
  float eps;
  float step_size;  // lr / bias correction 1
};

struct SgdScalars {
  float grad_multiplier;
  float clip_value;
  float l2;
  float decay;
  float momentum;
  float step_size;  // lr
  bool nesterov;
};

// NaN passes through.
PLO_HOST_DEVICE float PreparedGrad(float grad, float multiplier, float clip,
                                   float l2, float p) {
  float g = grad * multiplier;
  g = -clip > g ? -clip : g;
  g = clip < g ? clip : g;
  return __builtin_fmaf(l2, p, g);
}

PLO_HOST_DEVICE void AdamElement(const AdamScalars& s, float grad, float& p,
                                 float& m, float& v) {
  const float g = PreparedGrad(grad, s.grad_multiplier, s.clip_value, s.l2, p);
  m = __builtin_fmaf(s.beta1, m, s.one_minus_beta1 * g);
  v = __builtin_fmaf(s.beta2, v, s.one_minus_beta2 * (g * g));
  const float denominator =
      __builtin_fmaf(__builtin_sqrtf(v), s.inv_sqrt_bias2, s.eps);
  const float decayed = __builtin_fmaf(-s.decay, p, p);
  p = __builtin_fmaf(-s.step_size, m / denominator, decayed);
}

PLO_HOST_DEVICE void SgdElement(const SgdScalars& s, float grad, float& p,
                                float& m) {
  const float g = PreparedGrad(grad, s.grad_multiplier, s.clip_value, s.l2, p);
  m = __builtin_fmaf(s.momentum, m, g);
  const float update = s.nesterov ? __builtin_fmaf(s.momentum, m, g) : m;
  const float decayed = __builtin_fmaf(-s.decay, p, p);
  p = __builtin_fmaf(-s.step_size, update, decayed);
}

// --- What all elements of a segment share ---

enum class ClipMode { kNone, kGlobalNorm, kNorm, kValue };

// The attributes of an optimizer op.
struct UpdateRule {
  double beta1 = 0, beta2 = 0, eps = 0;  // Adam
  double momentum = 0;                   // SGD
  bool nesterov = false;
  double weight_decay = 0;
  bool decoupled = true;
  ClipMode clip_mode = ClipMode::kNone;
  double clip = 0;  // bound of the norm or of the values
};

// One member of a bucket.
struct SegmentRule {
  double weight_decay = 1;  // factor of UpdateRule::weight_decay
  double lr_scale = 1;
  bool need_clip = true;
  float sum_squares = 0;  // of its unscaled gradient; for ClipMode::kNorm
};

PLO_HOST_DEVICE float GradMultiplier(const UpdateRule& rule,
                                     const SegmentRule& segment,
                                     const float* record) {
  if (!segment.need_clip) return record[kRecordUnclipped];
  if (rule.clip_mode == ClipMode::kGlobalNorm) return record[kRecordMultiplier];
  if (rule.clip_mode != ClipMode::kNorm) return record[kRecordUnclipped];
  const double scale = record[kRecordUnclipped];
  const double norm = __builtin_sqrt(static_cast<double>(segment.sum_squares));
  return static_cast<float>(scale * ClipCoefficient(rule.clip, norm));
}

PLO_HOST_DEVICE float ClipValue(const UpdateRule& rule,
                                const SegmentRule& segment) {
  const bool clips = rule.clip_mode == ClipMode::kValue && segment.need_clip;
  return clips ? static_cast<float>(rule.clip) : __builtin_inff();
}

PLO_HOST_DEVICE AdamScalars FoldAdam(const UpdateRule& rule,
                                     const SegmentRule& segment,
                                     const float* record) {
  const double lr = record[kRecordLr] * segment.lr_scale;
  const double wd = rule.weight_decay * segment.weight_decay;
  AdamScalars s;
  s.grad_multiplier = GradMultiplier(rule, segment, record);
  s.clip_value = ClipValue(rule, segment);
  s.l2 = rule.decoupled ? 0.0f : static_cast<float>(wd);
  s.decay = rule.decoupled ? static_cast<float>(lr * wd) : 0.0f;
  s.beta1 = static_cast<float>(rule.beta1);
  s.one_minus_beta1 = static_cast<float>(1.0 - rule.beta1);
  s.beta2 = static_cast<float>(rule.beta2);
  s.one_minus_beta2 = static_cast<float>(1.0 - rule.beta2);
  s.inv_sqrt_bias2 = static_cast<float>(
      1.0 /
      __builtin_sqrt(static_cast<double>(record[kRecordBiasCorrection2])));
  s.eps = static_cast<float>(rule.eps);
  s.step_size = static_cast<float>(lr / record[kRecordBiasCorrection1]);
  return s;
}

PLO_HOST_DEVICE SgdScalars FoldSgd(const UpdateRule& rule,
                                   const SegmentRule& segment,
                                   const float* record) {
  const double lr = record[kRecordLr] * segment.lr_scale;
  const double wd = rule.weight_decay * segment.weight_decay;
  SgdScalars s;
  s.grad_multiplier = GradMultiplier(rule, segment, record);
  s.clip_value = ClipValue(rule, segment);
  s.l2 = rule.decoupled ? 0.0f : static_cast<float>(wd);
  s.decay = rule.decoupled ? static_cast<float>(lr * wd) : 0.0f;
  s.momentum = static_cast<float>(rule.momentum);
  s.step_size = static_cast<float>(lr);
  s.nesterov = rule.nesterov;
  return s;
}

}  // namespace plo

#endif  // PLO_OPERATORS_ADAM_MATH_H_
