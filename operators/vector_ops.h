// Row primitives in fp32, and bulk conversions to and from 16 bits.
//
// Built twice, for AVX2 + F16C and for any x86-64 or other CPU, and chosen once
// at run time. Both builds give the same bits: sums use eight lanes combined in
// one fixed order, and nothing is contracted to fma.
#ifndef PLO_OPERATORS_VECTOR_OPS_H_
#define PLO_OPERATORS_VECTOR_OPS_H_

#include <cstdint>

namespace plo {

// Outputs may equal inputs unless said otherwise; n may be zero.
struct VectorOps {
  void (*bf16_to_float)(const uint16_t* src, float* dst, int64_t n);
  void (*fp16_to_float)(const uint16_t* src, float* dst, int64_t n);
  void (*float_to_bf16)(const float* src, uint16_t* dst, int64_t n);
  void (*float_to_fp16)(const float* src, uint16_t* dst, int64_t n);

  // -inf for n == 0. NaNs may be ignored: pair it with a sum that keeps them.
  float (*max)(const float* x, int64_t n);
  float (*sum)(const float* x, int64_t n);
  float (*dot)(const float* x, const float* y, int64_t n);
  // sum((x - mean)^2)
  float (*sum_squares_about)(const float* x, float mean, int64_t n);
  // y = exp(x - shift); returns sum(y). exp(-inf) is 0.
  float (*exp_sum)(const float* x, float shift, float* y, int64_t n);
  // sum(exp(x - shift))
  float (*exp_sum_only)(const float* x, float shift, int64_t n);
  // y = exp(x)
  void (*exp)(const float* x, float* y, int64_t n);
  // y = x * factor
  void (*scale)(const float* x, float factor, float* y, int64_t n);
  // y += x
  void (*add)(const float* x, float* y, int64_t n);
  // y += x * factor
  void (*axpy)(const float* x, float factor, float* y, int64_t n);
  // out = (x - mean) * rstd
  void (*normalize)(const float* x, float mean, float rstd, float* out,
                    int64_t n);
  // out = x * weight + bias
  void (*mul_add)(const float* x, const float* weight, const float* bias,
                  float* out, int64_t n);
  // out = x * y
  void (*mul)(const float* x, const float* y, float* out, int64_t n);
  // out = p * (dp - delta) * factor: the backward of a softmax row.
  void (*softmax_backward)(const float* p, const float* dp, float delta,
                           float factor, float* out, int64_t n);
};

// The build for this CPU.
const VectorOps& Vec();

// For tests: the portable build, and the AVX2 build or null.
const VectorOps& PortableVectorOps();
const VectorOps* Avx2VectorOps();

}  // namespace plo

#endif  // PLO_OPERATORS_VECTOR_OPS_H_
