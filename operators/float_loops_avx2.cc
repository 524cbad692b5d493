// FloatLoops compiled with -mavx2 -mfma where the target is x86-64.
#include "operators/float_loops_body.h"

namespace plo {

#ifdef __AVX2__
namespace {
constexpr FloatLoops kLoops = MakeFloatLoops("avx2");
}  // namespace

const FloatLoops* Avx2FloatLoops() {
  static const bool supported =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return supported ? &kLoops : nullptr;
}
#else
const FloatLoops* Avx2FloatLoops() { return nullptr; }
#endif

}  // namespace plo
