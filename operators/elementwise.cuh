// Applies a function of fp32 values to whole tensors of any float dtype,
// rounding once. The output may be an input.
#ifndef PLO_OPERATORS_ELEMENTWISE_CUH_
#define PLO_OPERATORS_ELEMENTWISE_CUH_

#include <algorithm>
#include <cstdint>

#include "operators/packs.cuh"

namespace plo {

inline constexpr int kMapThreads = 256;

template <int kCount, typename Fn, typename... Packs>
__device__ inline Floats<kCount> ApplyToPacks(const Fn& fn,
                                              const Packs&... packs) {
  Floats<kCount> result;
#pragma unroll
  for (int i = 0; i < kCount; ++i) result.value[i] = fn(packs.value[i]...);
  return result;
}

// One pack of kCount values a thread; enough threads are resident to keep the
// memory busy.
template <int kCount, typename Fn, typename Out, typename... In>
__global__ void __launch_bounds__(kMapThreads)
    MapKernel(int64_t n, Fn fn, Out* out, const In*... in) {
  const int64_t at =
      (static_cast<int64_t>(blockIdx.x) * kMapThreads + threadIdx.x) * kCount;
  if constexpr (kCount > 1) {
    if (at + kCount <= n) {
      StorePack(ApplyToPacks<kCount>(fn, LoadPack<kCount>(in + at)...),
                out + at);
      return;
    }
  }
  for (int64_t i = at; i < min(n, at + kCount); ++i) {
    out[i] = FromFloat<Out>(fn(ToFloat(in[i])...));
  }
}

// out[i] = fn(in[i]...) for i in [0, n).
template <typename Fn, typename Out, typename... In>
void LaunchMap(cudaStream_t stream, int64_t n, const Fn& fn, Out* out,
               const In*... in) {
  if (n == 0) return;
  constexpr int kCount = std::max({kPackOf<Out>, kPackOf<In>...});
  const bool packs = AllAligned(out, in...);
  const auto blocks = static_cast<unsigned>(
      DivideUp(n, kMapThreads * int64_t{packs ? kCount : 1}));
  if (packs) {
    MapKernel<kCount><<<blocks, kMapThreads, 0, stream>>>(n, fn, out, in...);
  } else {
    MapKernel<1><<<blocks, kMapThreads, 0, stream>>>(n, fn, out, in...);
  }
  CheckLaunch("MapKernel");
}

// Tensors of one dtype and size.
template <typename Fn>
void MapUnary(const KernelContext& context, const Tensor& x, const Tensor& out,
              const Fn& fn) {
  DispatchDeviceFloat(out.dtype, [&](auto type) {
    using T = decltype(type);
    LaunchMap(StreamOf(context), out.numel, fn, out.as<T>(), x.as<const T>());
  });
}
template <typename Fn>
void MapBinary(const KernelContext& context, const Tensor& x, const Tensor& y,
               const Tensor& out, const Fn& fn) {
  DispatchDeviceFloat(out.dtype, [&](auto type) {
    using T = decltype(type);
    LaunchMap(StreamOf(context), out.numel, fn, out.as<T>(), x.as<const T>(),
              y.as<const T>());
  });
}

}  // namespace plo

#endif  // PLO_OPERATORS_ELEMENTWISE_CUH_
