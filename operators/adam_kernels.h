// The optimizer updates over a run of elements: scalar, AVX2 and AVX-512
// versions with equal bits, chosen at run time.
//
// One pass: gradient and state are read, state and 16-bit param written, 28
// bytes per element with Adam and 16-bit gradients and params. Params go past
// the cache (non-temporal stores) where they are aligned and do not take the
// gradient's bytes.
#ifndef PLO_OPERATORS_ADAM_KERNELS_H_
#define PLO_OPERATORS_ADAM_KERNELS_H_

#include <cstdint>

#include "framework/ir/types.h"
#include "operators/adam_math.h"

namespace plo {

struct UpdateOperands {
  const void* grad = nullptr;
  DType grad_dtype = DType::kFp32;
  float* master = nullptr;
  float* moment1 = nullptr;
  float* moment2 = nullptr;  // Adam only
  // The rounded param, or null. May be `grad` when the dtypes are equal.
  void* param = nullptr;
  DType param_dtype = DType::kBf16;
};

struct UpdateKernels {
  const char* name;
  // Elements [begin, end) of the operands.
  void (*adam)(const AdamScalars& scalars, const UpdateOperands& operands,
               int64_t begin, int64_t end);
  void (*sgd)(const SgdScalars& scalars, const UpdateOperands& operands,
              int64_t begin, int64_t end);
};

// The fastest version this CPU runs.
const UpdateKernels& GetUpdateKernels();

const UpdateKernels& ScalarUpdateKernels();
// Null where the CPU lacks the instructions.
const UpdateKernels* Avx2UpdateKernels();
const UpdateKernels* Avx512UpdateKernels();

}  // namespace plo

#endif  // PLO_OPERATORS_ADAM_KERNELS_H_
