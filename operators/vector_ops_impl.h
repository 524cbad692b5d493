// The body of vector_ops_avx2.cc and vector_ops_portable.cc, which differ in
// compiler flags only. Everything is in an anonymous namespace and no inline
// function of another header is called, so that code built for AVX2 cannot be
// picked by the linker for the portable build.
//
// NOLINTBEGIN(misc-definitions-in-headers)
#ifndef PLO_OPERATORS_VECTOR_OPS_IMPL_H_
#define PLO_OPERATORS_VECTOR_OPS_IMPL_H_

#include <cstddef>
#include <cstdint>

#include "operators/vector_ops.h"

namespace plo {
namespace {

constexpr int64_t kLanes = 8;
typedef float Floats __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(32)));
typedef uint32_t Words __attribute__((vector_size(32)));
typedef uint16_t Halves __attribute__((vector_size(16)));

inline Floats Load(const float* x) {
  Floats v;
  __builtin_memcpy(&v, x, sizeof(v));
  return v;
}
inline void Store(const Floats& v, float* x) {
  __builtin_memcpy(x, &v, sizeof(v));
}
inline Floats LoadPart(const float* x, int64_t n, float fill) {
  Floats v = Floats{} + fill;
  __builtin_memcpy(&v, x, static_cast<size_t>(n) * sizeof(float));
  return v;
}
inline void StorePart(const Floats& v, float* x, int64_t n) {
  __builtin_memcpy(x, &v, static_cast<size_t>(n) * sizeof(float));
}

// The one order in which lanes are combined.
inline float Combine(const Floats& v) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

// Within 2 ulp on the normal range; subnormal results are kept.
inline Floats Exp(const Floats& x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: rounds to an integer
  constexpr float kMagicBits = 0x4B400000;
  // e^89 overflows and e^-104 is zero in fp32; NaN passes both selections.
  Floats clamped = x > 89.0f ? Floats{} + 89.0f : x;
  clamped = clamped < -104.0f ? Floats{} - 104.0f : clamped;
  const Floats shifted = clamped * 1.44269504f + kMagic;
  const Floats n = shifted - kMagic;
  Floats r = clamped - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // 2^n in two factors: n reaches beyond the exponents of fp32.
  const Ints exponent = (Ints)shifted - static_cast<int32_t>(kMagicBits);
  const Ints half = exponent >> 1;
  const Floats first = (Floats)((half + 127) << 23);
  const Floats second = (Floats)((exponent - half + 127) << 23);
  return p * first * second;
}

// Calls vector(i) for whole vectors and part(i, count) for the tail.
template <typename Vector, typename Part>
inline void ForEach(int64_t n, Vector&& vector, Part&& part) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) vector(i);
  if (i < n) part(i, n - i);
}

// Sums term(i) with two accumulators; part(i, count) must give zeros beyond.
template <typename Vector, typename Part>
inline float SumOf(int64_t n, Vector&& vector, Part&& part) {
  Floats even{}, odd{};
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    even += vector(i);
    odd += vector(i + kLanes);
  }
  for (; i + kLanes <= n; i += kLanes) even += vector(i);
  if (i < n) odd += part(i, n - i);
  return Combine(even + odd);
}

float Max(const float* x, int64_t n) {
  const float lowest = -__builtin_inff();
  Floats best = Floats{} + lowest;
  ForEach(
      n,
      [&](int64_t i) {
        const Floats v = Load(x + i);
        best = v > best ? v : best;
      },
      [&](int64_t i, int64_t count) {
        const Floats v = LoadPart(x + i, count, lowest);
        best = v > best ? v : best;
      });
  float result = lowest;
  for (int lane = 0; lane < kLanes; ++lane) {
    result = best[lane] > result ? best[lane] : result;
  }
  return result;
}

float Sum(const float* x, int64_t n) {
  return SumOf(
      n, [&](int64_t i) { return Load(x + i); },
      [&](int64_t i, int64_t count) { return LoadPart(x + i, count, 0.0f); });
}

float Dot(const float* x, const float* y, int64_t n) {
  return SumOf(
      n, [&](int64_t i) { return Load(x + i) * Load(y + i); },
      [&](int64_t i, int64_t count) {
        return LoadPart(x + i, count, 0.0f) * LoadPart(y + i, count, 0.0f);
      });
}

float SumSquaresAbout(const float* x, float mean, int64_t n) {
  return SumOf(
      n,
      [&](int64_t i) {
        const Floats d = Load(x + i) - mean;
        return d * d;
      },
      [&](int64_t i, int64_t count) {
        const Floats d = LoadPart(x + i, count, mean) - mean;
        return d * d;
      });
}

float ExpSum(const float* x, float shift, float* y, int64_t n) {
  return SumOf(
      n,
      [&](int64_t i) {
        const Floats e = Exp(Load(x + i) - shift);
        Store(e, y + i);
        return e;
      },
      [&](int64_t i, int64_t count) {
        const Floats e = Exp(LoadPart(x + i, count, -__builtin_inff()) - shift);
        StorePart(e, y + i, count);
        return LoadPart(y + i, count, 0.0f);
      });
}

float ExpSumOnly(const float* x, float shift, int64_t n) {
  return SumOf(
      n, [&](int64_t i) { return Exp(Load(x + i) - shift); },
      [&](int64_t i, int64_t count) {
        float y[kLanes];
        Store(Exp(LoadPart(x + i, count, -__builtin_inff()) - shift), y);
        return LoadPart(y, count, 0.0f);
      });
}

void ExpRow(const float* x, float* y, int64_t n) {
  ForEach(
      n, [&](int64_t i) { Store(Exp(Load(x + i)), y + i); },
      [&](int64_t i, int64_t count) {
        StorePart(Exp(LoadPart(x + i, count, 0.0f)), y + i, count);
      });
}

void Scale(const float* x, float factor, float* y, int64_t n) {
  ForEach(
      n, [&](int64_t i) { Store(Load(x + i) * factor, y + i); },
      [&](int64_t i, int64_t count) {
        StorePart(LoadPart(x + i, count, 0.0f) * factor, y + i, count);
      });
}

void Add(const float* x, float* y, int64_t n) {
  ForEach(
      n, [&](int64_t i) { Store(Load(y + i) + Load(x + i), y + i); },
      [&](int64_t i, int64_t count) {
        StorePart(LoadPart(y + i, count, 0.0f) + LoadPart(x + i, count, 0.0f),
                  y + i, count);
      });
}

void Axpy(const float* x, float factor, float* y, int64_t n) {
  ForEach(
      n, [&](int64_t i) { Store(Load(y + i) + Load(x + i) * factor, y + i); },
      [&](int64_t i, int64_t count) {
        StorePart(LoadPart(y + i, count, 0.0f) +
                      LoadPart(x + i, count, 0.0f) * factor,
                  y + i, count);
      });
}

void Normalize(const float* x, float mean, float rstd, float* out, int64_t n) {
  ForEach(
      n, [&](int64_t i) { Store((Load(x + i) - mean) * rstd, out + i); },
      [&](int64_t i, int64_t count) {
        StorePart((LoadPart(x + i, count, mean) - mean) * rstd, out + i, count);
      });
}

void MulAdd(const float* x, const float* weight, const float* bias, float* out,
            int64_t n) {
  ForEach(
      n,
      [&](int64_t i) {
        Store(Load(x + i) * Load(weight + i) + Load(bias + i), out + i);
      },
      [&](int64_t i, int64_t count) {
        StorePart(
            LoadPart(x + i, count, 0.0f) * LoadPart(weight + i, count, 0.0f) +
                LoadPart(bias + i, count, 0.0f),
            out + i, count);
      });
}

void Mul(const float* x, const float* y, float* out, int64_t n) {
  ForEach(
      n, [&](int64_t i) { Store(Load(x + i) * Load(y + i), out + i); },
      [&](int64_t i, int64_t count) {
        StorePart(LoadPart(x + i, count, 0.0f) * LoadPart(y + i, count, 0.0f),
                  out + i, count);
      });
}

void SoftmaxBackward(const float* p, const float* dp, float delta, float factor,
                     float* out, int64_t n) {
  ForEach(
      n,
      [&](int64_t i) {
        Store(Load(p + i) * (Load(dp + i) - delta) * factor, out + i);
      },
      [&](int64_t i, int64_t count) {
        StorePart(LoadPart(p + i, count, 0.0f) *
                      (LoadPart(dp + i, count, 0.0f) - delta) * factor,
                  out + i, count);
      });
}

// --- Conversions; the bits of framework/ir/float16.h ---

inline Halves LoadHalves(const uint16_t* src, int64_t n) {
  Halves v{};
  __builtin_memcpy(&v, src, static_cast<size_t>(n) * sizeof(uint16_t));
  return v;
}
inline void StoreHalves(const Halves& v, uint16_t* dst, int64_t n) {
  __builtin_memcpy(dst, &v, static_cast<size_t>(n) * sizeof(uint16_t));
}

inline Floats WidenBf16(const Halves& v) {
  const Words wide = __builtin_convertvector(v, Words) << 16;
  const Ints nan = (wide & 0x7FFFFFFFu) > 0x7F800000u;
  return (Floats)(wide | ((Words)nan & 0x00400000u));
}
inline Halves NarrowBf16(const Floats& x) {
  const Words bits = (Words)x;
  const Words nan = (Words)((bits & 0x7FFFFFFFu) > 0x7F800000u);
  const Words rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const Words quiet = (bits >> 16) | 0x0040u;
  return __builtin_convertvector((rounded & ~nan) | (quiet & nan), Halves);
}

#ifdef __F16C__
typedef short NativeHalves __attribute__((vector_size(16)));
inline Floats WidenFp16(const Halves& v) {
  return __builtin_ia32_vcvtph2ps256((NativeHalves)v);
}
inline Halves NarrowFp16(const Floats& x) {
  return (Halves)__builtin_ia32_vcvtps2ph256(x, 0);
}
#else
inline Floats WidenFp16(const Halves& v) {
  const Words bits = __builtin_convertvector(v, Words);
  const Words sign = (bits & 0x8000u) << 16;
  const Words magnitude = bits & 0x7FFFu;
  const Words nan = (Words)(magnitude > 0x7C00u);
  const Words special = (Words)(magnitude >= 0x7C00u);
  const Words normal = (magnitude << 13) + 0x38000000u;
  const Words infinite = 0x7F800000u | (magnitude << 13) | (nan & 0x00400000u);
  const Words small =
      (Words)(__builtin_convertvector((Ints)magnitude, Floats) * 0x1p-24f);
  const Words is_small = (Words)(magnitude < 0x0400u);
  const Words finite = (small & is_small) | (normal & ~is_small);
  return (Floats)(sign | (infinite & special) | (finite & ~special));
}
inline Halves NarrowFp16(const Floats& x) {
  const Words bits = (Words)x;
  const Words sign = (bits >> 16) & 0x8000u;
  const Words magnitude = bits & 0x7FFFFFFFu;
  const Words is_nan = (Words)(magnitude > 0x7F800000u);
  const Words is_large = (Words)(magnitude >= 0x477FF000u);
  const Words is_small = (Words)(magnitude < 0x38800000u);
  const Words nan = 0x7E00u | ((magnitude >> 13) & 0x03FFu);
  const Words small =
      (Words)((Floats)(magnitude & is_small) + 0.5f) - 0x3F000000u;
  const Words normal =
      (magnitude + 0x0FFFu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  Words result = (small & is_small) | (normal & ~is_small);
  result = (result & ~is_large) | (is_large & 0x7C00u);
  result = (result & ~is_nan) | (is_nan & nan);
  return __builtin_convertvector(sign | result, Halves);
}
#endif

void Bf16ToFloat(const uint16_t* src, float* dst, int64_t n) {
  ForEach(
      n,
      [&](int64_t i) {
        Store(WidenBf16(LoadHalves(src + i, kLanes)), dst + i);
      },
      [&](int64_t i, int64_t count) {
        StorePart(WidenBf16(LoadHalves(src + i, count)), dst + i, count);
      });
}
void Fp16ToFloat(const uint16_t* src, float* dst, int64_t n) {
  ForEach(
      n,
      [&](int64_t i) {
        Store(WidenFp16(LoadHalves(src + i, kLanes)), dst + i);
      },
      [&](int64_t i, int64_t count) {
        StorePart(WidenFp16(LoadHalves(src + i, count)), dst + i, count);
      });
}
void FloatToBf16(const float* src, uint16_t* dst, int64_t n) {
  ForEach(
      n,
      [&](int64_t i) {
        StoreHalves(NarrowBf16(Load(src + i)), dst + i, kLanes);
      },
      [&](int64_t i, int64_t count) {
        StoreHalves(NarrowBf16(LoadPart(src + i, count, 0.0f)), dst + i, count);
      });
}
void FloatToFp16(const float* src, uint16_t* dst, int64_t n) {
  ForEach(
      n,
      [&](int64_t i) {
        StoreHalves(NarrowFp16(Load(src + i)), dst + i, kLanes);
      },
      [&](int64_t i, int64_t count) {
        StoreHalves(NarrowFp16(LoadPart(src + i, count, 0.0f)), dst + i, count);
      });
}

constexpr VectorOps kTable = {
    Bf16ToFloat,     Fp16ToFloat, FloatToBf16, FloatToFp16,    Max,   Sum, Dot,
    SumSquaresAbout, ExpSum,      ExpSumOnly,  ExpRow,         Scale, Add, Axpy,
    Normalize,       MulAdd,      Mul,         SoftmaxBackward};

}  // namespace
}  // namespace plo

#endif  // PLO_OPERATORS_VECTOR_OPS_IMPL_H_
// NOLINTEND(misc-definitions-in-headers)
