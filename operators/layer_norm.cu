// layer_norm, add_layer_norm and layer_norm_grad; operators/layer_norm.cc says
// what they compute. A row is read once where it fits the registers of its
// threads; the gradient sums columns in the pass that writes dx.
#include "operators/column_sums.cuh"
#include "operators/row_reduce.cuh"
#include "operators/rows.h"

namespace plo {
namespace {

constexpr int kNormThreads = 256;
constexpr int kGradThreads = 256;

// Calls fn with the number of packs of a layout as a constant.
template <typename Fn>
void DispatchPacks(int packs, const Fn& fn) {
  if (packs == 1) return fn(std::integral_constant<int, 1>{});
  if (packs == 4) return fn(std::integral_constant<int, 4>{});
  fn(std::integral_constant<int, 8>{});
}

// First column of this thread's pack `p` of a tile.
template <int kCount>
__device__ int64_t ColumnOf(int64_t tile, int p) {
  return tile + (int64_t{p} * blockDim.x + threadIdx.x) * kCount;
}

template <typename T>
struct NormOperands {
  int64_t rows;
  RowAccess access;
  float eps;
  const T* x;
  const T* residual;  // add_layer_norm only
  const T* weight;    // or null
  const T* bias;      // or null
  T* sum;             // add_layer_norm only
  T* out;
  float* mean;
  float* rstd;
};

template <int kPacks, bool kAdd, bool kVector, typename T>
__global__ void __launch_bounds__(kNormThreads) NormKernel(NormOperands<T> o) {
  constexpr int kCount = kPackOf<T>;
  const int64_t n = o.access.n;
  const int64_t tile = int64_t{blockDim.x} * kPacks * kCount;
  const bool one_tile = n <= tile;
  const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  const bool active = row < o.rows;
  // Threads without a row go through the motions on the last one.
  const int64_t at = (active ? row : o.rows - 1) * n;
  Floats<kCount> x[kPacks];

  float total = 0.0f;
  for (int64_t t = 0; t < n; t += tile) {
    uint4 raw[kPacks], other[kPacks];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t column = ColumnOf<kCount>(t, p);
      raw[p] = LoadRawPack<kVector>(o.x + at, column, n);
      if constexpr (kAdd) {
        other[p] = LoadRawPack<kVector>(o.residual + at, column, n);
      }
    }
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      x[p] = FromRawPack<T>(raw[p]);
      if constexpr (kAdd) {
        const Floats<kCount> residual = FromRawPack<T>(other[p]);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          // The norm reads the stored sum.
          x[p].value[i] =
              ToFloat(FromFloat<T>(x[p].value[i] + residual.value[i]));
        }
        if (active) {
          StoreRow(x[p], o.sum + at, ColumnOf<kCount>(t, p), o.access);
        }
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) total += x[p].value[i];
    }
  }
  const float mean = RowSum(total) / static_cast<float>(n);

  // Longer rows are read again; a thread reads only what it wrote.
  const T* stored = kAdd ? o.sum : o.x;
  float squares = 0.0f;
  for (int64_t t = 0; t < n; t += tile) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t column = ColumnOf<kCount>(t, p);
      if (!one_tile) x[p] = LoadRow<kCount>(stored + at, column, o.access);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float d = x[p].value[i] - mean;
        if (column + i < n) squares += d * d;
      }
    }
  }
  const float variance = RowSum(squares) / static_cast<float>(n);
  const float rstd = 1.0f / sqrtf(variance + o.eps);
  if (!active) return;
  if (threadIdx.x == 0) {
    o.mean[row] = mean;
    o.rstd[row] = rstd;
  }

  for (int64_t t = 0; t < n; t += tile) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t column = ColumnOf<kCount>(t, p);
      if (!one_tile) x[p] = LoadRow<kCount>(stored + at, column, o.access);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        x[p].value[i] = (x[p].value[i] - mean) * rstd;
      }
      if (o.weight != nullptr) {
        const Floats<kCount> w =
            FromRawPack<T>(LoadRawPack<kVector>(o.weight, column, n));
#pragma unroll
        for (int i = 0; i < kCount; ++i) x[p].value[i] *= w.value[i];
      }
      if (o.bias != nullptr) {
        const Floats<kCount> b =
            FromRawPack<T>(LoadRawPack<kVector>(o.bias, column, n));
#pragma unroll
        for (int i = 0; i < kCount; ++i) x[p].value[i] += b.value[i];
      }
      StoreRow(x[p], o.out + at, column, o.access);
    }
  }
}

template <bool kAdd>
void Normalize(KernelContext& context) {
  const Tensor& x = context.In("x");
  const Tensor* weight = context.TryIn("weight");
  const Tensor* bias = context.TryIn("bias");
  const int64_t n = RowLength(x.shape), rows = RowCount(x.shape);
  if (rows == 0) return;
  const RowLayout layout =
      MakeNarrowRowLayout(n, GpuPack(x.dtype), kNormThreads);
  DispatchDeviceFloat(x.dtype, [&](auto type) {
    using T = decltype(type);
    NormOperands<T> o = {};
    o.rows = rows;
    o.eps = static_cast<float>(context.attrs().GetFloat("eps"));
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
    // Weight and bias may be views at any element.
    o.access =
        MakeRowAccess<T>(n, o.x, o.residual, o.sum, o.out, o.weight, o.bias);
    DispatchPacks(layout.packs, [&](auto packs) {
      void (*kernel)(NormOperands<T>) =
          o.access.vector ? NormKernel<packs(), kAdd, true, T>
                          : NormKernel<packs(), kAdd, false, T>;
      kernel<<<static_cast<unsigned>(DivideUp(rows, layout.rows)),
               BlockOf(layout), 0, StreamOf(context)>>>(o);
    });
    CheckLaunch("NormKernel");
  });
}

// --- Gradient ---

// Asks for the line of an address, so that it comes from the L2 cache later.
__device__ void Prefetch(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

template <typename T>
struct GradOperands {
  int64_t rows;
  RowAccess access;
  const T* x;
  const T* weight;  // or null
  const T* dout;
  const float* mean;
  const float* rstd;
  T* dx;
  // Partial sums of columns, one row a block or slice; or null.
  float* dweight;
  float* dbias;
};

// What a block holds of the column sums of a one-tile row: its rows in order.
template <int kPacks, int kCount>
__device__ void StoreBlockPartials(const Floats<kCount> (&sums)[kPacks],
                                   int64_t n, float* partials) {
  extern __shared__ float shared[];
  float* target = partials + blockIdx.x * n;
  for (unsigned turn = 0; turn < blockDim.y; ++turn) {
    if (threadIdx.y == turn) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const int64_t column = ColumnOf<kCount>(0, p);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          if (column + i >= n) continue;
          float value = sums[p].value[i];
          if (turn > 0) value = shared[column + i] + value;
          if (turn + 1 < blockDim.y) {
            shared[column + i] = value;
          } else {
            target[column + i] = value;
          }
        }
      }
    }
    __syncthreads();
  }
}

// The two sums of each of kRows rows.
template <int kRows>
struct RowSums {
  float g[kRows], dot[kRows];
};
template <int kRows>
struct RowSumsOp {
  __device__ RowSums<kRows> operator()(RowSums<kRows> a,
                                       const RowSums<kRows>& b) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      a.g[r] += b.g[r];
      a.dot[r] += b.dot[r];
    }
    return a;
  }
};

// dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), g = dout * weight.
template <int kPacks, bool kColumns, bool kVector, typename T>
__global__ void __launch_bounds__(kGradThreads, 2)
    GradKernel(GradOperands<T> o) {
  constexpr int kCount = kPackOf<T>;
  constexpr int kRows = NormGradRows(kPacks);
  const int64_t n = o.access.n;
  const int64_t tile = int64_t{blockDim.x} * kPacks * kCount;
  const bool one_tile = n <= tile;
  Floats<kCount> dweight[kPacks] = {}, dbias[kPacks] = {};
  const int64_t step = int64_t{gridDim.x} * blockDim.y * kRows;
  for (int64_t base = int64_t{blockIdx.x} * blockDim.y * kRows; base < o.rows;
       base += step) {
    int64_t at[kRows];
    bool active[kRows];
    float mean[kRows], rstd[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = base + r * int64_t{blockDim.y} + threadIdx.y;
      active[r] = row < o.rows;
      // Threads without a row go through the motions on the last one.
      const int64_t read = active[r] ? row : o.rows - 1;
      at[r] = read * n;
      mean[r] = o.mean[read];
      rstd[r] = o.rstd[read];
    }
    Floats<kCount> hat[kRows][kPacks], g[kRows][kPacks];
    const auto load = [&](int64_t t, bool sum_columns) {
      uint4 raw_x[kRows][kPacks], raw_g[kRows][kPacks];
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const int64_t column = ColumnOf<kCount>(t, p);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          raw_x[r][p] = LoadRawPack<kVector>(o.x + at[r], column, n);
          raw_g[r][p] = LoadRawPack<kVector>(o.dout + at[r], column, n);
        }
      }
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const int64_t column = ColumnOf<kCount>(t, p);
        Floats<kCount> w;
        if (o.weight != nullptr) {
          w = FromRawPack<T>(LoadRawPack<kVector>(o.weight, column, n));
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          hat[r][p] = FromRawPack<T>(raw_x[r][p]);
          g[r][p] = FromRawPack<T>(raw_g[r][p]);
#pragma unroll
          for (int i = 0; i < kCount; ++i) {
            hat[r][p].value[i] = (hat[r][p].value[i] - mean[r]) * rstd[r];
            if (kColumns && sum_columns && active[r]) {
              dweight[p].value[i] += hat[r][p].value[i] * g[r][p].value[i];
              dbias[p].value[i] += g[r][p].value[i];
            }
            if (o.weight != nullptr) g[r][p].value[i] *= w.value[i];
          }
        }
      }
    };
    if (threadIdx.x % 8 == 0) {
      // This thread's packs begin the lines of eight.
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int64_t row = base + step + r * int64_t{blockDim.y} + threadIdx.y;
        if (row >= o.rows) continue;
#pragma unroll
        for (int p = 0; p < kPacks; ++p) {
          const int64_t column = ColumnOf<kCount>(0, p);
          if (column >= n) continue;
          Prefetch(o.x + row * n + column);
          Prefetch(o.dout + row * n + column);
        }
      }
    }
    RowSums<kRows> sums = {};
    for (int64_t t = 0; t < n; t += tile) {
      load(t, true);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int p = 0; p < kPacks; ++p) {
#pragma unroll
          for (int i = 0; i < kCount; ++i) {
            sums.g[r] += g[r][p].value[i];
            sums.dot[r] += g[r][p].value[i] * hat[r][p].value[i];
          }
        }
      }
    }
    sums = RowReduce(sums, RowSumsOp<kRows>{});
    for (int64_t t = 0; t < n; t += tile) {
      if (!one_tile) load(t, false);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float mean_g = sums.g[r] / static_cast<float>(n);
        const float mean_dot = sums.dot[r] / static_cast<float>(n);
#pragma unroll
        for (int p = 0; p < kPacks; ++p) {
#pragma unroll
          for (int i = 0; i < kCount; ++i) {
            const float value =
                g[r][p].value[i] + hat[r][p].value[i] * -mean_dot;
            g[r][p].value[i] = (value - mean_g) * rstd[r];
          }
          if (active[r]) {
            StoreRow(g[r][p], o.dx + at[r], ColumnOf<kCount>(t, p), o.access);
          }
        }
      }
    }
  }
  if constexpr (kColumns) {
    if (o.dweight != nullptr) StoreBlockPartials(dweight, n, o.dweight);
    if (o.dbias != nullptr) StoreBlockPartials(dbias, n, o.dbias);
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
      const Floats<kCount> x = LoadRow<kCount>(o.x + row * n, column, o.access);
      const Floats<kCount> g =
          LoadRow<kCount>(o.dout + row * n, column, o.access);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float hat = (x.value[i] - mean) * rstd;
        dweight.value[i] += hat * g.value[i];
        dbias.value[i] += g.value[i];
      }
    }
  }
  if (o.dweight != nullptr) StoreColumnPartials(dweight, n, o.dweight);
  if (o.dbias != nullptr) StoreColumnPartials(dbias, n, o.dbias);
}

template <typename T>
void LaunchGrad(cudaStream_t stream, const GradOperands<T>& o,
                const RowLayout& layout, bool columns) {
  const int64_t blocks = NormGradBlocks(o.rows, layout);
  const size_t shared = columns && layout.rows > 1
                            ? static_cast<size_t>(o.access.n) * sizeof(float)
                            : 0;
  const auto launch = [&](auto packs, auto with_columns, auto vector) {
    GradKernel<packs(), with_columns(), vector()>
        <<<static_cast<unsigned>(blocks), BlockOf(layout), shared, stream>>>(o);
  };
  const auto launch_by = [&](auto packs, auto vector) {
    if (columns) {
      launch(packs, std::true_type{}, vector);
    } else {
      launch(packs, std::false_type{}, vector);
    }
  };
  const auto launch_packs = [&](auto packs) {
    if (o.access.vector) {
      launch_by(packs, std::true_type{});
    } else {
      launch_by(packs, std::false_type{});
    }
  };
  if (layout.packs == 1) {
    launch_packs(std::integral_constant<int, 1>{});
  } else {
    launch_packs(std::integral_constant<int, 2>{});
  }
  CheckLaunch("GradKernel");
}

void LayerNormGradKernel(KernelContext& context) {
  const Tensor& x = context.In("x");
  const Tensor* weight = context.TryIn("weight");
  const Tensor* dx = context.TryOut("dx");
  const Tensor* dweight = context.TryOut("dweight");
  const Tensor* dbias = context.TryOut("dbias");
  const int64_t n = RowLength(x.shape), rows = RowCount(x.shape);
  if (n == 0) return;
  const RowLayout layout = NormGradLayout(n, x.dtype);
  const bool columns = dweight != nullptr || dbias != nullptr;
  const bool fused = columns && dx != nullptr && layout.one_tile(n);
  const int64_t partials = NormGradPartials(rows, n, x.dtype, dx != nullptr);
  const cudaStream_t stream = StreamOf(context);
  DispatchDeviceFloat(x.dtype, [&](auto type) {
    using T = decltype(type);
    GradOperands<T> o = {};
    o.rows = rows;
    o.x = x.as<const T>();
    if (weight != nullptr) o.weight = weight->as<const T>();
    o.dout = context.In("dout").as<const T>();
    o.mean = context.In("mean").as<const float>();
    o.rstd = context.In("rstd").as<const float>();
    if (dx != nullptr) o.dx = dx->as<T>();
    float* scratch = static_cast<float*>(context.workspace());
    if (dweight != nullptr) {
      o.dweight = scratch;
      scratch += partials * n;
    }
    if (dbias != nullptr) o.dbias = scratch;
    o.access = MakeRowAccess<T>(n, o.x, o.dout, o.dx, o.weight);
    // Columns first: dx may take the bytes of dout.
    if (columns && !fused) {
      const ColumnPlan plan = MakeColumnPlan(rows, n, x.dtype);
      const dim3 grid(static_cast<unsigned>(plan.strips),
                      static_cast<unsigned>(plan.slices));
      GradColumns<<<grid, dim3(32, kColumnWarps), 0, stream>>>(plan.slice_rows,
                                                               o);
      CheckLaunch("GradColumns");
    }
    if (dx != nullptr) LaunchGrad(stream, o, layout, fused);
    const T* none = nullptr;
    if (dweight != nullptr) {
      LaunchFinishColumns(stream, partials, n, o.dweight, none,
                          dweight->as<T>());
    }
    if (dbias != nullptr) {
      LaunchFinishColumns(stream, partials, n, o.dbias, none, dbias->as<T>());
    }
  });
}

}  // namespace

void RegisterLayerNormCuda(KernelRegistry& kernels) {
  constexpr DeviceKind kCuda = DeviceKind::kCuda;
  kernels.Register("layer_norm", kCuda, Normalize<false>);
  kernels.Register("add_layer_norm", kCuda, Normalize<true>);
  kernels.Register("layer_norm_grad", kCuda, LayerNormGradKernel);
}

}  // namespace plo
