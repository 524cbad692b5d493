// Copies between two strided views of equal shape, for the ops that move bytes.
#ifndef PLO_OPERATORS_STRIDED_COPY_CUH_
#define PLO_OPERATORS_STRIDED_COPY_CUH_

#include <algorithm>
#include <cstdint>

#include "operators/broadcast.h"
#include "operators/cuda_util.cuh"

namespace plo {

// Strides of the target, then of the source.
using CopyLoop = StridedLoop<2>;

// For kernel arguments, __grid_constant__ lest each thread copies it to memory
// of its own; offsets in 32-bit arithmetic where they fit.
template <typename Index>
struct CopyDims {
  int rank = 0;
  Index size[kMaxRank];
  Index to[kMaxRank];
  Index from[kMaxRank];
};

inline constexpr int kCopyThreads = 256;

template <typename Unit, typename Index>
__global__ void __launch_bounds__(kCopyThreads)
    CopyUnits(const __grid_constant__ CopyDims<Index> dims, int64_t total,
              const Unit* from, Unit* to) {
  const int64_t index = int64_t{blockIdx.x} * kCopyThreads + threadIdx.x;
  if (index >= total) return;
  Index rest = static_cast<Index>(index), source = 0, target = 0;
  for (int i = dims.rank - 1; i > 0; --i) {
    const Index next = rest / dims.size[i];
    const Index at = rest - next * dims.size[i];
    source += at * dims.from[i];
    target += at * dims.to[i];
    rest = next;
  }
  to[target + rest * dims.to[0]] = from[source + rest * dims.from[0]];
}

template <typename Unit, typename Index>
void LaunchCopyUnits(cudaStream_t stream, const CopyLoop& loop, int64_t total,
                     const void* from, void* to) {
  CopyDims<Index> dims;
  dims.rank = loop.rank;
  for (int i = 0; i < loop.rank; ++i) {
    dims.size[i] = static_cast<Index>(loop.size[i]);
    dims.to[i] = static_cast<Index>(loop.stride[i][0]);
    dims.from[i] = static_cast<Index>(loop.stride[i][1]);
  }
  CopyUnits<<<static_cast<unsigned>(DivideUp(total, kCopyThreads)),
              kCopyThreads, 0, stream>>>(
      dims, total, static_cast<const Unit*>(from), static_cast<Unit*>(to));
  CheckLaunch("CopyUnits");
}

template <typename Unit>
void LaunchCopyOf(cudaStream_t stream, const CopyLoop& loop, const void* from,
                  void* to) {
  const int64_t total = loop.Count(loop.rank);
  if (total == 0) return;
  int64_t source = 1, target = 1;  // one past the last offsets
  for (int i = 0; i < loop.rank; ++i) {
    target += (loop.size[i] - 1) * loop.stride[i][0];
    source += (loop.size[i] - 1) * loop.stride[i][1];
  }
  if (std::max({total, source, target}) < (int64_t{1} << 31)) {
    LaunchCopyUnits<Unit, uint32_t>(stream, loop, total, from, to);
  } else {
    LaunchCopyUnits<Unit, int64_t>(stream, loop, total, from, to);
  }
}

// Calls fn(Unit{}) with an unsigned type of `bytes`: 1, 2, 4, 8 or 16.
template <typename Fn>
void DispatchUnit(int64_t bytes, const Fn& fn) {
  switch (bytes) {
    case 1:
      return fn(uint8_t{});
    case 2:
      return fn(uint16_t{});
    case 4:
      return fn(uint32_t{});
    case 8:
      return fn(uint64_t{});
    default:
      return fn(uint4{});
  }
}

// `loop` counts elements of `element_bytes`; runs that both sides hold densely
// are copied in units of up to 16 bytes.
inline void LaunchStridedCopy(cudaStream_t stream, CopyLoop loop,
                              int64_t element_bytes, const void* from,
                              void* to) {
  const int last = loop.rank - 1;
  int64_t factor = 1;
  if (loop.stride[last][0] == 1 && loop.stride[last][1] == 1) {
    const auto fits = [&](int64_t elements) {
      const auto bytes = static_cast<uint64_t>(elements * element_bytes);
      bool fit = bytes <= 16 && loop.size[last] % elements == 0 &&
                 (reinterpret_cast<uintptr_t>(from) |
                  reinterpret_cast<uintptr_t>(to)) %
                         bytes ==
                     0;
      for (int i = 0; i < last; ++i) {
        fit = fit && loop.stride[i][0] % elements == 0 &&
              loop.stride[i][1] % elements == 0;
      }
      return fit;
    };
    while (fits(factor * 2)) factor *= 2;
    loop.size[last] /= factor;
    for (int i = 0; i < last; ++i) {
      loop.stride[i][0] /= factor;
      loop.stride[i][1] /= factor;
    }
  }
  DispatchUnit(element_bytes * factor, [&](auto unit) {
    LaunchCopyOf<decltype(unit)>(stream, loop, from, to);
  });
}

}  // namespace plo

#endif  // PLO_OPERATORS_STRIDED_COPY_CUH_
