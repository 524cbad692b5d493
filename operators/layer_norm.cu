// layer_norm and add_layer_norm on CUDA; operators/layer_norm.cc says what they
// compute, operators/layer_norm.cuh how rows are taken.
#include "operators/layer_norm.cuh"
#include "operators/row_reduce.cuh"
#include "operators/rows.h"

namespace plo {
namespace {

template <typename T>
struct NormOperands {
  int64_t rows;
  RowAccess access;
  float eps;
  float inverse;  // 1 / n
  const T* x;
  const T* residual;  // add_layer_norm only
  const T* weight;    // or null
  const T* bias;      // or null
  T* sum;             // add_layer_norm only
  T* out;
  float* mean;
  float* rstd;
};

// --- What both kernels compute of a pack ---

// By pairs.
template <typename T>
__device__ float PackSum(const uint4& raw) {
  Floats<kPackOf<T>> x = Unpack<T>(raw);
#pragma unroll
  for (int step = 1; step < kPackOf<T>; step *= 2) {
#pragma unroll
    for (int i = 0; i < kPackOf<T>; i += 2 * step) {
      x.value[i] += x.value[i + step];
    }
  }
  return x.value[0];
}

// Squares about the mean of the values [column, n), in two sums.
template <typename T>
__device__ void AddSquares(const uint4& raw, float mean, int64_t column,
                           int64_t n, float (&squares)[2]) {
  const Floats<kPackOf<T>> x = Unpack<T>(raw);
#pragma unroll
  for (int i = 0; i < kPackOf<T>; ++i) {
    const float d = column + i < n ? x.value[i] - mean : 0.0f;
    squares[i % 2] = __builtin_fmaf(d, d, squares[i % 2]);
  }
}

template <typename T>
__device__ uint4 Normalized(const uint4& raw, float mean, float rstd,
                            const uint4& weight, const uint4& bias) {
  Floats<kPackOf<T>> x = Unpack<T>(raw);
  const Floats<kPackOf<T>> w = Unpack<T>(weight);
  const Floats<kPackOf<T>> b = Unpack<T>(bias);
#pragma unroll
  for (int i = 0; i < kPackOf<T>; ++i) {
    x.value[i] =
        __builtin_fmaf((x.value[i] - mean) * rstd, w.value[i], b.value[i]);
  }
  return Pack<T>(x);
}

template <typename T>
__device__ float Rstd(const NormOperands<T>& o, float squares) {
  return 1.0f / sqrtf(squares * o.inverse + o.eps);
}

template <typename T>
__device__ void StoreStats(const NormOperands<T>& o, int64_t row, float mean,
                           float rstd) {
  if (threadIdx.x > 0) return;
  o.mean[row] = mean;
  o.rstd[row] = rstd;
}

// --- Kernels ---

// A row of at most kNormPacks packs a thread, by aligned packs. It stays in
// registers as it came, unpacked anew for each use; all loads go out at once.
// The registers leave room for nine blocks of 128 threads, or one of 1024.
template <bool kAdd, typename T>
__global__ void __maxnreg__(56)
    NormKernel(const __grid_constant__ NormOperands<T> o) {
  __shared__ RowSums<1, false> sums;
  const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (row >= o.rows) return;  // a warp; others of the block need no barrier
  const int n = static_cast<int>(o.access.n);
  const int64_t at = row * n;
  int column[kNormPacks];
  uint4 raw[kNormPacks], other[kNormPacks], weight[kNormPacks],
      bias[kNormPacks];
#pragma unroll
  for (int p = 0; p < kNormPacks; ++p) {
    column[p] = static_cast<int>(NormColumn<T>(p));
    raw[p] = LoadRawPack<true>(o.x + at, column[p], n);
    if constexpr (kAdd) {
      other[p] = LoadRawPack<true>(o.residual + at, column[p], n);
    }
  }
#pragma unroll
  for (int p = 0; p < kNormPacks; ++p) {
    weight[p] = LoadWeights<true>(o.weight, column[p], n);
    bias[p] = make_uint4(0, 0, 0, 0);
    if (o.bias != nullptr) bias[p] = LoadRawPack<true>(o.bias, column[p], n);
  }

  if constexpr (kAdd) {
#pragma unroll
    for (int p = 0; p < kNormPacks; ++p) {
      raw[p] = RoundedSum<T>(raw[p], other[p]);
      StoreRawPack<true>(raw[p], o.sum + at, column[p], n);
    }
  }
  float total[1] = {};
#pragma unroll
  for (int p = 0; p < kNormPacks; ++p) {
    total[0] += PackSum<T>(raw[p]);
    Forget(raw[p]);
  }
  sums.Sum(total, 0);
  const float mean = total[0] * o.inverse;

  float squares[2] = {};
#pragma unroll
  for (int p = 0; p < kNormPacks; ++p) {
    // The last pack is whole.
    if (column[p] < n) AddSquares<T>(raw[p], mean, 0, kPackOf<T>, squares);
    Forget(raw[p]);
  }
  total[0] = squares[0] + squares[1];
  sums.Sum(total, 1);
  const float rstd = Rstd(o, total[0]);
  StoreStats(o, row, mean, rstd);
#pragma unroll
  for (int p = 0; p < kNormPacks; ++p) {
    StoreRawPack<true>(Normalized<T>(raw[p], mean, rstd, weight[p], bias[p]),
                       o.out + at, column[p], n);
  }
}

// Any row, read three times; a thread reads only what it wrote.
template <bool kAdd, typename T>
__global__ void __launch_bounds__(kNormThreads)
    AnyNormKernel(const __grid_constant__ NormOperands<T> o) {
  __shared__ RowSums<1, false> sums;
  const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (row >= o.rows) return;
  const RowAccess access = o.access;
  const int64_t n = access.n;
  const int64_t at = row * n;
  const int64_t step = int64_t{blockDim.x} * kPackOf<T>;
  const int64_t begin = NormColumn<T>(0);

  float total[1] = {};
  for (int64_t column = begin; column < n; column += step) {
    uint4 raw = LoadAny(o.x + at, column, access);
    if constexpr (kAdd) {
      raw = RoundedSum<T>(raw, LoadAny(o.residual + at, column, access));
      StoreAny(raw, o.sum + at, column, access);
    }
    total[0] += PackSum<T>(raw);
  }
  sums.Sum(total, 0);
  const float mean = total[0] * o.inverse;

  const T* stored = (kAdd ? o.sum : o.x) + at;
  float squares[2] = {};
  for (int64_t column = begin; column < n; column += step) {
    AddSquares<T>(LoadAny(stored, column, access), mean, column, n, squares);
  }
  total[0] = squares[0] + squares[1];
  sums.Sum(total, 1);
  const float rstd = Rstd(o, total[0]);
  StoreStats(o, row, mean, rstd);

  for (int64_t column = begin; column < n; column += step) {
    const uint4 weight = LoadWeights<false>(o.weight, column, n);
    uint4 bias = make_uint4(0, 0, 0, 0);
    if (o.bias != nullptr) bias = LoadAny(o.bias, column, access);
    StoreAny(Normalized<T>(LoadAny(stored, column, access), mean, rstd, weight,
                           bias),
             o.out + at, column, access);
  }
}

template <bool kAdd>
void Normalize(KernelContext& context) {
  const Tensor& x = context.In("x");
  const Tensor* weight = context.TryIn("weight");
  const Tensor* bias = context.TryIn("bias");
  const int64_t n = RowLength(x.shape), rows = RowCount(x.shape);
  if (rows == 0) return;
  const RowLayout layout = NormLayout(n, x.dtype);
  DispatchDeviceFloat(x.dtype, [&](auto type) {
    using T = decltype(type);
    NormOperands<T> o = {};
    o.rows = rows;
    o.eps = static_cast<float>(context.attrs().GetFloat("eps"));
    o.inverse = 1.0f / static_cast<float>(n);
    o.x = x.as<const T>();
    if (kAdd) {
      o.residual = context.In("residual").as<const T>();
      o.sum = context.Out("sum").as<T>();
    }
    if (weight != nullptr) o.weight = weight->as<const T>();
    if (bias != nullptr) o.bias = bias->as<const T>();
    o.out = context.Out("out").as<T>();
    o.mean = context.Out("mean").as<float>();
    o.rstd = context.Out("rstd").as<float>();
    // Operands may be views at any element.
    o.access =
        MakeRowAccess<T>(n, o.x, o.residual, o.sum, o.out, o.weight, o.bias);
    void (*kernel)(NormOperands<T>) = o.access.vector && layout.one_tile(n)
                                          ? NormKernel<kAdd, T>
                                          : AnyNormKernel<kAdd, T>;
    kernel<<<static_cast<unsigned>(DivideUp(rows, layout.rows)),
             BlockOf(layout), 0, StreamOf(context)>>>(o);
    CheckLaunch("NormKernel");
  });
}

}  // namespace

void RegisterLayerNormCuda(KernelRegistry& kernels) {
  constexpr DeviceKind kCuda = DeviceKind::kCuda;
  kernels.Register("layer_norm", kCuda, Normalize<false>);
  kernels.Register("add_layer_norm", kCuda, Normalize<true>);
  kernels.Register("layer_norm_grad", kCuda, LayerNormGradCuda);
}

}  // namespace plo
