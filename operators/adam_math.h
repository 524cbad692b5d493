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

}  // namespace plo

#endif  // PLO_OPERATORS_ADAM_MATH_H_
