// Elementary functions by the special function unit: for results that are
// rounded to 16 bits. Relative errors stay below 2^-18, a 16-bit dtype rounds
// by 2^-12 at best.
#ifndef PLO_OPERATORS_FAST_MATH_CUH_
#define PLO_OPERATORS_FAST_MATH_CUH_

namespace plo {

// Infinite beyond the range of fp32; NaN passes.
__device__ inline float FastExp(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.44269504f));
  return result;
}

// 0 for an infinite y.
__device__ inline float FastReciprocal(float y) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(y));
  return result;
}

__device__ inline float FastSigmoid(float x) {
  return FastReciprocal(1.0f + FastExp(-x));
}

__device__ inline float FastSilu(float x) { return x * FastSigmoid(x); }

// As SiluGrad() of float_math.h. The bound keeps infinity times zero away.
__device__ inline float FastSiluGrad(float x, float dout) {
  const float e = FastExp(fminf(-x, 80.0f));
  const float s = FastReciprocal(1.0f + e);
  return dout * __builtin_fmaf(x * s, e * s, s);
}

// As GeluTanh() of float_math.h.
__device__ inline float FastGeluTanh(float x) {
  const float inner = __builtin_fmaf(0.044715f * x * x, x, x);
  return x * FastSigmoid(1.595769122f * inner);
}

// As GeluTanhGrad() of float_math.h.
__device__ inline float FastGeluTanhGrad(float x, float dout) {
  const float x2 = x * x;
  const float inner = __builtin_fmaf(0.044715f * x2, x, x);
  const float e = FastExp(fminf(-1.595769122f * inner, 80.0f));
  const float s = FastReciprocal(1.0f + e);
  const float capped = x2 > 1e4f ? 1e4f : x2;
  const float slope = __builtin_fmaf(0.2140644488f, capped, 1.595769122f);
  const float bounded = x2 > 1e4f ? 0.0f : x;
  return dout * __builtin_fmaf(bounded * s * slope, e * s, s);
}

}  // namespace plo

#endif  // PLO_OPERATORS_FAST_MATH_CUH_
