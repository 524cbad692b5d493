// 16-byte accesses to tensors, seen as fp32 values.
//
// A pack is the values that a thread takes at a time: always as many as fill 16
// bytes, so that how a row is shared out to threads, and with it the order of
// sums, depends on shapes and dtypes only. Addresses that are not aligned are
// read and written value by value.
#ifndef PLO_OPERATORS_PACKS_CUH_
#define PLO_OPERATORS_PACKS_CUH_

#include <cstdint>

#include "operators/cuda_util.cuh"

namespace plo {

template <typename T>
inline constexpr int kPackOf = 16 / static_cast<int>(sizeof(T));

// True if every pointer is 16-byte aligned; null is.
template <typename... Pointers>
bool AllAligned(const Pointers*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) | ... | uintptr_t{0}) % 16) ==
         0;
}

template <int kCount>
struct Floats {
  float value[kCount];
};

// From a 16-byte aligned address.
template <int kCount, typename T>
__device__ inline Floats<kCount> LoadPack(const T* from) {
  constexpr int kStep = kPackOf<T>;
  static_assert(kCount % kStep == 0);
  Floats<kCount> result;
#pragma unroll
  for (int i = 0; i < kCount; i += kStep) {
    const uint4 raw = *reinterpret_cast<const uint4*>(from + i);
    T values[kStep];
    __builtin_memcpy(values, &raw, sizeof raw);
#pragma unroll
    for (int k = 0; k < kStep; ++k) result.value[i + k] = ToFloat(values[k]);
  }
  return result;
}

template <int kCount, typename T>
__device__ inline void StorePack(const Floats<kCount>& from, T* to) {
  constexpr int kStep = kPackOf<T>;
  static_assert(kCount % kStep == 0);
#pragma unroll
  for (int i = 0; i < kCount; i += kStep) {
    T values[kStep];
#pragma unroll
    for (int k = 0; k < kStep; ++k) values[k] = FromFloat<T>(from.value[i + k]);
    uint4 raw;
    __builtin_memcpy(&raw, values, sizeof raw);
    *reinterpret_cast<uint4*>(to + i) = raw;
  }
}

// How the rows of a kernel's operands are accessed: `vector` promises that
// every row starts at a 16-byte aligned address and ends at a multiple of a
// pack.
struct RowAccess {
  int64_t n = 0;
  bool vector = false;
};
// `pointers` to rows of `n` values of type T.
template <typename T, typename... Pointers>
RowAccess MakeRowAccess(int64_t n, const Pointers*... pointers) {
  return {n, n % kPackOf<T> == 0 && AllAligned(pointers...)};
}

// Values [column, column + kCount) of a row, `fill` beyond its end.
template <int kCount, typename T>
__device__ inline Floats<kCount> LoadRow(const T* row, int64_t column,
                                         RowAccess access, float fill = 0.0f) {
  if (access.vector && column < access.n) return LoadPack<kCount>(row + column);
  Floats<kCount> result;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    result.value[i] = column + i < access.n ? ToFloat(row[column + i]) : fill;
  }
  return result;
}

// A pack of a row as its bytes, so that several loads can be under way before
// the first value is needed: LoadRow() would wait for each. kVector is
// RowAccess::vector as a constant. Values beyond the end are T{}.
template <bool kVector, typename T>
__device__ inline uint4 LoadRawPack(const T* row, int64_t column, int64_t n) {
  constexpr int kCount = kPackOf<T>;
  uint4 raw = {0, 0, 0, 0};
  if constexpr (kVector) {
    if (column < n) raw = *reinterpret_cast<const uint4*>(row + column);
  } else {
    T values[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = column + i < n ? row[column + i] : T{};
    }
    __builtin_memcpy(&raw, values, sizeof raw);
  }
  return raw;
}

template <int kCount, typename T>
__device__ inline void StoreRow(const Floats<kCount>& from, T* row,
                                int64_t column, RowAccess access) {
  if (access.vector && column < access.n) return StorePack(from, row + column);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (column + i < access.n) row[column + i] = FromFloat<T>(from.value[i]);
  }
}

}  // namespace plo

#endif  // PLO_OPERATORS_PACKS_CUH_
