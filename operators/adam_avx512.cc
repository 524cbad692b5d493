// The updates compiled for AVX-512 (F, BW, DQ, VL) where the target is x86-64.
// The AVX512_BF16 conversions are not used: they flush subnormals.
#include "operators/adam_kernels.h"

#ifdef __AVX512F__
#include <immintrin.h>

namespace plo {
namespace {

struct Isa {
  using Floats = __m512;
  using Halves = __m512i;
  static constexpr int64_t kWidth = 16;

  static Floats Set(float x) { return _mm512_set1_ps(x); }
  static Floats Load(const float* x) { return _mm512_loadu_ps(x); }
  static void Store(float* x, Floats v) { _mm512_storeu_ps(x, v); }
  static Floats Mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats Div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
  static Floats Sqrt(Floats a) { return _mm512_sqrt_ps(a); }
  static Floats Fma(Floats a, Floats b, Floats c) {
    return _mm512_fmadd_ps(a, b, c);
  }
  static Floats Fnmadd(Floats a, Floats b, Floats c) {
    return _mm512_fnmadd_ps(a, b, c);
  }
  static Floats Max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
  static Floats Min(Floats a, Floats b) { return _mm512_min_ps(a, b); }

  static __m256i Load16(const uint16_t* x) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  }
  static Floats LoadBf16(const uint16_t* x) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(Load16(x)), 16));
  }
  static Floats LoadFp16(const uint16_t* x) {
    return _mm512_cvtph_ps(Load16(x));
  }

  static __m256i RoundBf16(Floats v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)),
                         odd),
        16);
    const __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x0040));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(nan, rounded, quiet));
  }
  static Halves Join(__m256i low, __m256i high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
  static Halves PackBf16(Floats a, Floats b) {
    return Join(RoundBf16(a), RoundBf16(b));
  }
  static Halves PackFp16(Floats a, Floats b) {
    return Join(_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT),
                _mm512_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT));
  }
  static void StoreHalves(uint16_t* x, Halves v) { _mm512_storeu_si512(x, v); }
  static void StreamHalves(uint16_t* x, Halves v) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(x), v);
  }
  static void Fence() { _mm_sfence(); }
};

}  // namespace
}  // namespace plo

#include "operators/adam_simd_body.h"

namespace plo {

const UpdateKernels* Avx512UpdateKernels() {
  static constexpr UpdateKernels kKernels = {"avx512", Adam, Sgd};
  static const bool supported =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return supported ? &kKernels : nullptr;
}

}  // namespace plo

#else

namespace plo {
const UpdateKernels* Avx512UpdateKernels() { return nullptr; }
}  // namespace plo

#endif
