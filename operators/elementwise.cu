// add, sub, mul, div with numpy broadcasting; scale.
#include "operators/broadcast.h"
#include "operators/elementwise.cuh"

namespace plo {
namespace {

struct Add {
  __device__ float operator()(float x, float y) const { return x + y; }
};
struct Sub {
  __device__ float operator()(float x, float y) const { return x - y; }
};
struct Mul {
  __device__ float operator()(float x, float y) const { return x * y; }
};
struct Div {
  __device__ float operator()(float x, float y) const { return x / y; }
};
struct Scale {
  float factor, bias;
  __device__ float operator()(float x) const {
    return __builtin_fmaf(x, factor, bias);
  }
};

using BinaryLoop = StridedLoop<3>;  // out, x, y

BinaryLoop MakeBinaryLoop(const Shape& x, const Shape& y, const Shape& out) {
  BinaryLoop loop;
  const int rank = out.rank();
  const auto out_strides = BroadcastStrides(out, rank);
  const auto x_strides = BroadcastStrides(x, rank);
  const auto y_strides = BroadcastStrides(y, rank);
  for (int i = 0; i < rank; ++i) {
    loop.Add(out[i], {out_strides[i], x_strides[i], y_strides[i]});
  }
  loop.Finish();
  return loop;
}

// A pack of a run of which the operand holds all or, with stride 0, one.
template <int kCount, typename T>
__device__ Floats<kCount> RunPack(const T* run, int64_t at, int64_t stride) {
  if (stride != 0) return LoadPack<kCount>(run + at);
  Floats<kCount> result;
  const float value = ToFloat(*run);
#pragma unroll
  for (int i = 0; i < kCount; ++i) result.value[i] = value;
  return result;
}

// Long innermost runs: a block takes part of one.
template <typename T, typename Fn>
__global__ void __launch_bounds__(kMapThreads)
    BroadcastRuns(BinaryLoop loop, int64_t parts, Fn fn, const T* x, const T* y,
                  T* out) {
  constexpr int kCount = kPackOf<T>;
  const int last = loop.rank - 1;
  const auto offsets = loop.Offsets(blockIdx.x / parts, last);
  const int64_t at = (blockIdx.x % parts * kMapThreads + threadIdx.x) * kCount;
  if (at >= loop.inner()) return;
  const auto& strides = loop.stride[last];
  StorePack(
      ApplyToPacks<kCount>(fn, RunPack<kCount>(x + offsets[1], at, strides[1]),
                           RunPack<kCount>(y + offsets[2], at, strides[2])),
      out + offsets[0] + at);
}

// Whatever the shapes, one value a thread.
template <typename T, typename Fn>
__global__ void __launch_bounds__(kMapThreads)
    BroadcastValues(BinaryLoop loop, int64_t n, Fn fn, const T* x, const T* y,
                    T* out) {
  const int64_t i =
      static_cast<int64_t>(blockIdx.x) * kMapThreads + threadIdx.x;
  if (i >= n) return;
  const auto offsets = loop.Offsets(i, loop.rank);
  out[offsets[0]] =
      FromFloat<T>(fn(ToFloat(x[offsets[1]]), ToFloat(y[offsets[2]])));
}

// Every run of packs starts at a multiple of a pack.
template <typename T>
bool RunsOfPacks(const BinaryLoop& loop) {
  constexpr int kCount = kPackOf<T>;
  bool packs = loop.inner() % kCount == 0;
  for (int k = 0; k < 3; ++k) {
    const bool one = loop.stride[loop.rank - 1][k] == 0;
    for (int i = 0; i + 1 < loop.rank; ++i) {
      packs = packs && (one || loop.stride[i][k] % kCount == 0);
    }
  }
  return packs;
}

template <typename Fn>
void Binary(KernelContext& context) {
  const Tensor& x = context.In("x");
  const Tensor& y = context.In("y");
  const Tensor& out = context.Out("out");
  if (out.numel == 0) return;
  if (x.shape == y.shape) return MapBinary(context, x, y, out, Fn{});
  const BinaryLoop loop = MakeBinaryLoop(x.shape, y.shape, out.shape);
  const cudaStream_t stream = StreamOf(context);
  DispatchDeviceFloat(out.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kCount = kPackOf<T>;
    const T* xs = x.as<const T>();
    const T* ys = y.as<const T>();
    T* outs = out.as<T>();
    if (loop.inner() >= 32 * kCount && RunsOfPacks<T>(loop) &&
        AllAligned(xs, ys, outs)) {
      const int64_t parts = DivideUp(loop.inner(), kMapThreads * kCount);
      const int64_t blocks = loop.Count(loop.rank - 1) * parts;
      BroadcastRuns<<<static_cast<unsigned>(blocks), kMapThreads, 0, stream>>>(
          loop, parts, Fn{}, xs, ys, outs);
    } else {
      const int64_t blocks = DivideUp(out.numel, kMapThreads);
      BroadcastValues<<<static_cast<unsigned>(blocks), kMapThreads, 0,
                        stream>>>(loop, out.numel, Fn{}, xs, ys, outs);
    }
    CheckLaunch("Binary");
  });
}

void ScaleKernel(KernelContext& context) {
  const AttrMap& attrs = context.attrs();
  MapUnary(context, context.In("x"), context.Out("out"),
           Scale{static_cast<float>(attrs.GetFloat("factor")),
                 static_cast<float>(attrs.GetFloat("bias"))});
}

}  // namespace

void RegisterElementwiseCuda(KernelRegistry& kernels) {
  constexpr DeviceKind kCuda = DeviceKind::kCuda;
  kernels.Register("add", kCuda, Binary<Add>);
  kernels.Register("sub", kCuda, Binary<Sub>);
  kernels.Register("mul", kCuda, Binary<Mul>);
  kernels.Register("div", kCuda, Binary<Div>);
  kernels.Register("scale", kCuda, ScaleKernel);
}

}  // namespace plo
