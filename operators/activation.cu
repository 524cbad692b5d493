// gelu, relu, silu, tanh and their gradients: the CPU's formulas, bit for bit
// in fp32; in 16 bits the special function unit takes the place of polynomials
// and divisions, which would take longer than the memory.
#include "operators/elementwise.cuh"
#include "operators/fast_math.cuh"
#include "operators/float_math.h"

namespace plo {
namespace {

struct ReluOp {
  static __device__ float Value(float x) { return x <= 0.0f ? 0.0f : x; }
  static __device__ float Grad(float x, float dout) {
    return x <= 0.0f ? 0.0f : dout;
  }
};
struct SiluOp {
  static __device__ float Value(float x) { return Silu(x); }
  static __device__ float Grad(float x, float dout) {
    return SiluGrad(x, dout);
  }
};
struct FastSiluOp {
  static __device__ float Value(float x) { return FastSilu(x); }
  static __device__ float Grad(float x, float dout) {
    return FastSiluGrad(x, dout);
  }
};
struct TanhOp {
  static __device__ float Value(float x) { return Tanh(x); }
  static __device__ float Grad(float x, float dout) {
    const float t = Tanh(x);
    return dout * __builtin_fmaf(-t, t, 1.0f);
  }
};
struct GeluTanhOp {
  static __device__ float Value(float x) { return GeluTanh(x); }
  static __device__ float Grad(float x, float dout) {
    return GeluTanhGrad(x, dout);
  }
};
struct FastGeluTanhOp {
  static __device__ float Value(float x) { return FastGeluTanh(x); }
  static __device__ float Grad(float x, float dout) {
    return FastGeluTanhGrad(x, dout);
  }
};
struct GeluErfOp {
  static __device__ float Value(float x) { return GeluErf(x); }
  static __device__ float Grad(float x, float dout) {
    return GeluErfGrad(x, dout);
  }
};

template <typename Formula>
struct ValueOf {
  __device__ float operator()(float x) const { return Formula::Value(x); }
};
template <typename Formula>
struct GradOf {
  __device__ float operator()(float x, float dout) const {
    return Formula::Grad(x, dout);
  }
};

// dx and out at once. Either may be x or dout: a thread writes nothing before
// it has read all.
template <int kCount, typename Formula, typename T>
__global__ void __launch_bounds__(kMapThreads)
    GradAndValueKernel(int64_t n, const T* x, const T* dout, T* dx, T* out) {
  const int64_t at =
      (static_cast<int64_t>(blockIdx.x) * kMapThreads + threadIdx.x) * kCount;
  if (at >= n) return;
  if constexpr (kCount > 1) {
    if (at + kCount <= n) {
      const Floats<kCount> xs = LoadPack<kCount>(x + at);
      const Floats<kCount> douts = LoadPack<kCount>(dout + at);
      StorePack(ApplyToPacks<kCount>(GradOf<Formula>{}, xs, douts), dx + at);
      StorePack(ApplyToPacks<kCount>(ValueOf<Formula>{}, xs), out + at);
      return;
    }
  }
  for (int64_t i = at; i < min(n, at + kCount); ++i) {
    const float value = ToFloat(x[i]), grad = ToFloat(dout[i]);
    dx[i] = FromFloat<T>(Formula::Grad(value, grad));
    out[i] = FromFloat<T>(Formula::Value(value));
  }
}

template <typename Formula, typename T>
void LaunchGradAndValue(cudaStream_t stream, int64_t n, const T* x,
                        const T* dout, T* dx, T* out) {
  if (n == 0) return;
  constexpr int kCount = kPackOf<T>;
  const bool packs = AllAligned(x, dout, dx, out);
  const auto kernel = packs ? GradAndValueKernel<kCount, Formula, T>
                            : GradAndValueKernel<1, Formula, T>;
  const int64_t threads = DivideUp(n, packs ? kCount : 1);
  kernel<<<static_cast<unsigned>(DivideUp(threads, kMapThreads)), kMapThreads,
           0, stream>>>(n, x, dout, dx, out);
  CheckLaunch("GradAndValueKernel");
}

template <typename Formula>
void Forward(KernelContext& context) {
  MapUnary(context, context.In("x"), context.Out("out"), ValueOf<Formula>{});
}

template <typename Formula>
void Backward(KernelContext& context) {
  const Tensor& x = context.In("x");
  const Tensor& dout = context.In("dout");
  const Tensor& dx = context.Out("dx");
  const Tensor* out = context.TryOut("out");
  if (out == nullptr) return MapBinary(context, x, dout, dx, GradOf<Formula>{});
  DispatchDeviceFloat(x.dtype, [&](auto type) {
    using T = decltype(type);
    LaunchGradAndValue<Formula>(StreamOf(context), x.numel, x.as<const T>(),
                                dout.as<const T>(), dx.as<T>(), out->as<T>());
  });
}

// One function for 16-bit tensors, another for fp32.
template <typename Fast, typename Exact>
void ForwardBy(KernelContext& context) {
  if (Is16Bit(context.In("x").dtype)) return Forward<Fast>(context);
  Forward<Exact>(context);
}
template <typename Fast, typename Exact>
void BackwardBy(KernelContext& context) {
  if (Is16Bit(context.In("x").dtype)) return Backward<Fast>(context);
  Backward<Exact>(context);
}

bool IsTanhGelu(const KernelContext& context) {
  return context.attrs().GetString("approximate") == "tanh";
}

void Gelu(KernelContext& context) {
  if (IsTanhGelu(context)) {
    return ForwardBy<FastGeluTanhOp, GeluTanhOp>(context);
  }
  Forward<GeluErfOp>(context);
}

void GeluGrad(KernelContext& context) {
  if (IsTanhGelu(context)) {
    return BackwardBy<FastGeluTanhOp, GeluTanhOp>(context);
  }
  Backward<GeluErfOp>(context);
}

}  // namespace

void RegisterActivationCuda(KernelRegistry& kernels) {
  constexpr DeviceKind kCuda = DeviceKind::kCuda;
  kernels.Register("gelu", kCuda, Gelu);
  kernels.Register("gelu_grad", kCuda, GeluGrad);
  kernels.Register("relu", kCuda, Forward<ReluOp>);
  kernels.Register("relu_grad", kCuda, Backward<ReluOp>);
  kernels.Register("silu", kCuda, ForwardBy<FastSiluOp, SiluOp>);
  kernels.Register("silu_grad", kCuda, BackwardBy<FastSiluOp, SiluOp>);
  kernels.Register("tanh", kCuda, Forward<TanhOp>);
  kernels.Register("tanh_grad", kCuda, Backward<TanhOp>);
}

}  // namespace plo
