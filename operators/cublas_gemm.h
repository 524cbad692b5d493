// Matrix products on cuBLASLt.
//
// Matrices are row-major with a stride in elements between rows. The algorithm
// is the first that cuBLASLt's heuristic gives for the spec: a function of the
// spec, the device and the library's version, never of a timing. Split sums are
// allowed only in fp32 and in a fixed order.
#ifndef PLO_OPERATORS_CUBLAS_GEMM_H_
#define PLO_OPERATORS_CUBLAS_GEMM_H_

#include <cstdint>
#include <memory>

#include "framework/ir/types.h"

namespace plo {

// c = op(a) * op(b) [+ c] [+ bias], where op(a) is [m, k] and op(b) is [k, n],
// none of them zero; summed in fp32 and rounded once.
struct CublasGemmSpec {
  DType dtype = DType::kFp32;      // of a and b
  DType out_dtype = DType::kFp32;  // of c and bias
  bool trans_a = false, trans_b = false;
  int64_t m = 0, n = 0, k = 0;
  int64_t stride_a = 0, stride_b = 0, stride_c = 0;  // as stored
  int64_t batch = 1;
  int64_t batch_stride_a = 0, batch_stride_b = 0, batch_stride_c = 0;
  bool accumulate = false;
  const void* bias = nullptr;  // [n]
  // Bytes that the addresses are multiples of, at most kGemmAlignment.
  uint32_t align_a = 16, align_b = 16, align_c = 16;
  int64_t workspace_bytes = 0;
};

inline constexpr uint32_t kGemmAlignment = 16;
// The largest power of two up to kGemmAlignment that divides the address.
// Storages start at multiples of 256 bytes, so that this says where a view
// starts in its storage and not where the plan has put it.
uint32_t GemmAlignmentOf(const void* address);

class CublasGemm {
 public:
  // On the current device. Throws Unimplemented if cuBLASLt has no algorithm.
  explicit CublasGemm(const CublasGemmSpec& spec);
  ~CublasGemm();
  CublasGemm(CublasGemm&&) noexcept;

  // Enqueues the product on a cudaStream_t.
  void Run(const void* a, const void* b, void* c, void* workspace,
           void* stream) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace plo

#endif  // PLO_OPERATORS_CUBLAS_GEMM_H_
