// layer_norm_grad on CUDA; operators/layer_norm.cc says what it computes. Where
// a row fits its threads, one pass writes dx and sums columns.
#include "operators/column_sums.cuh"
#include "operators/layer_norm.cuh"
#include "operators/row_reduce.cuh"
#include "operators/rows.h"

namespace plo {
namespace {

template <typename T>
struct GradOperands {
  int64_t rows;
  RowAccess access;
  float inverse;  // 1 / n
  const T* x;
  const T* weight;  // or null
  const T* dout;
  const T* dresidual;  // or null
  const float* mean;
  const float* rstd;
  T* dx;
  // Partial sums of columns, one row a block or slice; or null.
  float* dweight;
  float* dbias;
};

// --- What all kernels compute of a value ---

// g = dout * weight; its sum and that of g * xhat.
__device__ void AddGrad(float hat, float g, float (&sums)[2]) {
  sums[0] += g;
  sums[1] = __builtin_fmaf(g, hat, sums[1]);
}

__device__ void AddColumn(float hat, float dout, float& dweight, float& dbias) {
  dweight = __builtin_fmaf(hat, dout, dweight);
  dbias += dout;
}

// dx = rstd * (g - mean(g) - xhat * mean(g * xhat)).
template <typename T>
__device__ uint4 InputGrad(const uint4& x, const uint4& dout,
                           const uint4& weight, float mean, float rstd,
                           const float (&means)[2]) {
  const Floats<kPackOf<T>> xs = Unpack<T>(x), ws = Unpack<T>(weight);
  Floats<kPackOf<T>> g = Unpack<T>(dout);
#pragma unroll
  for (int i = 0; i < kPackOf<T>; ++i) {
    const float hat = (xs.value[i] - mean) * rstd;
    g.value[i] *= ws.value[i];
    g.value[i] = (__builtin_fmaf(hat, -means[1], g.value[i]) - means[0]) * rstd;
  }
  return Pack<T>(g);
}

// --- Rows of one tile ---

template <typename T>
struct ColumnSums {
  static constexpr int kCount = kPackOf<T>;
  static constexpr int kQuads = 2 * kNormPacks * kCount / 4;
  float dweight[kNormPacks][kCount] = {}, dbias[kNormPacks][kCount] = {};

  // Bytes that AddGroups() takes of a block of `rows` groups.
  static size_t SharedBytes(const RowLayout& layout) {
    return static_cast<size_t>(layout.rows / 2) *
           static_cast<size_t>(layout.threads) * kQuads * sizeof(float4);
  }

  // Leaves the first group of a block with the sums of all: the upper half is
  // added to the lower half, again and again.
  __device__ void AddGroups() {
    extern __shared__ float4 shared[];
    for (unsigned groups = blockDim.y; groups > 1;) {
      const unsigned kept = (groups + 1) / 2;
      const unsigned moved = groups - kept;
      const unsigned pitch = moved * blockDim.x;
      if (threadIdx.y >= kept && threadIdx.y < groups) {
        Exchange<false>(
            shared + (threadIdx.y - kept) * blockDim.x + threadIdx.x, pitch);
      }
      __syncthreads();
      if (threadIdx.y < moved) {
        Exchange<true>(shared + threadIdx.y * blockDim.x + threadIdx.x, pitch);
      }
      __syncthreads();
      groups = kept;
    }
  }
  // Adds what is at `at`, or writes it.
  template <bool kAdd>
  __device__ void Exchange(float4* at, unsigned pitch) {
#pragma unroll
    for (int p = 0; p < kNormPacks; ++p) {
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        ExchangeQuad<kAdd>(&dweight[p][i], at);
        ExchangeQuad<kAdd>(&dbias[p][i], at + pitch);
        at += 2 * pitch;
      }
    }
  }
  template <bool kAdd>
  __device__ static void ExchangeQuad(float* mine, float4* at) {
    if constexpr (kAdd) {
      const float4 other = *at;
      mine[0] += other.x;
      mine[1] += other.y;
      mine[2] += other.z;
      mine[3] += other.w;
    } else {
      *at = make_float4(mine[0], mine[1], mine[2], mine[3]);
    }
  }
};

// Columns [column, column + kCount) of a row of partial sums, which starts at a
// multiple of 16 bytes if kVector.
template <bool kVector, int kCount>
__device__ void StorePartials(const float (&sums)[kCount], float* row,
                              int64_t column, int64_t n) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    if constexpr (kVector) {
      if (column >= n) continue;
      *reinterpret_cast<float4*>(row + column + i) =
          make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
    } else {
#pragma unroll
      for (int k = i; k < i + 4; ++k) {
        if (column + k < n) row[column + k] = sums[k];
      }
    }
  }
}

// What a thread takes of a row, as it comes.
template <bool kVector, typename T>
struct GradRow {
  uint4 x[kNormPacks], dout[kNormPacks];
  float mean, rstd;

  __device__ void Load(const GradOperands<T>& o, int64_t row) {
    const int n = static_cast<int>(o.access.n);
#pragma unroll
    for (int p = 0; p < kNormPacks; ++p) {
      const int column = static_cast<int>(NormColumn<T>(p));
      x[p] = LoadRawPack<kVector>(o.x + row * n, column, n);
      dout[p] = LoadRawPack<kVector>(o.dout + row * n, column, n);
    }
    mean = o.mean[row];
    rstd = o.rstd[row];
  }
};

// A group of blockDim.x threads takes a row at a time, the next one under way.
// kResidual: there is a dresidual.
template <bool kVector, bool kResidual, typename T>
__global__ void __launch_bounds__(kNormGradThreads, 1)
    GradKernel(const __grid_constant__ GradOperands<T> o) {
  constexpr int kCount = kPackOf<T>;
  __shared__ RowSums<2, true> row_sums;
  const int n = static_cast<int>(o.access.n);
  int column[kNormPacks];
  uint4 weight[kNormPacks];
#pragma unroll
  for (int p = 0; p < kNormPacks; ++p) {
    column[p] = static_cast<int>(NormColumn<T>(p));
    weight[p] = LoadWeights<kVector>(o.weight, column[p], n);
  }
  ColumnSums<T> columns;
  const int64_t step = int64_t{gridDim.x} * blockDim.y;
  int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  GradRow<kVector, T> next;
  if (row < o.rows) next.Load(o, row);
  int slot = 0;
  // As often in all groups, for compute-sanitizer's racecheck: it loses count
  // of barriers that some groups pass more often than others.
  for (; row - threadIdx.y < o.rows; row += step) {
    const int length = row < o.rows ? n : 0;
    GradRow<kVector, T> now = next;
    uint4 dresidual[kNormPacks];
    if constexpr (kResidual) {
#pragma unroll
      for (int p = 0; p < kNormPacks; ++p) {
        dresidual[p] =
            LoadRawPack<kVector>(o.dresidual + row * n, column[p], length);
      }
    }
    if (row + step < o.rows) next.Load(o, row + step);
    float sums[2] = {};
#pragma unroll
    for (int p = 0; p < kNormPacks; ++p) {
      if (column[p] < length) {
        const Floats<kCount> x = Unpack<T>(now.x[p]);
        const Floats<kCount> dout = Unpack<T>(now.dout[p]);
        const Floats<kCount> w = Unpack<T>(weight[p]);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          float hat = (x.value[i] - now.mean) * now.rstd;
          if (!kVector && column[p] + i >= n) hat = 0.0f;
          AddColumn(hat, dout.value[i], columns.dweight[p][i],
                    columns.dbias[p][i]);
          AddGrad(hat, dout.value[i] * w.value[i], sums);
        }
      }
      Forget(now.x[p]);
      Forget(now.dout[p]);
      Forget(weight[p]);
    }
    row_sums.Sum(sums, slot);
    slot ^= 1;
    sums[0] *= o.inverse;
    sums[1] *= o.inverse;
#pragma unroll
    for (int p = 0; p < kNormPacks; ++p) {
      uint4 dx = InputGrad<T>(now.x[p], now.dout[p], weight[p], now.mean,
                              now.rstd, sums);
      if constexpr (kResidual) dx = RoundedSum<T>(dx, dresidual[p]);
      StoreRawPack<kVector>(dx, o.dx + row * n, column[p], length);
    }
  }
  if (o.dweight == nullptr && o.dbias == nullptr) return;
  columns.AddGroups();
  if (threadIdx.y > 0) return;
#pragma unroll
  for (int p = 0; p < kNormPacks; ++p) {
    const int64_t at = int64_t{blockIdx.x} * n;
    if (o.dweight != nullptr) {
      StorePartials<kVector>(columns.dweight[p], o.dweight + at, column[p], n);
    }
    if (o.dbias != nullptr) {
      StorePartials<kVector>(columns.dbias[p], o.dbias + at, column[p], n);
    }
  }
}

// --- Longer rows ---

// dx alone: a block takes a row and reads it twice.
template <typename T>
__global__ void __launch_bounds__(kNormGradThreads)
    LongGradKernel(const __grid_constant__ GradOperands<T> o) {
  constexpr int kCount = kPackOf<T>;
  __shared__ RowSums<2, false> row_sums;
  const RowAccess access = o.access;
  const int64_t n = access.n;
  const int64_t row = blockIdx.x;
  const T* const x = o.x + row * n;
  const T* const dout = o.dout + row * n;
  const float mean = o.mean[row], rstd = o.rstd[row];
  const int64_t step = int64_t{blockDim.x} * kCount;
  float sums[2] = {};
  for (int64_t column = NormColumn<T>(0); column < n; column += step) {
    const Floats<kCount> xs = Unpack<T>(LoadAny(x, column, access));
    const Floats<kCount> gs = Unpack<T>(LoadAny(dout, column, access));
    const Floats<kCount> ws =
        Unpack<T>(LoadWeights<false>(o.weight, column, n));
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float hat = column + i < n ? (xs.value[i] - mean) * rstd : 0.0f;
      AddGrad(hat, gs.value[i] * ws.value[i], sums);
    }
  }
  row_sums.Sum(sums, 0);
  sums[0] *= o.inverse;
  sums[1] *= o.inverse;
  for (int64_t column = NormColumn<T>(0); column < n; column += step) {
    uint4 dx =
        InputGrad<T>(LoadAny(x, column, access), LoadAny(dout, column, access),
                     LoadWeights<false>(o.weight, column, n), mean, rstd, sums);
    if (o.dresidual != nullptr) {
      dx = RoundedSum<T>(dx, LoadAny(o.dresidual + row * n, column, access));
    }
    StoreAny(dx, o.dx + row * n, column, access);
  }
}

// Column sums alone.
template <typename T>
__global__ void __launch_bounds__(32 * kColumnWarps)
    GradColumns(int64_t slice_rows, GradOperands<T> o) {
  constexpr int kCount = kPackOf<T>;
  const int64_t n = o.access.n;
  const int64_t column = (int64_t{blockIdx.x} * 32 + threadIdx.x) * kCount;
  const int64_t begin = blockIdx.y * slice_rows;
  const int64_t end = min(o.rows, begin + slice_rows);
  Floats<kCount> dweight = {}, dbias = {};
  if (column < n) {
#pragma unroll 2
    for (int64_t row = begin + threadIdx.y; row < end; row += kColumnWarps) {
      const float mean = o.mean[row], rstd = o.rstd[row];
      const Floats<kCount> x =
          Unpack<T>(LoadAny(o.x + row * n, column, o.access));
      const Floats<kCount> g =
          Unpack<T>(LoadAny(o.dout + row * n, column, o.access));
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        AddColumn((x.value[i] - mean) * rstd, g.value[i], dweight.value[i],
                  dbias.value[i]);
      }
    }
  }
  if (o.dweight != nullptr) StoreColumnPartials(dweight, n, o.dweight);
  if (o.dbias != nullptr) StoreColumnPartials(dbias, n, o.dbias);
}

// --- Column sums of the blocks ---

template <typename T>
struct Finish {
  const float* partials;
  T* out;
};

// out = the sum of `count` rows of partials; block (.., y) takes output y.
template <typename T>
__global__ void __launch_bounds__(1024)
    FinishKernel(int64_t count, int64_t n, Finish<T> first, Finish<T> second) {
  __shared__ float parts[32][33];
  const Finish<T> o = blockIdx.y == 0 ? first : second;
  const int64_t base = int64_t{blockIdx.x} * 32;
  float sum = 0.0f;
  if (base + threadIdx.x < n) {
    const float* column = o.partials + base + threadIdx.x;
#pragma unroll 8
    for (int64_t i = threadIdx.y; i < count; i += 32) sum += column[i * n];
  }
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  // A warp sums a column.
  float total = parts[threadIdx.x][threadIdx.y];
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    total += __shfl_xor_sync(0xFFFFFFFFu, total, mask);
  }
  if (threadIdx.x == 0 && base + threadIdx.y < n) {
    o.out[base + threadIdx.y] = FromFloat<T>(total);
  }
}

// --- Launches ---

template <typename T>
void LaunchColumns(cudaStream_t stream, const GradOperands<T>& o,
                   const ColumnPlan& plan) {
  const dim3 grid(static_cast<unsigned>(plan.strips),
                  static_cast<unsigned>(plan.slices));
  GradColumns<<<grid, dim3(32, kColumnWarps), 0, stream>>>(plan.slice_rows, o);
  CheckLaunch("GradColumns");
}

template <typename T>
void LaunchRows(cudaStream_t stream, const GradOperands<T>& o,
                const RowLayout& layout) {
  const auto blocks = static_cast<unsigned>(NormGradBlocks(o.rows, layout));
  void (*kernel)(GradOperands<T>) = nullptr;
  if (o.dresidual != nullptr) {
    kernel = o.access.vector ? GradKernel<true, true, T>
                             : GradKernel<false, true, T>;
  } else {
    kernel = o.access.vector ? GradKernel<true, false, T>
                             : GradKernel<false, false, T>;
  }
  kernel<<<blocks, BlockOf(layout), ColumnSums<T>::SharedBytes(layout),
           stream>>>(o);
  CheckLaunch("GradKernel");
}

template <typename T>
void LaunchLongRows(cudaStream_t stream, GradOperands<T> o,
                    const RowLayout& layout) {
  if (o.rows == 0) return;
  LongGradKernel<<<static_cast<unsigned>(o.rows), BlockOf(layout), 0, stream>>>(
      o);
  CheckLaunch("LongGradKernel");
}

template <typename T>
void LaunchFinish(cudaStream_t stream, const GradOperands<T>& o, int64_t count,
                  const Tensor* dweight, const Tensor* dbias) {
  Finish<T> outputs[2] = {};
  unsigned outs = 0;
  if (dweight != nullptr) outputs[outs++] = {o.dweight, dweight->as<T>()};
  if (dbias != nullptr) outputs[outs++] = {o.dbias, dbias->as<T>()};
  const int64_t n = o.access.n;
  FinishKernel<<<dim3(static_cast<unsigned>(DivideUp(n, 32)), outs),
                 dim3(32, 32), 0, stream>>>(count, n, outputs[0], outputs[1]);
  CheckLaunch("FinishKernel");
}

}  // namespace

void LayerNormGradCuda(KernelContext& context) {
  const Tensor& x = context.In("x");
  const Tensor* weight = context.TryIn("weight");
  const Tensor* dresidual = context.TryIn("dresidual");
  const Tensor* dx = context.TryOut("dx");
  const Tensor* dweight = context.TryOut("dweight");
  const Tensor* dbias = context.TryOut("dbias");
  const int64_t n = RowLength(x.shape), rows = RowCount(x.shape);
  if (n == 0) return;
  const RowLayout layout = NormGradLayout(n, x.dtype);
  const bool columns = dweight != nullptr || dbias != nullptr;
  const bool one_tile = layout.one_tile(n);
  const int64_t partials = NormGradPartials(rows, n, x.dtype, dx != nullptr);
  const cudaStream_t stream = StreamOf(context);
  DispatchDeviceFloat(x.dtype, [&](auto type) {
    using T = decltype(type);
    GradOperands<T> o = {};
    o.rows = rows;
    o.inverse = 1.0f / static_cast<float>(n);
    o.x = x.as<const T>();
    if (weight != nullptr) o.weight = weight->as<const T>();
    o.dout = context.In("dout").as<const T>();
    if (dresidual != nullptr) o.dresidual = dresidual->as<const T>();
    o.mean = context.In("mean").as<const float>();
    o.rstd = context.In("rstd").as<const float>();
    if (dx != nullptr) o.dx = dx->as<T>();
    float* scratch = static_cast<float*>(context.workspace());
    if (dweight != nullptr) {
      o.dweight = scratch;
      scratch += partials * n;
    }
    if (dbias != nullptr) o.dbias = scratch;
    o.access = MakeRowAccess<T>(n, o.x, o.dout, o.dresidual, o.dx, o.weight,
                                o.dweight, o.dbias);
    // Columns first: dx may take the bytes of dout.
    if (columns && !(one_tile && dx != nullptr)) {
      LaunchColumns(stream, o, MakeColumnPlan(rows, n, x.dtype));
    }
    if (dx != nullptr && one_tile) LaunchRows(stream, o, layout);
    if (dx != nullptr && !one_tile) LaunchLongRows(stream, o, layout);
    if (columns) LaunchFinish(stream, o, partials, dweight, dbias);
  });
}

}  // namespace plo
