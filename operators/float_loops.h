// Loops over runs of fp32 numbers, compiled for several instruction sets and
// chosen once at run time.
//
// Ops of every element type are built of these: convert a run that fits the L1
// cache to fp32, compute, round once (operators/kernel_util.h). All versions
// give the same bits, with any run length: an element's result never depends on
// its position, and sums have fixed lanes.
//
// Unless said otherwise `out` may equal an input; n may be zero.
#ifndef PLO_OPERATORS_FLOAT_LOOPS_H_
#define PLO_OPERATORS_FLOAT_LOOPS_H_

#include <cstdint>

namespace plo {

struct FloatLoops {
  using Unary = void (*)(const float* x, int64_t n, float* out);
  using Binary = void (*)(const float* x, const float* y, int64_t n,
                          float* out);

  const char* name;

  Binary add, sub, mul, div;
  Binary max;  // NaN if either is
  // out = x * factor + bias, one rounding.
  void (*scale)(const float* x, float factor, float bias, int64_t n,
                float* out);

  // Errors of the approximations, in ulp of the result or of x, are bounded by
  // float_loops_test.
  Unary exp, tanh, erf;
  Unary relu, silu, gelu_tanh, gelu_erf;
  // (x, dout) -> dx
  Binary relu_grad, silu_grad, tanh_grad, gelu_tanh_grad, gelu_erf_grad;

  // out = draw >= p ? x * factor : 0
  void (*dropout)(const float* x, const float* draws, float p, float factor,
                  int64_t n, float* out);

  // sums[i] += x[i]
  void (*add_to_doubles)(const float* x, int64_t n, double* sums);
  // lanes[i % 8] += x[i] (squared, in double, exact product).
  void (*sum)(const float* x, int64_t n, double* lanes);
  void (*sum_squares)(const float* x, int64_t n, double* lanes);
  int64_t (*count_nonfinite)(const float* x, int64_t n);

  // Elements 4 * block ... of one sample; see operators/random.h. The low 32
  // bits of `block` must not wrap within the run.
  void (*uniform)(uint64_t key, uint64_t sample, uint64_t block, int64_t n,
                  float* out);
  void (*normal)(uint64_t key, uint64_t sample, uint64_t block, int64_t n,
                 float* out);
};

// The fastest version this CPU runs.
const FloatLoops& GetFloatLoops();

// For tests.
const FloatLoops& BaseFloatLoops();
// Null where the CPU lacks AVX2 or FMA.
const FloatLoops* Avx2FloatLoops();

}  // namespace plo

#endif  // PLO_OPERATORS_FLOAT_LOOPS_H_
