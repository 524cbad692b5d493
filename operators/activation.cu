// gelu, relu, silu, tanh and their gradients: the CPU's formulas, bit for bit.
#include "operators/elementwise.cuh"
#include "operators/float_math.h"

namespace plo {
namespace {

struct Relu {
  __device__ float operator()(float x) const { return x <= 0.0f ? 0.0f : x; }
};
struct ReluGrad {
  __device__ float operator()(float x, float dout) const {
    return x <= 0.0f ? 0.0f : dout;
  }
};
struct SiluOf {
  __device__ float operator()(float x) const { return Silu(x); }
};
struct SiluGradOf {
  __device__ float operator()(float x, float dout) const {
    return SiluGrad(x, dout);
  }
};
struct TanhOf {
  __device__ float operator()(float x) const { return Tanh(x); }
};
struct TanhGrad {
  __device__ float operator()(float x, float dout) const {
    const float t = Tanh(x);
    return dout * __builtin_fmaf(-t, t, 1.0f);
  }
};
struct GeluTanhOf {
  __device__ float operator()(float x) const { return GeluTanh(x); }
};
struct GeluTanhGradOf {
  __device__ float operator()(float x, float dout) const {
    return GeluTanhGrad(x, dout);
  }
};
struct GeluErfOf {
  __device__ float operator()(float x) const { return GeluErf(x); }
};
struct GeluErfGradOf {
  __device__ float operator()(float x, float dout) const {
    return GeluErfGrad(x, dout);
  }
};

template <typename Fn>
void Forward(KernelContext& context) {
  MapUnary(context, context.In("x"), context.Out("out"), Fn{});
}

template <typename Fn>
void Backward(KernelContext& context) {
  MapBinary(context, context.In("x"), context.In("dout"), context.Out("dx"),
            Fn{});
}

bool IsTanhGelu(const KernelContext& context) {
  return context.attrs().GetString("approximate") == "tanh";
}

void Gelu(KernelContext& context) {
  if (IsTanhGelu(context)) return Forward<GeluTanhOf>(context);
  Forward<GeluErfOf>(context);
}

void GeluGrad(KernelContext& context) {
  if (IsTanhGelu(context)) return Backward<GeluTanhGradOf>(context);
  Backward<GeluErfGradOf>(context);
}

}  // namespace

void RegisterActivationCuda(KernelRegistry& kernels) {
  constexpr DeviceKind kCuda = DeviceKind::kCuda;
  kernels.Register("gelu", kCuda, Gelu);
  kernels.Register("gelu_grad", kCuda, GeluGrad);
  kernels.Register("relu", kCuda, Forward<Relu>);
  kernels.Register("relu_grad", kCuda, Backward<ReluGrad>);
  kernels.Register("silu", kCuda, Forward<SiluOf>);
  kernels.Register("silu_grad", kCuda, Backward<SiluGradOf>);
  kernels.Register("tanh", kCuda, Forward<TanhOf>);
  kernels.Register("tanh_grad", kCuda, Backward<TanhGrad>);
}

}  // namespace plo
