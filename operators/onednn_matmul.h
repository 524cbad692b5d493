// Matrix products by oneDNN's matmul primitive, where it has better kernels
// than RunGemm() has: with AVX-512 in fp32, with AVX-512 BF16 or AMX in bf16.
#ifndef PLO_OPERATORS_ONEDNN_MATMUL_H_
#define PLO_OPERATORS_ONEDNN_MATMUL_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "operators/onednn_utils.h"

namespace plo {

// Whether products in this dtype are the primitive's. Asked of oneDNN once, so
// ONEDNN_MAX_CPU_ISA counts as it does there.
bool UsesOnednnMatmul(DType dtype);

// A product made once and run with other pointers; one run at a time. Its bits
// depend on the shapes, the CPU and the number of OpenMP threads only.
class OnednnMatmul {
 public:
  // For calls like `call`, of which no dimension may be zero. Null if oneDNN
  // has no more than plain loops for it.
  static std::optional<OnednnMatmul> Find(const GemmCall& call);
  ~OnednnMatmul();
  OnednnMatmul(OnednnMatmul&&) noexcept;
  OnednnMatmul& operator=(OnednnMatmul&&) noexcept;

  // Scratch of a run: mostly up to 2 MiB for each OpenMP thread.
  int64_t scratch_bytes() const;
  // Reads nothing but the pointers of `call`. Where the workspace does not
  // suffice, the scratch is a buffer that this thread keeps for all products.
  void Run(const GemmCall& call, void* workspace, int64_t workspace_bytes);

 private:
  struct Impl;
  explicit OnednnMatmul(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace plo

#endif  // PLO_OPERATORS_ONEDNN_MATMUL_H_
