// Counter-based random numbers: Philox4x32-10 (Salmon et al., SC'11).
//
// A number is a pure function of (key, sample, element), so it does not depend
// on the order or the number of threads and ranks that draw it. Element e of a
// sample is word e % 4 of the block with counter {e / 4, sample}. Uniform and
// normal variates are made of IEEE operations and explicit fused multiply-adds
// only, no libm: the same bits on every machine.
#ifndef PLO_OPERATORS_RANDOM_H_
#define PLO_OPERATORS_RANDOM_H_

#include <cstdint>

#include "operators/host_device.h"

namespace plo {

struct PhiloxBlock {
  uint32_t word[4];
};

PLO_HOST_DEVICE PhiloxBlock Philox(uint32_t c0, uint32_t c1, uint32_t c2,
                                   uint32_t c3, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t next0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t next2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = next0;
    c2 = next2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// The words of elements 4 * block ... 4 * block + 3 of a sample.
PLO_HOST_DEVICE PhiloxBlock RandomWords(uint64_t key, uint64_t sample,
                                        uint64_t block) {
  return Philox(
      static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
      static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32),
      static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
}

PLO_HOST_DEVICE uint64_t SplitMix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// The key of one random stream of a program: an op's random_id, or the hash of
// a param's name.
PLO_HOST_DEVICE uint64_t RandomKey(int64_t seed, uint64_t stream) {
  return SplitMix64(SplitMix64(static_cast<uint64_t>(seed)) ^ stream);
}

// FNV-1a of `size` bytes.
PLO_HOST_DEVICE uint64_t HashBytes(const char* data, int64_t size) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (int64_t i = 0; i < size; ++i) {
    hash = (hash ^ static_cast<unsigned char>(data[i])) * 0x100000001B3u;
  }
  return hash;
}

// The number of this rank's sample `index` (0 <= index < samples) of one
// micro-step within the whole run.
PLO_HOST_DEVICE uint64_t GlobalSample(int64_t data_step, int accumulate_steps,
                                      int micro_index, int world_size, int rank,
                                      int64_t samples, int64_t index) {
  const int64_t micro_step = data_step * accumulate_steps + micro_index;
  return static_cast<uint64_t>((micro_step * world_size + rank) * samples +
                               index);
}

// In [0, 1), a multiple of 2^-24.
PLO_HOST_DEVICE float UniformFromWord(uint32_t word) {
  return static_cast<float>(static_cast<int32_t>(word >> 8)) * 0x1p-24f;
}

PLO_HOST_DEVICE float BitsToFloat(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

PLO_HOST_DEVICE uint32_t FloatToBits(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Natural logarithm of a normal positive number, within 2 ulp.
PLO_HOST_DEVICE float LogOfNormal(float x) {
  // x = 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)).
  const uint32_t offset = FloatToBits(x) - 0x3F3504F3u;
  const int32_t k = static_cast<int32_t>(offset) >> 23;
  const float f = BitsToFloat((offset & 0x007FFFFFu) + 0x3F3504F3u) - 1.0f;
  float p = -7.902743667e-02f;
  p = __builtin_fmaf(p, f, 1.262231916e-01f);
  p = __builtin_fmaf(p, f, -1.299818307e-01f);
  p = __builtin_fmaf(p, f, 1.421449631e-01f);
  p = __builtin_fmaf(p, f, -1.664128155e-01f);
  p = __builtin_fmaf(p, f, 2.000104487e-01f);
  p = __builtin_fmaf(p, f, -2.500030696e-01f);
  p = __builtin_fmaf(p, f, 3.333333135e-01f);
  const float f2 = f * f;
  const float tail = __builtin_fmaf(f2 * f, p, -0.5f * f2);
  const float scale = static_cast<float>(k);
  // ln 2 in two parts; the first has few bits, so that its product is exact.
  const float low = __builtin_fmaf(scale, -2.12194440e-4f, tail);
  return __builtin_fmaf(scale, 0.693359375f, low + f);
}

struct NormalPair {
  float first, second;
};

// Two independent standard normal variates from two words (Box-Muller).
PLO_HOST_DEVICE NormalPair NormalFromWords(uint32_t a, uint32_t b) {
  const float u = __builtin_fmaf(
      static_cast<float>(static_cast<int32_t>(a >> 1)), 0x1p-31f, 0x1p-32f);
  const float radius = __builtin_sqrtf(-2.0f * LogOfNormal(u));
  // The angle in quarter turns, split into a whole number and the rest.
  const float turns = 4.0f * UniformFromWord(b);
  const float shifted = turns + 0x1.8p23f;
  const uint32_t quarter = FloatToBits(shifted);
  const float rest = turns - (shifted - 0x1.8p23f);
  const float r2 = rest * rest;
  float s = 1.582062978e-04f;
  s = __builtin_fmaf(s, r2, -4.681266379e-03f);
  s = __builtin_fmaf(s, r2, 7.969257981e-02f);
  s = __builtin_fmaf(s, r2, -6.459640861e-01f);
  s = __builtin_fmaf(s, r2, 1.570796371e+00f);
  s *= rest;
  float c = 9.036280680e-04f;
  c = __builtin_fmaf(c, r2, -2.086007036e-02f);
  c = __builtin_fmaf(c, r2, 2.536692023e-01f);
  c = __builtin_fmaf(c, r2, -1.233700514e+00f);
  c = __builtin_fmaf(c, r2, 1.0f);
  const bool odd = (quarter & 1u) != 0;
  const float cosine = odd ? s : c;
  const float sine = odd ? c : s;
  // Quarters 1 and 2 have a negative cosine, 2 and 3 a negative sine.
  const uint32_t cosine_sign = ((quarter + 1u) & 2u) << 30;
  const uint32_t sine_sign = (quarter & 2u) << 30;
  return {radius * BitsToFloat(FloatToBits(cosine) ^ cosine_sign),
          radius * BitsToFloat(FloatToBits(sine) ^ sine_sign)};
}

}  // namespace plo

#endif  // PLO_OPERATORS_RANDOM_H_
