// The loops of FloatLoops, included by one .cc per instruction set, each
// compiled with its own flags. Everything here has internal linkage and calls
// nothing that has not, so that no code compiled for AVX2 can be linked into
// another file's use.
#ifndef PLO_OPERATORS_FLOAT_LOOPS_BODY_H_
#define PLO_OPERATORS_FLOAT_LOOPS_BODY_H_

#include "operators/float_loops.h"
#include "operators/float_math.h"
#include "operators/random.h"

namespace plo {
namespace {

// Equal pointers are fine, partial overlap is not.
#define PLO_VECTOR_LOOP _Pragma("GCC ivdep") for (int64_t i = 0; i < n; ++i)

#define PLO_UNARY(Name, expression)                   \
  void Name(const float* xs, int64_t n, float* out) { \
    PLO_VECTOR_LOOP {                                 \
      const float x = xs[i];                          \
      out[i] = expression;                            \
    }                                                 \
  }

#define PLO_BINARY(Name, expression)                                   \
  void Name(const float* xs, const float* ys, int64_t n, float* out) { \
    PLO_VECTOR_LOOP {                                                  \
      const float x = xs[i];                                           \
      const float y = ys[i];                                           \
      out[i] = expression;                                             \
    }                                                                  \
  }

PLO_BINARY(AddLoop, x + y)
PLO_BINARY(SubLoop, x - y)
PLO_BINARY(MulLoop, x* y)
PLO_BINARY(DivLoop, x / y)
PLO_BINARY(MaxLoop, x > y || x != x ? x : y)
PLO_UNARY(ExpLoop, ExpClamped(x))
PLO_UNARY(TanhLoop, Tanh(x))
PLO_UNARY(ErfLoop, Erf(x))
PLO_UNARY(ReluLoop, x <= 0.0f ? 0.0f : x)
PLO_UNARY(SiluLoop, Silu(x))
PLO_UNARY(GeluTanhLoop, GeluTanh(x))
PLO_UNARY(GeluErfLoop, GeluErf(x))
PLO_BINARY(ReluGradLoop, x <= 0.0f ? 0.0f : y)
PLO_BINARY(SiluGradLoop, SiluGrad(x, y))
PLO_BINARY(GeluTanhGradLoop, GeluTanhGrad(x, y))
PLO_BINARY(GeluErfGradLoop, GeluErfGrad(x, y))

void TanhGradLoop(const float* xs, const float* douts, int64_t n, float* out) {
  PLO_VECTOR_LOOP {
    const float t = Tanh(xs[i]);
    out[i] = douts[i] * __builtin_fmaf(-t, t, 1.0f);
  }
}

void ScaleLoop(const float* xs, float factor, float bias, int64_t n,
               float* out) {
  PLO_VECTOR_LOOP { out[i] = __builtin_fmaf(xs[i], factor, bias); }
}

void DropoutLoop(const float* xs, const float* draws, float p, float factor,
                 int64_t n, float* out) {
  PLO_VECTOR_LOOP {
    const float kept = xs[i] * factor;
    out[i] = draws[i] >= p ? kept : 0.0f;
  }
}

// --- Reductions ---

void AddToDoubles(const float* xs, int64_t n, double* sums) {
  for (int64_t i = 0; i < n; ++i) sums[i] += static_cast<double>(xs[i]);
}

template <bool kSquare>
void SumLanes(const float* xs, int64_t n, double* lanes) {
  double sums[8];
  for (int lane = 0; lane < 8; ++lane) sums[lane] = lanes[lane];
  int64_t done = 0;
  for (; done + 8 <= n; done += 8) {
    for (int lane = 0; lane < 8; ++lane) {
      const double x = xs[done + lane];
      sums[lane] += kSquare ? x * x : x;
    }
  }
  for (int lane = 0; done < n; ++done, ++lane) {
    const double x = xs[done];
    sums[lane] += kSquare ? x * x : x;
  }
  for (int lane = 0; lane < 8; ++lane) lanes[lane] = sums[lane];
}

int64_t CountNonfinite(const float* xs, int64_t n) {
  int64_t count = 0;
  for (int64_t begin = 0; begin < n; begin += 4096) {
    const int64_t end = n < begin + 4096 ? n : begin + 4096;
    int32_t part = 0;
    for (int64_t i = begin; i < end; ++i) {
      const uint32_t magnitude = FloatToBits(xs[i]) & 0x7FFFFFFFu;
      part += static_cast<int32_t>(magnitude) >= 0x7F800000 ? 1 : 0;
    }
    count += part;
  }
  return count;
}

// --- Random numbers ---

constexpr int64_t kRandomRun = 64;  // blocks at a time

struct WordRuns {
  uint32_t word[4][kRandomRun];
};

// Philox with the loop over blocks innermost.
void DrawWords(uint64_t key, uint64_t sample, uint64_t block, WordRuns& out) {
  uint32_t* c0 = out.word[0];
  uint32_t* c1 = out.word[1];
  uint32_t* c2 = out.word[2];
  uint32_t* c3 = out.word[3];
  for (int64_t i = 0; i < kRandomRun; ++i) {
    const PhiloxBlock words = Philox(
        static_cast<uint32_t>(block) + static_cast<uint32_t>(i),
        static_cast<uint32_t>(block >> 32), static_cast<uint32_t>(sample),
        static_cast<uint32_t>(sample >> 32), static_cast<uint32_t>(key),
        static_cast<uint32_t>(key >> 32));
    c0[i] = words.word[0];
    c1[i] = words.word[1];
    c2[i] = words.word[2];
    c3[i] = words.word[3];
  }
}

void StoreRuns(const float (&values)[4][kRandomRun], int64_t n, float* out) {
  const int64_t whole = n / 4;
  for (int64_t i = 0; i < whole; ++i) {
    out[4 * i] = values[0][i];
    out[4 * i + 1] = values[1][i];
    out[4 * i + 2] = values[2][i];
    out[4 * i + 3] = values[3][i];
  }
  for (int64_t e = 4 * whole; e < n; ++e) out[e] = values[e % 4][e / 4];
}

void UniformLoop(uint64_t key, uint64_t sample, uint64_t block, int64_t n,
                 float* out) {
  WordRuns words;
  float values[4][kRandomRun];
  for (int64_t done = 0; done < n; done += 4 * kRandomRun) {
    DrawWords(key, sample, block + static_cast<uint64_t>(done / 4), words);
    for (int k = 0; k < 4; ++k) {
      for (int64_t i = 0; i < kRandomRun; ++i) {
        values[k][i] = UniformFromWord(words.word[k][i]);
      }
    }
    const int64_t rest = n - done;
    StoreRuns(values, rest < 4 * kRandomRun ? rest : 4 * kRandomRun,
              out + done);
  }
}

void NormalLoop(uint64_t key, uint64_t sample, uint64_t block, int64_t n,
                float* out) {
  WordRuns words;
  float values[4][kRandomRun];
  for (int64_t done = 0; done < n; done += 4 * kRandomRun) {
    DrawWords(key, sample, block + static_cast<uint64_t>(done / 4), words);
    for (int k = 0; k < 4; k += 2) {
      for (int64_t i = 0; i < kRandomRun; ++i) {
        const NormalPair pair =
            NormalFromWords(words.word[k][i], words.word[k + 1][i]);
        values[k][i] = pair.first;
        values[k + 1][i] = pair.second;
      }
    }
    const int64_t rest = n - done;
    StoreRuns(values, rest < 4 * kRandomRun ? rest : 4 * kRandomRun,
              out + done);
  }
}

#undef PLO_UNARY
#undef PLO_BINARY
#undef PLO_VECTOR_LOOP

// In the order of the members of FloatLoops.
constexpr FloatLoops MakeFloatLoops(const char* name) {
  return {name,         AddLoop,          SubLoop,         MulLoop,
          DivLoop,      MaxLoop,          ScaleLoop,       ExpLoop,
          TanhLoop,     ErfLoop,          ReluLoop,        SiluLoop,
          GeluTanhLoop, GeluErfLoop,      ReluGradLoop,    SiluGradLoop,
          TanhGradLoop, GeluTanhGradLoop, GeluErfGradLoop, DropoutLoop,
          AddToDoubles, SumLanes<false>,  SumLanes<true>,  CountNonfinite,
          UniformLoop,  NormalLoop};
}

}  // namespace
}  // namespace plo

#endif  // PLO_OPERATORS_FLOAT_LOOPS_BODY_H_
