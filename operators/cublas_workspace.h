// Scratch that products on cuBLASLt are planned with.
#ifndef PLO_OPERATORS_CUBLAS_WORKSPACE_H_
#define PLO_OPERATORS_CUBLAS_WORKSPACE_H_

#include <cstdint>

namespace plo {

// For an output of `outputs` elements with sums over k. A function of the shape
// only: the algorithm is chosen for this size, so it must not depend on the
// memory that is left. Products too small to be split along k need none.
inline int64_t CublasWorkspaceBytes(int64_t outputs, int64_t k) {
  const double work = static_cast<double>(outputs) * static_cast<double>(k);
  if (work < double{1 << 24}) return 0;
  if (work < double{1 << 30}) return int64_t{4} << 20;
  return int64_t{32} << 20;  // what NVIDIA advises for Hopper
}

}  // namespace plo

#endif  // PLO_OPERATORS_CUBLAS_WORKSPACE_H_
