// gelu, relu, silu, tanh and their gradients: the CPU's formulas, bit for bit
// in fp32; in 16 bits the special function unit takes the place of polynomials
// and divisions, which would take longer than the memory.
#include "operators/elementwise.cuh"
#include "operators/fast_math.cuh"
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
struct FastSiluOf {
  __device__ float operator()(float x) const { return FastSilu(x); }
};
struct FastSiluGradOf {
  __device__ float operator()(float x, float dout) const {
    return FastSiluGrad(x, dout);
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
struct FastGeluTanhOf {
  __device__ float operator()(float x) const { return FastGeluTanh(x); }
};
struct FastGeluTanhGradOf {
  __device__ float operator()(float x, float dout) const {
    return FastGeluTanhGrad(x, dout);
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
    return ForwardBy<FastGeluTanhOf, GeluTanhOf>(context);
  }
  Forward<GeluErfOf>(context);
}

void GeluGrad(KernelContext& context) {
  if (IsTanhGelu(context)) {
    return BackwardBy<FastGeluTanhGradOf, GeluTanhGradOf>(context);
  }
  Backward<GeluErfGradOf>(context);
}

}  // namespace

void RegisterActivationCuda(KernelRegistry& kernels) {
  constexpr DeviceKind kCuda = DeviceKind::kCuda;
  kernels.Register("gelu", kCuda, Gelu);
  kernels.Register("gelu_grad", kCuda, GeluGrad);
  kernels.Register("relu", kCuda, Forward<Relu>);
  kernels.Register("relu_grad", kCuda, Backward<ReluGrad>);
  kernels.Register("silu", kCuda, ForwardBy<FastSiluOf, SiluOf>);
  kernels.Register("silu_grad", kCuda, BackwardBy<FastSiluGradOf, SiluGradOf>);
  kernels.Register("tanh", kCuda, Forward<TanhOf>);
  kernels.Register("tanh_grad", kCuda, Backward<TanhGrad>);
}

}  // namespace plo
