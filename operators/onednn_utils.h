// Matrix products on oneDNN: fp32, and 16 bits by way of fp32 blocks.
//
// Matrices are row-major with a stride in elements between rows. The block
// sizes depend on the shapes only, so a product has the same bits wherever it
// runs with the same number of OpenMP threads.
#ifndef PLO_OPERATORS_ONEDNN_UTILS_H_
#define PLO_OPERATORS_ONEDNN_UTILS_H_

#include <cstdint>

#include "framework/ir/types.h"

namespace plo {

// c = alpha * op(a) * op(b) + beta * c, where op(a) is [m, k] and op(b) is [k,
// n]. Dimensions may be zero; beta == 0 overwrites whatever c held.
void Sgemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k,
           float alpha, const float* a, int64_t stride_a, const float* b,
           int64_t stride_b, float beta, float* c, int64_t stride_c);

// c = op(a) * op(b) [+ c] [+ bias], summed in fp32 and rounded once.
struct GemmCall {
  DType dtype = DType::kFp32;  // of a, b, c and bias
  bool trans_a = false, trans_b = false;
  int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;
  int64_t stride_a = 0;
  const void* b = nullptr;
  int64_t stride_b = 0;
  void* c = nullptr;
  int64_t stride_c = 0;
  bool accumulate = false;
  const void* bias = nullptr;  // [n] or null
};

// Scratch that RunGemm() touches to its last byte: about 8 MiB at most for 16
// bits; for fp32 about 4 MiB where operands are better repacked, else none.
// Does not depend on the pointers of `call`.
int64_t GemmWorkspaceBytes(const GemmCall& call);
// With null for the workspace of an fp32 product nothing is repacked.
void RunGemm(const GemmCall& call, void* workspace);

}  // namespace plo

#endif  // PLO_OPERATORS_ONEDNN_UTILS_H_
