// Applies FloatLoops to whole tensors of any float dtype: chunks are converted
// to fp32, computed and rounded once.
#ifndef PLO_OPERATORS_ELEMENTWISE_H_
#define PLO_OPERATORS_ELEMENTWISE_H_

#include "operators/float_loops.h"
#include "operators/kernel_util.h"

namespace plo {

// Elements a thread takes at a time.
inline constexpr int64_t kElementwiseGrain = 32 * kRowChunk;

// loop(x, n, out). The tensors may be the same.
template <typename Loop>
void MapUnary(const Tensor& x, const Tensor& out, const Loop& loop) {
  ParallelRanges(out.numel, kElementwiseGrain, [&](int64_t begin, int64_t end) {
    float xs[kRowChunk], results[kRowChunk];
    ForRowChunks(end - begin, [&](int64_t offset, int64_t n) {
      const int64_t at = begin + offset;
      float* target = FloatTarget(out.dtype, out.data, at, results);
      loop(FloatsAt(x.dtype, x.data, at, n, xs), n, target);
      StoreFloats(out.dtype, target, out.data, at, n);
    });
  });
}

// loop(x, y, n, out) over tensors of one shape.
template <typename Loop>
void MapBinary(const Tensor& x, const Tensor& y, const Tensor& out,
               const Loop& loop) {
  ParallelRanges(out.numel, kElementwiseGrain, [&](int64_t begin, int64_t end) {
    float xs[kRowChunk], ys[kRowChunk], results[kRowChunk];
    ForRowChunks(end - begin, [&](int64_t offset, int64_t n) {
      const int64_t at = begin + offset;
      float* target = FloatTarget(out.dtype, out.data, at, results);
      loop(FloatsAt(x.dtype, x.data, at, n, xs),
           FloatsAt(y.dtype, y.data, at, n, ys), n, target);
      StoreFloats(out.dtype, target, out.data, at, n);
    });
  });
}

}  // namespace plo

#endif  // PLO_OPERATORS_ELEMENTWISE_H_
