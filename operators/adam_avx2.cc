// The updates compiled with -mavx2 -mfma -mf16c where the target is x86-64.
#include "operators/adam_kernels.h"

#ifdef __AVX2__
#include <immintrin.h>

namespace plo {
namespace {

struct Isa {
  using Floats = __m256;
  using Halves = __m256i;
  static constexpr int64_t kWidth = 8;

  static Floats Set(float x) { return _mm256_set1_ps(x); }
  static Floats Load(const float* x) { return _mm256_loadu_ps(x); }
  static void Store(float* x, Floats v) { _mm256_storeu_ps(x, v); }
  static Floats Mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static Floats Div(Floats a, Floats b) { return _mm256_div_ps(a, b); }
  static Floats Sqrt(Floats a) { return _mm256_sqrt_ps(a); }
  static Floats Fma(Floats a, Floats b, Floats c) {
    return _mm256_fmadd_ps(a, b, c);
  }
  static Floats Fnmadd(Floats a, Floats b, Floats c) {
    return _mm256_fnmadd_ps(a, b, c);
  }
  static Floats Max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
  static Floats Min(Floats a, Floats b) { return _mm256_min_ps(a, b); }

  static __m128i Load16(const uint16_t* x) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
  }
  static Floats LoadBf16(const uint16_t* x) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(Load16(x)), 16));
  }
  static Floats LoadFp16(const uint16_t* x) {
    return _mm256_cvtph_ps(Load16(x));
  }

  // The rounded value in the low half of each lane.
  static __m256i RoundBf16(Floats v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)),
                         odd),
        16);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x0040));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(rounded, quiet, nan);
  }
  static Halves PackBf16(Floats a, Floats b) {
    const __m256i packed = _mm256_packus_epi32(RoundBf16(a), RoundBf16(b));
    return _mm256_permute4x64_epi64(packed, 0xD8);
  }
  static Halves PackFp16(Floats a, Floats b) {
    return _mm256_set_m128i(_mm256_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
  }
  static void StoreHalves(uint16_t* x, Halves v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(x), v);
  }
  static void StreamHalves(uint16_t* x, Halves v) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(x), v);
  }
  static void Fence() { _mm_sfence(); }
};

}  // namespace
}  // namespace plo

#include "operators/adam_simd_body.h"

namespace plo {

const UpdateKernels* Avx2UpdateKernels() {
  static constexpr UpdateKernels kKernels = {"avx2", Adam, Sgd};
  static const bool supported = __builtin_cpu_supports("avx2") &&
                                __builtin_cpu_supports("fma") &&
                                __builtin_cpu_supports("f16c");
  return supported ? &kKernels : nullptr;
}

}  // namespace plo

#else

namespace plo {
const UpdateKernels* Avx2UpdateKernels() { return nullptr; }
}  // namespace plo

#endif
