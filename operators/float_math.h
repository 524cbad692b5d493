// Elementary functions of fp32 without branches, so that loops over them
// vectorise. IEEE operations and explicit fused multiply-adds only: the same
// bits in every instruction set. Polynomials are Chebyshev fits of our own.
#ifndef PLO_OPERATORS_FLOAT_MATH_H_
#define PLO_OPERATORS_FLOAT_MATH_H_

#include "operators/random.h"  // BitsToFloat, FloatToBits

namespace plo {

// Within 2 ulp where |x| <= 87; saturates to exp(+-88) outside, NaN passes.
PLO_HOST_DEVICE float ExpClamped(float x) {
  const float given = x;
  x = x > 88.0f ? 88.0f : x;
  x = x < -87.0f ? -87.0f : x;
  const float shifted = __builtin_fmaf(x, 1.44269504f, 0x1.8p23f);
  const float n = shifted - 0x1.8p23f;
  float r = __builtin_fmaf(n, -0.693359375f, x);
  r = __builtin_fmaf(n, 2.12194440e-4f, r);
  float p = 1.392618404e-03f;
  p = __builtin_fmaf(p, r, 8.363178931e-03f);
  p = __builtin_fmaf(p, r, 4.166655615e-02f);
  p = __builtin_fmaf(p, r, 1.666657627e-01f);
  p = __builtin_fmaf(p, r, 0.5f);
  p = __builtin_fmaf(p, r * r, r) + 1.0f;
  // p * 2^n by adding n to the exponent; 0x1.8p23 has no bits above 23. The
  // bits of a NaN, which differ from machine to machine, could add up to a
  // number.
  const float result =
      BitsToFloat(FloatToBits(p) + (FloatToBits(shifted) << 23));
  return given == given ? result : given;
}

PLO_HOST_DEVICE float Tanh(float x) {
  const float a = __builtin_fabsf(x);
  const float x2 = x * x;
  float p = -5.937062670e-03f;
  p = __builtin_fmaf(p, x2, 2.088334784e-02f);
  p = __builtin_fmaf(p, x2, -5.382600799e-02f);
  p = __builtin_fmaf(p, x2, 1.333259940e-01f);
  p = __builtin_fmaf(p, x2, -3.333332837e-01f);
  const float small = __builtin_fmaf(p * x2, x, x);
  // 1 - 2 / (e^2a + 1): no cancellation where a > 0.6.
  const float large = 1.0f - 2.0f / (ExpClamped(2.0f * a) + 1.0f);
  const float signed_large = x < 0.0f ? -large : large;
  return a < 0.625f ? small : signed_large;
}

PLO_HOST_DEVICE float Erf(float x) {
  const float a = __builtin_fabsf(x);
  const float x2 = x * x;
  float p = 7.875874871e-05f;
  p = __builtin_fmaf(p, x2, -8.016864303e-04f);
  p = __builtin_fmaf(p, x2, 5.189087242e-03f);
  p = __builtin_fmaf(p, x2, -2.685421146e-02f);
  p = __builtin_fmaf(p, x2, 1.128359437e-01f);
  p = __builtin_fmaf(p, x2, -3.761262596e-01f);
  // The leading 2 / sqrt(pi) as 1 + rest keeps the last bit.
  p = __builtin_fmaf(p, x2, 1.283791671e-01f);
  const float small = __builtin_fmaf(p, x, x);
  // erf = 1 - e^-q with a polynomial q; 1 beyond 4.
  const float b = a > 4.0f ? 4.0f : a;
  float q = 1.333887030e-05f;
  q = __builtin_fmaf(q, b, -3.181504726e-04f);
  q = __builtin_fmaf(q, b, 3.441597801e-03f);
  q = __builtin_fmaf(q, b, -2.264282107e-02f);
  q = __builtin_fmaf(q, b, 1.033722013e-01f);
  q = __builtin_fmaf(q, b, 6.390147209e-01f);
  q = __builtin_fmaf(q, b, 1.125987768e+00f);
  q = __builtin_fmaf(q, b, 7.369867526e-04f);
  const float large = 1.0f - ExpClamped(-q);
  const float signed_large = x < 0.0f ? -large : large;
  return a < 1.0f ? small : signed_large;
}

// 1 / (1 + e^-x)
PLO_HOST_DEVICE float Sigmoid(float x) {
  return 1.0f / (1.0f + ExpClamped(-x));
}

PLO_HOST_DEVICE float Silu(float x) { return x * Sigmoid(x); }

PLO_HOST_DEVICE float SiluGrad(float x, float dout) {
  const float e = ExpClamped(-x);
  const float s = 1.0f / (1.0f + e);
  // s + x s (1 - s), with 1 - s = e s.
  return dout * __builtin_fmaf(x * s, e * s, s);
}

// 0.5 x (1 + tanh(u)) = x sigmoid(2u), 2u = sqrt(8 / pi) (x + 0.044715 x^3)
PLO_HOST_DEVICE float GeluTanh(float x) {
  const float inner = __builtin_fmaf(0.044715f * x * x, x, x);
  return x * Sigmoid(1.595769122f * inner);
}

PLO_HOST_DEVICE float GeluTanhGrad(float x, float dout) {
  const float x2 = x * x;
  const float inner = __builtin_fmaf(0.044715f * x2, x, x);
  const float e = ExpClamped(-1.595769122f * inner);
  const float s = 1.0f / (1.0f + e);
  // d(2u)/dx; the cap keeps infinity times zero away where s is 0 or 1.
  const float capped = x2 > 1e4f ? 1e4f : x2;
  const float slope = __builtin_fmaf(0.2140644488f, capped, 1.595769122f);
  const float bounded = x2 > 1e4f ? 0.0f : x;
  return dout * __builtin_fmaf(bounded * s * slope, e * s, s);
}

PLO_HOST_DEVICE float GeluErf(float x) {
  return x * __builtin_fmaf(0.5f, Erf(0.7071067812f * x), 0.5f);
}

PLO_HOST_DEVICE float GeluErfGrad(float x, float dout) {
  const float cdf = __builtin_fmaf(0.5f, Erf(0.7071067812f * x), 0.5f);
  const float x2 = x * x;
  const float density = 0.3989422804f * ExpClamped(-0.5f * x2);
  const float bounded = x2 > 1e4f ? 0.0f : x;
  return dout * __builtin_fmaf(bounded, density, cdf);
}

}  // namespace plo

#endif  // PLO_OPERATORS_FLOAT_MATH_H_
