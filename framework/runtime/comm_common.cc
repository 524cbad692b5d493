#include "framework/runtime/comm_common.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "framework/ir/error.h"
#include "framework/ir/float16.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace plo {
namespace {

// Elements converted to fp32 at a time: accumulators stay in the first cache.
constexpr int64_t kBlock = 2048;

void LoadPlain(const float* x, float* out, int64_t n) {
  std::memcpy(out, x, static_cast<size_t>(n) * sizeof(float));
}
void StorePlain(const float* x, float* out, int64_t n) {
  std::memcpy(out, x, static_cast<size_t>(n) * sizeof(float));
}

template <typename T>
[[gnu::always_inline]] inline void LoadPlain(const T* __restrict x,
                                             float* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = ToFloat(x[i]);
}

template <typename T>
[[gnu::always_inline]] inline void StorePlain(const float* __restrict x,
                                              T* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = FromFloat<T>(x[i]);
}

#if defined(__x86_64__)
bool HasAvx2() {
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
}

// The same loops for wider registers.
__attribute__((target("avx2"))) void LoadAvx2(const BFloat16* x, float* out,
                                              int64_t n) {
  LoadPlain(x, out, n);
}
__attribute__((target("avx2"))) void StoreAvx2(const float* x, BFloat16* out,
                                               int64_t n) {
  StorePlain(x, out, n);
}

// The scalar fp16 conversions branch on subnormals, which keeps compilers from
// vectorising them; the instructions give the same bits.
bool HasF16c() {
  static const bool has =
      __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c");
  return has;
}

__attribute__((target("avx,f16c"))) void LoadF16c(const Float16* x, float* out,
                                                  int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const auto bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(bits));
  }
  for (; i < n; ++i) out[i] = ToFloat(x[i]);
}

__attribute__((target("avx,f16c"))) void StoreF16c(const float* x, Float16* out,
                                                   int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const auto bits =
        _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), bits);
  }
  for (; i < n; ++i) out[i] = FromFloat<Float16>(x[i]);
}
#endif

template <typename T>
void Load(const T* x, float* out, int64_t n) {
#if defined(__x86_64__)
  if constexpr (std::is_same_v<T, Float16>) {
    if (HasF16c()) return LoadF16c(x, out, n);
  }
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (HasAvx2()) return LoadAvx2(x, out, n);
  }
#endif
  LoadPlain(x, out, n);
}

template <typename T>
void Store(const float* x, T* out, int64_t n) {
#if defined(__x86_64__)
  if constexpr (std::is_same_v<T, Float16>) {
    if (HasF16c()) return StoreF16c(x, out, n);
  }
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (HasAvx2()) return StoreAvx2(x, out, n);
  }
#endif
  StorePlain(x, out, n);
}

void Accumulate(float* __restrict acc, const float* __restrict x, int64_t n,
                Reduction reduction) {
  if (reduction == Reduction::kSum) {
    for (int64_t i = 0; i < n; ++i) acc[i] = acc[i] + x[i];
  } else {
    for (int64_t i = 0; i < n; ++i) {
      acc[i] = (acc[i] < x[i] || x[i] != x[i]) ? x[i] : acc[i];
    }
  }
}

template <typename T>
void ReduceFloats(const std::vector<const void*>& inputs, T* output,
                  int64_t count, Reduction reduction) {
  alignas(64) float acc[kBlock];
  alignas(64) float x[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    Load(static_cast<const T*>(inputs[0]) + begin, acc, n);
    for (size_t rank = 1; rank < inputs.size(); ++rank) {
      const T* input = static_cast<const T*>(inputs[rank]) + begin;
      if constexpr (std::is_same_v<T, float>) {
        Accumulate(acc, input, n, reduction);
      } else {
        Load(input, x, n);
        Accumulate(acc, x, n, reduction);
      }
    }
    Store(acc, output + begin, n);
  }
}

template <typename T>
void ReduceIntegers(const std::vector<const void*>& inputs, T* output,
                    int64_t count, Reduction reduction) {
  using Unsigned = std::make_unsigned_t<T>;
  T acc[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    const size_t bytes = static_cast<size_t>(n) * sizeof(T);
    std::memcpy(acc, static_cast<const T*>(inputs[0]) + begin, bytes);
    for (size_t rank = 1; rank < inputs.size(); ++rank) {
      const T* x = static_cast<const T*>(inputs[rank]) + begin;
      if (reduction == Reduction::kMax) {
        for (int64_t i = 0; i < n; ++i) acc[i] = std::max(acc[i], x[i]);
      } else {
        for (int64_t i = 0; i < n; ++i) {
          acc[i] = static_cast<T>(static_cast<Unsigned>(acc[i]) +
                                  static_cast<Unsigned>(x[i]));
        }
      }
    }
    std::memcpy(output + begin, acc, bytes);
  }
}

}  // namespace

void ReduceInRankOrder(const std::vector<const void*>& inputs, void* output,
                       int64_t count, DType dtype, Reduction reduction) {
  switch (dtype) {
    case DType::kFp32:
      return ReduceFloats(inputs, static_cast<float*>(output), count,
                          reduction);
    case DType::kFp16:
      return ReduceFloats(inputs, static_cast<Float16*>(output), count,
                          reduction);
    case DType::kBf16:
      return ReduceFloats(inputs, static_cast<BFloat16*>(output), count,
                          reduction);
    case DType::kInt32:
      return ReduceIntegers(inputs, static_cast<int32_t*>(output), count,
                            reduction);
    case DType::kInt64:
      return ReduceIntegers(inputs, static_cast<int64_t*>(output), count,
                            reduction);
    case DType::kBool:
      PLO_ENFORCE(reduction == Reduction::kMax, kInvalidArgument,
                  "bools have no sum; reduce them with max");
      return ReduceIntegers(inputs, static_cast<uint8_t*>(output), count,
                            reduction);
  }
}

SliceRange OwnSlice(int64_t count, int rank, int size) {
  const int64_t slice = (count + size - 1) / size;
  const int64_t begin = std::min(count, slice * rank);
  return {begin, std::min(count, begin + slice) - begin};
}

std::string CollectiveName(const char* kind, int64_t count, DType dtype) {
  return StrCat(kind, " of ", count, " ", DTypeName(dtype));
}

std::string RankList(const std::vector<int>& ranks) {
  std::string list = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) list += ", ";
    list += std::to_string(ranks[i]);
  }
  return list;
}

void CheckCollectiveArguments(const char* kind, const void* data,
                              int64_t count) {
  PLO_ENFORCE(count >= 0, kInvalidArgument, kind, ": count is ", count);
  PLO_ENFORCE(data != nullptr || count == 0, kInvalidArgument, kind,
              ": no data for ", count, " elements");
}

void CheckSameOnAllRanks(Comm& comm, uint64_t value, const std::string& what) {
  std::vector<uint64_t> values(static_cast<size_t>(comm.size()));
  comm.host().AllGather(&value, values.data(), 1, DType::kInt64, nullptr);
  for (size_t rank = 1; rank < values.size(); ++rank) {
    PLO_ENFORCE(values[rank] == values[0], kFailedPrecondition,
                "the ranks differ in ", what, ": rank ", rank, " has ",
                values[rank], ", rank 0 has ", values[0]);
  }
}

}  // namespace plo
