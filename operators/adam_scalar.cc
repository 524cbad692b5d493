// The reference version of the updates, and the choice between the versions.
#include "framework/ir/float16.h"
#include "operators/adam_kernels.h"

namespace plo {
namespace {

float LoadGrad(const UpdateOperands& o, int64_t i) {
  switch (o.grad_dtype) {
    case DType::kBf16:
      return Bf16BitsToFloat(static_cast<const uint16_t*>(o.grad)[i]);
    case DType::kFp16:
      return Fp16BitsToFloat(static_cast<const uint16_t*>(o.grad)[i]);
    default:
      return static_cast<const float*>(o.grad)[i];
  }
}

void StoreParam(const UpdateOperands& o, int64_t i, float value) {
  if (o.param == nullptr) return;
  switch (o.param_dtype) {
    case DType::kBf16:
      static_cast<uint16_t*>(o.param)[i] = FloatToBf16Bits(value);
      return;
    case DType::kFp16:
      static_cast<uint16_t*>(o.param)[i] = FloatToFp16Bits(value);
      return;
    default:
      static_cast<float*>(o.param)[i] = value;
  }
}

void Adam(const AdamScalars& scalars, const UpdateOperands& o, int64_t begin,
          int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    AdamElement(scalars, LoadGrad(o, i), o.master[i], o.moment1[i],
                o.moment2[i]);
    StoreParam(o, i, o.master[i]);
  }
}

void Sgd(const SgdScalars& scalars, const UpdateOperands& o, int64_t begin,
         int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    SgdElement(scalars, LoadGrad(o, i), o.master[i], o.moment1[i]);
    StoreParam(o, i, o.master[i]);
  }
}

}  // namespace

const UpdateKernels& ScalarUpdateKernels() {
  static constexpr UpdateKernels kKernels = {"scalar", Adam, Sgd};
  return kKernels;
}

const UpdateKernels& GetUpdateKernels() {
  static const UpdateKernels& kernels = []() -> const UpdateKernels& {
    if (const UpdateKernels* wide = Avx512UpdateKernels()) return *wide;
    if (const UpdateKernels* wide = Avx2UpdateKernels()) return *wide;
    return ScalarUpdateKernels();
  }();
  return kernels;
}

}  // namespace plo
