// The updates of adam_math.h on SIMD vectors, included by one .cc per
// instruction set, which defines
//
//   struct Isa {
//     using Floats = ...;                    // kWidth lanes
//     static constexpr int64_t kWidth;
//     Set, Load, Store, Mul, Div, Sqrt, Fma, Fnmadd, Max, Min;
//     LoadBf16, LoadFp16;
//     PackBf16, PackFp16(a, b) -> Halves;    // 2 * kWidth lanes of 16 bits
//     StoreHalves, StreamHalves;             // the latter aligned, past caches
//     static void Fence();
//   };
//
// Everything has internal linkage, for the reason given in host_device.h.
#ifndef PLO_OPERATORS_ADAM_SIMD_BODY_H_
#define PLO_OPERATORS_ADAM_SIMD_BODY_H_

#include <cstdint>

#include "operators/adam_kernels.h"

namespace plo {
namespace {

using Floats = Isa::Floats;
constexpr int64_t kWidth = Isa::kWidth;
// Two vectors at a time, whose 16-bit results fill one store.
constexpr int64_t kStep = 2 * kWidth;

template <DType kType>
Floats LoadGrad(const void* grad, int64_t i) {
  if constexpr (kType == DType::kBf16) {
    return Isa::LoadBf16(static_cast<const uint16_t*>(grad) + i);
  } else if constexpr (kType == DType::kFp16) {
    return Isa::LoadFp16(static_cast<const uint16_t*>(grad) + i);
  } else {
    return Isa::Load(static_cast<const float*>(grad) + i);
  }
}

struct SharedVectors {
  Floats multiplier, minus_clip, clip, l2, decay, step_size;
};

Floats PreparedGrad(const SharedVectors& s, Floats grad, Floats p) {
  Floats g = Isa::Mul(grad, s.multiplier);
  // Max and Min give their second operand when it is NaN, as the scalar code.
  g = Isa::Max(s.minus_clip, g);
  g = Isa::Min(s.clip, g);
  return Isa::Fma(s.l2, p, g);
}

template <typename Scalars>
SharedVectors MakeShared(const Scalars& s) {
  return {Isa::Set(s.grad_multiplier), Isa::Set(-s.clip_value),
          Isa::Set(s.clip_value),      Isa::Set(s.l2),
          Isa::Set(s.decay),           Isa::Set(s.step_size)};
}

struct AdamVectors {
  SharedVectors shared;
  Floats beta1, one_minus_beta1, beta2, one_minus_beta2, inv_sqrt_bias2, eps;

  explicit AdamVectors(const AdamScalars& s)
      : shared(MakeShared(s)),
        beta1(Isa::Set(s.beta1)),
        one_minus_beta1(Isa::Set(s.one_minus_beta1)),
        beta2(Isa::Set(s.beta2)),
        one_minus_beta2(Isa::Set(s.one_minus_beta2)),
        inv_sqrt_bias2(Isa::Set(s.inv_sqrt_bias2)),
        eps(Isa::Set(s.eps)) {}

  Floats Update(Floats grad, const UpdateOperands& o, int64_t i) const {
    const Floats p = Isa::Load(o.master + i);
    const Floats g = PreparedGrad(shared, grad, p);
    const Floats m =
        Isa::Fma(beta1, Isa::Load(o.moment1 + i), Isa::Mul(one_minus_beta1, g));
    const Floats v = Isa::Fma(beta2, Isa::Load(o.moment2 + i),
                              Isa::Mul(one_minus_beta2, Isa::Mul(g, g)));
    const Floats denominator = Isa::Fma(Isa::Sqrt(v), inv_sqrt_bias2, eps);
    const Floats decayed = Isa::Fnmadd(shared.decay, p, p);
    const Floats next =
        Isa::Fnmadd(shared.step_size, Isa::Div(m, denominator), decayed);
    Isa::Store(o.master + i, next);
    Isa::Store(o.moment1 + i, m);
    Isa::Store(o.moment2 + i, v);
    return next;
  }
};

struct SgdVectors {
  SharedVectors shared;
  Floats momentum;
  bool nesterov;

  explicit SgdVectors(const SgdScalars& s)
      : shared(MakeShared(s)),
        momentum(Isa::Set(s.momentum)),
        nesterov(s.nesterov) {}

  Floats Update(Floats grad, const UpdateOperands& o, int64_t i) const {
    const Floats p = Isa::Load(o.master + i);
    const Floats g = PreparedGrad(shared, grad, p);
    const Floats m = Isa::Fma(momentum, Isa::Load(o.moment1 + i), g);
    const Floats update = nesterov ? Isa::Fma(momentum, m, g) : m;
    const Floats decayed = Isa::Fnmadd(shared.decay, p, p);
    const Floats next = Isa::Fnmadd(shared.step_size, update, decayed);
    Isa::Store(o.master + i, next);
    Isa::Store(o.moment1 + i, m);
    return next;
  }
};

template <DType kGrad, typename Vectors>
void Step(const Vectors& vectors, const UpdateOperands& o, int64_t i,
          bool stream) {
  // Both gradients are loaded before the param is stored over them.
  const Floats g0 = LoadGrad<kGrad>(o.grad, i);
  const Floats g1 = LoadGrad<kGrad>(o.grad, i + kWidth);
  const Floats p0 = vectors.Update(g0, o, i);
  const Floats p1 = vectors.Update(g1, o, i + kWidth);
  if (o.param == nullptr) return;
  if (o.param_dtype == DType::kFp32) {
    Isa::Store(static_cast<float*>(o.param) + i, p0);
    Isa::Store(static_cast<float*>(o.param) + i + kWidth, p1);
    return;
  }
  const Isa::Halves halves = o.param_dtype == DType::kBf16
                                 ? Isa::PackBf16(p0, p1)
                                 : Isa::PackFp16(p0, p1);
  uint16_t* target = static_cast<uint16_t*>(o.param) + i;
  if (stream) {
    Isa::StreamHalves(target, halves);
  } else {
    Isa::StoreHalves(target, halves);
  }
}

int64_t SizeOfType(DType dtype) { return dtype == DType::kFp32 ? 4 : 2; }

// The last n < kStep elements, through vectors padded with zeros.
template <DType kGrad, typename Vectors>
void Tail(const Vectors& vectors, const UpdateOperands& o, int64_t begin,
          int64_t n) {
  alignas(64) unsigned char grad[kStep * 4] = {};
  alignas(64) unsigned char param[kStep * 4];
  alignas(64) float master[kStep] = {};
  alignas(64) float moment1[kStep] = {};
  alignas(64) float moment2[kStep] = {};
  const auto copy = [](void* to, const void* from, int64_t bytes) {
    __builtin_memcpy(to, from, static_cast<__SIZE_TYPE__>(bytes));
  };
  const int64_t grad_size = SizeOfType(kGrad);
  const int64_t param_size = SizeOfType(o.param_dtype);
  copy(grad, static_cast<const char*>(o.grad) + begin * grad_size,
       n * grad_size);
  copy(master, o.master + begin, n * 4);
  copy(moment1, o.moment1 + begin, n * 4);
  if (o.moment2 != nullptr) copy(moment2, o.moment2 + begin, n * 4);
  UpdateOperands local = o;
  local.grad = grad;
  local.master = master;
  local.moment1 = moment1;
  local.moment2 = moment2;
  if (o.param != nullptr) local.param = param;
  Step<kGrad>(vectors, local, 0, false);
  copy(o.master + begin, master, n * 4);
  copy(o.moment1 + begin, moment1, n * 4);
  if (o.moment2 != nullptr) copy(o.moment2 + begin, moment2, n * 4);
  if (o.param != nullptr) {
    copy(static_cast<char*>(o.param) + begin * param_size, param,
         n * param_size);
  }
}

template <DType kGrad, typename Vectors>
void Loop(const Vectors& vectors, const UpdateOperands& o, int64_t begin,
          int64_t end) {
  // Streaming over lines just read as gradients would only flush them.
  const bool stream =
      o.param != nullptr && o.param != o.grad &&
      o.param_dtype != DType::kFp32 &&
      reinterpret_cast<uintptr_t>(static_cast<uint16_t*>(o.param) + begin) %
              (2 * kStep) ==
          0;
  int64_t i = begin;
  for (; i + kStep <= end; i += kStep) Step<kGrad>(vectors, o, i, stream);
  if (stream) Isa::Fence();
  if (i < end) Tail<kGrad>(vectors, o, i, end - i);
}

template <typename Vectors, typename Scalars>
void Dispatch(const Scalars& scalars, const UpdateOperands& o, int64_t begin,
              int64_t end) {
  const Vectors vectors(scalars);
  switch (o.grad_dtype) {
    case DType::kBf16:
      return Loop<DType::kBf16>(vectors, o, begin, end);
    case DType::kFp16:
      return Loop<DType::kFp16>(vectors, o, begin, end);
    default:
      return Loop<DType::kFp32>(vectors, o, begin, end);
  }
}

void Adam(const AdamScalars& scalars, const UpdateOperands& o, int64_t begin,
          int64_t end) {
  Dispatch<AdamVectors>(scalars, o, begin, end);
}

void Sgd(const SgdScalars& scalars, const UpdateOperands& o, int64_t begin,
         int64_t end) {
  Dispatch<SgdVectors>(scalars, o, begin, end);
}

}  // namespace
}  // namespace plo

#endif  // PLO_OPERATORS_ADAM_SIMD_BODY_H_
