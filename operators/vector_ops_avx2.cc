// Compiled with -mavx2 -mf16c where the compiler targets x86-64.
#include "operators/vector_ops_impl.h"

namespace plo {

const VectorOps* Avx2VectorOps() {
#ifdef __AVX2__
  static const bool usable =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  return usable ? &kTable : nullptr;
#else
  return nullptr;
#endif
}

}  // namespace plo
