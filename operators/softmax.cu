// softmax and softmax_grad over rows; see operators/softmax.cc.
#include "operators/packs.cuh"
#include "operators/row_reduce.cuh"
#include "operators/rows.h"

namespace plo {
namespace {

constexpr int kThreads = 256;

__device__ float FiniteShift(float max) {
  return isinf(max) && max < 0.0f ? 0.0f : max;
}

template <int kPacks, typename T>
__global__ void __launch_bounds__(kThreads)
    SoftmaxRows(int64_t rows, RowAccess access, const T* x, T* out) {
  constexpr int kCount = kPackOf<T>;
  const int64_t n = access.n;
  const int64_t tile = int64_t{blockDim.x} * kPacks * kCount;
  const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  const bool active = row < rows;
  const int64_t at = (active ? row : rows - 1) * n;
  Floats<kCount> values[kPacks];
  const auto load = [&](int64_t t) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t column =
          t + (int64_t{p} * blockDim.x + threadIdx.x) * kCount;
      values[p] = LoadRow<kCount>(x + at, column, access, -INFINITY);
    }
  };
  const bool one_tile = n <= tile;

  float max = -INFINITY;
  for (int64_t t = 0; t < n; t += tile) {
    load(t);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) max = fmaxf(max, values[p].value[i]);
    }
  }
  const float shift = FiniteShift(RowReduce(max, MaxOp{}));
  float sum = 0.0f;
  for (int64_t t = 0; t < n; t += tile) {
    if (!one_tile) load(t);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        values[p].value[i] = expf(values[p].value[i] - shift);
        sum += values[p].value[i];
      }
    }
  }
  const float factor = 1.0f / RowSum(sum);
  if (!active) return;
  for (int64_t t = 0; t < n; t += tile) {
    if (!one_tile) load(t);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float value = values[p].value[i];
        values[p].value[i] = (one_tile ? value : expf(value - shift)) * factor;
      }
      const int64_t column =
          t + (int64_t{p} * blockDim.x + threadIdx.x) * kCount;
      StoreRow(values[p], out + at, column, access);
    }
  }
}

// dx = out * (dout - sum(out * dout))
template <int kPacks, typename T>
__global__ void __launch_bounds__(kThreads)
    SoftmaxGradRows(int64_t rows, RowAccess access, const T* out, const T* dout,
                    T* dx) {
  constexpr int kCount = kPackOf<T>;
  const int64_t n = access.n;
  const int64_t tile = int64_t{blockDim.x} * kPacks * kCount;
  const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  const bool active = row < rows;
  const int64_t at = (active ? row : rows - 1) * n;
  Floats<kCount> p_values[kPacks], d_values[kPacks];
  const auto load = [&](int64_t t) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t column =
          t + (int64_t{p} * blockDim.x + threadIdx.x) * kCount;
      p_values[p] = LoadRow<kCount>(out + at, column, access);
      d_values[p] = LoadRow<kCount>(dout + at, column, access);
    }
  };
  float dot = 0.0f;
  for (int64_t t = 0; t < n; t += tile) {
    load(t);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        dot += p_values[p].value[i] * d_values[p].value[i];
      }
    }
  }
  const float delta = RowSum(dot);
  if (!active) return;
  for (int64_t t = 0; t < n; t += tile) {
    if (n > tile) load(t);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        d_values[p].value[i] =
            p_values[p].value[i] * (d_values[p].value[i] - delta);
      }
      const int64_t column =
          t + (int64_t{p} * blockDim.x + threadIdx.x) * kCount;
      StoreRow(d_values[p], dx + at, column, access);
    }
  }
}

// Calls fn(packs) with the layout's number of packs, at most two, as a
// constant.
template <typename Fn>
void DispatchPacks(const RowLayout& layout, const Fn& fn) {
  if (layout.packs == 1) return fn(std::integral_constant<int, 1>{});
  fn(std::integral_constant<int, 2>{});
}

void SoftmaxKernel(KernelContext& context) {
  const Tensor& x = context.In("x");
  const int64_t n = RowLength(x.shape), rows = RowCount(x.shape);
  if (x.numel == 0) return;
  const RowLayout layout = MakeRowLayout(n, GpuPack(x.dtype), kThreads, 2);
  const auto blocks = static_cast<unsigned>(DivideUp(rows, layout.rows));
  DispatchDeviceFloat(x.dtype, [&](auto type) {
    using T = decltype(type);
    const T* from = x.as<const T>();
    T* to = context.Out("out").as<T>();
    DispatchPacks(layout, [&](auto packs) {
      SoftmaxRows<packs()><<<blocks, BlockOf(layout), 0, StreamOf(context)>>>(
          rows, MakeRowAccess<T>(n, from, to), from, to);
    });
    CheckLaunch("SoftmaxRows");
  });
}

void SoftmaxGradKernel(KernelContext& context) {
  const Tensor& out = context.In("out");
  const int64_t n = RowLength(out.shape), rows = RowCount(out.shape);
  if (out.numel == 0) return;
  const RowLayout layout = MakeRowLayout(n, GpuPack(out.dtype), kThreads, 2);
  const auto blocks = static_cast<unsigned>(DivideUp(rows, layout.rows));
  DispatchDeviceFloat(out.dtype, [&](auto type) {
    using T = decltype(type);
    const T* p = out.as<const T>();
    const T* dp = context.In("dout").as<const T>();
    T* dx = context.Out("dx").as<T>();
    DispatchPacks(layout, [&](auto packs) {
      SoftmaxGradRows<packs()>
          <<<blocks, BlockOf(layout), 0, StreamOf(context)>>>(
              rows, MakeRowAccess<T>(n, p, dp, dx), p, dp, dx);
    });
    CheckLaunch("SoftmaxGradRows");
  });
}

}  // namespace

void RegisterSoftmaxCuda(KernelRegistry& kernels) {
  kernels.Register("softmax", DeviceKind::kCuda, SoftmaxKernel);
  kernels.Register("softmax_grad", DeviceKind::kCuda, SoftmaxGradKernel);
}

}  // namespace plo
