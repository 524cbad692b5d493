// FloatLoops for any x86-64 CPU, and the choice between the versions.
#include "operators/float_loops_body.h"

namespace plo {

const FloatLoops& BaseFloatLoops() {
  static constexpr FloatLoops kKernels = MakeFloatLoops("base");
  return kKernels;
}

const FloatLoops& GetFloatLoops() {
  static const FloatLoops& kernels =
      Avx2FloatLoops() ? *Avx2FloatLoops() : BaseFloatLoops();
  return kernels;
}

}  // namespace plo
