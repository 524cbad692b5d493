// Tiled attention in fp32 arithmetic, for any head size.
//
// A block owns 64 rows of one operand (queries, or keys in the pass for dk and
// dv) and a slice of the head's dimensions of its output, and goes over the
// tiles of the other operand in order: nothing is summed across blocks, and no
// more than a tile of scores exists. A thread holds 4 x 4 scores and 4 rows of
// its output. Head sizes above one slice compute scores once for each slice.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "operators/attention_cuda.h"
#include "operators/cuda_util.cuh"

namespace plo {
namespace {

constexpr int kTile = 64;
constexpr int kPitch = kTile + 4;  // rows stay 16-byte aligned
constexpr int kDims = 32;          // of operands staged for scores
constexpr int kStep = 16;          // rows staged for outputs
constexpr int kThreads = 256;      // 16 x 16
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int kGroupDims = 64;  // a thread has 4 dimensions of each group

struct Staging {
  float a[kDims][kPitch];
  float b[kDims][kPitch];
  float weights[kTile][kPitch];  // [row of b][row of a]
  float x[kStep][2 * kGroupDims];
};

// One head of one sample: row p starts at data + p * row.
template <typename T>
struct Rows {
  T* data;
  int64_t row;
};

struct Sizes {
  int64_t seq, heads, group, dim, tiles;
  float scale;
  bool causal;
};

template <typename T>
struct Operand {
  T* data;
  int64_t row;

  __device__ Rows<T> Of(const Sizes& s, int64_t sample, int64_t head) const {
    return {data + sample * s.seq * row + head * s.dim, row};
  }
};

__device__ inline int RowOfThread() {
  return static_cast<int>(threadIdx.x) / 16 * 4;
}
__device__ inline int ColumnOfThread() {
  return static_cast<int>(threadIdx.x) % 16 * 4;
}

// Rows [begin, begin + kTile) of dimensions [dim_begin, dim_begin + kDims),
// transposed; zeros outside.
template <typename T>
__device__ void StageTransposed(const Rows<const T>& rows, int64_t begin,
                                const Sizes& s, int64_t dim_begin,
                                float (*out)[kPitch]) {
  const int lane = threadIdx.x % kDims;
  const int64_t d = dim_begin + lane;
  for (int r = threadIdx.x / kDims; r < kTile; r += kThreads / kDims) {
    const int64_t row = begin + r;
    const bool inside = row < s.seq && d < s.dim;
    out[lane][r] = inside ? ToFloat(rows.data[row * rows.row + d]) : 0.0f;
  }
}

// scores[i][j] = a[a_begin + row + i] . b[b_begin + column + j].
template <typename T>
__device__ void ScoreTile(const Rows<const T>& a, int64_t a_begin,
                          const Rows<const T>& b, int64_t b_begin,
                          const Sizes& s, Staging& staging,
                          float (&scores)[4][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) scores[i][j] = 0.0f;
  }
  const int row = RowOfThread(), column = ColumnOfThread();
  for (int64_t d = 0; d < s.dim; d += kDims) {
    __syncthreads();  // the staging area has been read
    StageTransposed(a, a_begin, s, d, staging.a);
    StageTransposed(b, b_begin, s, d, staging.b);
    __syncthreads();
#pragma unroll 8
    for (int k = 0; k < kDims; ++k) {
      const float4 u = *reinterpret_cast<const float4*>(&staging.a[k][row]);
      const float4 v = *reinterpret_cast<const float4*>(&staging.b[k][column]);
      const float us[4] = {u.x, u.y, u.z, u.w};
      const float vs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          scores[i][j] = fmaf(us[i], vs[j], scores[i][j]);
        }
      }
    }
  }
}

__device__ inline void StageWeights(const float (&weights)[4][4],
                                    Staging& staging) {
  const int row = RowOfThread(), column = ColumnOfThread();
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    *reinterpret_cast<float4*>(&staging.weights[column + j][row]) =
        make_float4(weights[0][j], weights[1][j], weights[2][j], weights[3][j]);
  }
}

// sums[i][..] += sum over the tile's b of weights[b][row + i] * x[b][slice].
template <int kGroups, typename T>
__device__ void AddProduct(const Rows<const T>& x, int64_t begin, int64_t slice,
                           const Sizes& s, Staging& staging,
                           float (&sums)[4][kGroups * 4]) {
  constexpr int kWidth = kGroups * kGroupDims;
  const int row = RowOfThread(), column = ColumnOfThread();
  for (int r0 = 0; r0 < kTile && begin + r0 < s.seq; r0 += kStep) {
    __syncthreads();  // weights are written, the last rows have been read
    for (int i = threadIdx.x; i < kStep * kWidth; i += kThreads) {
      const int64_t p = begin + r0 + i / kWidth;
      const int64_t d = slice + i % kWidth;
      const bool inside = p < s.seq && d < s.dim;
      staging.x[i / kWidth][i % kWidth] =
          inside ? ToFloat(x.data[p * x.row + d]) : 0.0f;
    }
    __syncthreads();
#pragma unroll 4
    for (int r = 0; r < kStep; ++r) {
      const float4 w =
          *reinterpret_cast<const float4*>(&staging.weights[r0 + r][row]);
      const float ws[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const float4 v = *reinterpret_cast<const float4*>(
            &staging.x[r][g * kGroupDims + column]);
        const float vs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            sums[i][g * 4 + e] = fmaf(ws[i], vs[e], sums[i][g * 4 + e]);
          }
        }
      }
    }
  }
}

template <int kGroups, typename T>
__device__ void StoreSums(const float (&sums)[4][kGroups * 4],
                          const Rows<T>& out, int64_t begin, int64_t slice,
                          const Sizes& s) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t p = begin + RowOfThread() + i;
    if (p >= s.seq) return;
#pragma unroll
    for (int k = 0; k < kGroups * 4; ++k) {
      const int64_t d = slice + k / 4 * kGroupDims + ColumnOfThread() + k % 4;
      if (d < s.dim) out.data[p * out.row + d] = FromFloat<T>(sums[i][k]);
    }
  }
}

template <int kCount>
__device__ void Clear(float (&sums)[4][kCount]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) sums[i][k] = 0.0f;
  }
}

// Whether query i sees key j.
__device__ inline bool Sees(const Sizes& s, int64_t i, int64_t j) {
  return i < s.seq && j < s.seq && (!s.causal || j <= i);
}

// The 16 threads of a row of scores.
__device__ inline float RowMax(float x) {
  for (int k = 8; k > 0; k /= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, k));
  }
  return x;
}
__device__ inline float RowSum(float x) {
  for (int k = 8; k > 0; k /= 2) x += __shfl_xor_sync(0xffffffffu, x, k);
  return x;
}

// blockIdx.x = (sample * heads + head) * tiles + tile, blockIdx.y = slice.
template <int kGroups, typename T>
__global__ void __launch_bounds__(kThreads)
    ForwardKernel(Operand<const T> q, Operand<const T> k, Operand<const T> v,
                  Operand<T> out, float* lse, Sizes s) {
  __shared__ __align__(16) Staging staging;
  const int64_t unit = blockIdx.x / s.tiles;
  const int64_t begin = blockIdx.x % s.tiles * kTile;
  const int64_t sample = unit / s.heads, head = unit % s.heads;
  const int64_t slice = int64_t{blockIdx.y} * kGroups * kGroupDims;
  const Rows<const T> q_rows = q.Of(s, sample, head);
  const Rows<const T> k_rows = k.Of(s, sample, head / s.group);
  const Rows<const T> v_rows = v.Of(s, sample, head / s.group);
  float sums[4][kGroups * 4], weights[4][4];
  float max[4], total[4];
  Clear(sums);
  for (int i = 0; i < 4; ++i) {
    max[i] = -kInf;
    total[i] = 0.0f;
  }
  const int64_t end = s.causal ? min(s.seq, begin + kTile) : s.seq;
  for (int64_t col = 0; col < end; col += kTile) {
    ScoreTile(q_rows, begin, k_rows, col, s, staging, weights);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float top = -kInf;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const bool sees =
            Sees(s, begin + RowOfThread() + i, col + ColumnOfThread() + j);
        weights[i][j] = sees ? weights[i][j] * s.scale : -kInf;
        top = fmaxf(top, weights[i][j]);
      }
      top = RowMax(top);
      if (top > max[i]) {
        const float shrink = expf(max[i] - top);
        max[i] = top;
        total[i] *= shrink;
#pragma unroll
        for (int d = 0; d < kGroups * 4; ++d) sums[i][d] *= shrink;
      }
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const bool sees =
            Sees(s, begin + RowOfThread() + i, col + ColumnOfThread() + j);
        weights[i][j] = sees ? expf(weights[i][j] - max[i]) : 0.0f;
        sum += weights[i][j];
      }
      total[i] += RowSum(sum);
    }
    StageWeights(weights, staging);
    AddProduct<kGroups>(v_rows, col, slice, s, staging, sums);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float inverse = 1.0f / total[i];
#pragma unroll
    for (int d = 0; d < kGroups * 4; ++d) sums[i][d] *= inverse;
    const int64_t p = begin + RowOfThread() + i;
    if (blockIdx.y == 0 && ColumnOfThread() == 0 && p < s.seq) {
      lse[unit * s.seq + p] = max[i] + logf(total[i]);
    }
  }
  StoreSums<kGroups>(sums, out.Of(s, sample, head), begin, slice, s);
}

// delta[unit][p] = out[p] . dout[p], from the rounded out. A warp per row.
template <typename T>
__global__ void DeltaKernel(Operand<const T> out, Operand<const T> dout,
                            float* delta, int64_t rows, Sizes s) {
  const int lane = threadIdx.x % 32;
  const int64_t warps = int64_t{gridDim.x} * blockDim.x / 32;
  int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  for (; row < rows; row += warps) {
    const int64_t unit = row / s.seq, p = row % s.seq;
    const Rows<const T> a = out.Of(s, unit / s.heads, unit % s.heads);
    const Rows<const T> b = dout.Of(s, unit / s.heads, unit % s.heads);
    float sum = 0.0f;
    for (int64_t d = lane; d < s.dim; d += 32) {
      sum = fmaf(ToFloat(a.data[p * a.row + d]), ToFloat(b.data[p * b.row + d]),
                 sum);
    }
    for (int k = 16; k > 0; k /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, k);
    }
    if (lane == 0) delta[row] = sum;
  }
}

// A block owns queries; blocks are numbered as in ForwardKernel.
template <int kGroups, typename T>
__global__ void __launch_bounds__(kThreads)
    QueryGradKernel(Operand<const T> q, Operand<const T> k, Operand<const T> v,
                    Operand<const T> dout, Operand<T> dq, const float* lse,
                    const float* delta, Sizes s) {
  __shared__ __align__(16) Staging staging;
  const int64_t unit = blockIdx.x / s.tiles;
  const int64_t begin = blockIdx.x % s.tiles * kTile;
  const int64_t sample = unit / s.heads, head = unit % s.heads;
  const int64_t slice = int64_t{blockIdx.y} * kGroups * kGroupDims;
  const Rows<const T> q_rows = q.Of(s, sample, head);
  const Rows<const T> dout_rows = dout.Of(s, sample, head);
  const Rows<const T> k_rows = k.Of(s, sample, head / s.group);
  const Rows<const T> v_rows = v.Of(s, sample, head / s.group);
  float sums[4][kGroups * 4], scores[4][4], grads[4][4];
  float row_lse[4], row_delta[4];
  Clear(sums);
  for (int i = 0; i < 4; ++i) {
    const int64_t p = min(begin + RowOfThread() + i, s.seq - 1);
    row_lse[i] = lse[unit * s.seq + p];
    row_delta[i] = delta[unit * s.seq + p];
  }
  const int64_t end = s.causal ? min(s.seq, begin + kTile) : s.seq;
  for (int64_t col = 0; col < end; col += kTile) {
    ScoreTile(q_rows, begin, k_rows, col, s, staging, scores);
    ScoreTile(dout_rows, begin, v_rows, col, s, staging, grads);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const bool sees =
            Sees(s, begin + RowOfThread() + i, col + ColumnOfThread() + j);
        const float weight =
            sees ? expf(scores[i][j] * s.scale - row_lse[i]) : 0.0f;
        grads[i][j] =
            sees ? weight * (grads[i][j] - row_delta[i]) * s.scale : 0.0f;
      }
    }
    StageWeights(grads, staging);
    AddProduct<kGroups>(k_rows, col, slice, s, staging, sums);
  }
  StoreSums<kGroups>(sums, dq.Of(s, sample, head), begin, slice, s);
}

// A block owns keys and values and sums over the heads that share them:
// blockIdx.x = (sample * kv_heads + kv_head) * tiles + tile.
template <int kGroups, typename T>
__global__ void __launch_bounds__(kThreads)
    KeyValueGradKernel(Operand<const T> q, Operand<const T> k,
                       Operand<const T> v, Operand<const T> dout, Operand<T> dk,
                       Operand<T> dv, const float* lse, const float* delta,
                       Sizes s) {
  __shared__ __align__(16) Staging staging;
  const int64_t kv_heads = s.heads / s.group;
  const int64_t kv_unit = blockIdx.x / s.tiles;
  const int64_t begin = blockIdx.x % s.tiles * kTile;
  const int64_t sample = kv_unit / kv_heads, kv_head = kv_unit % kv_heads;
  const int64_t slice = int64_t{blockIdx.y} * kGroups * kGroupDims;
  const Rows<const T> k_rows = k.Of(s, sample, kv_head);
  const Rows<const T> v_rows = v.Of(s, sample, kv_head);
  float dk_sums[4][kGroups * 4], dv_sums[4][kGroups * 4];
  float weights[4][4], grads[4][4];
  Clear(dk_sums);
  Clear(dv_sums);
  for (int64_t g = 0; g < s.group; ++g) {
    const int64_t head = kv_head * s.group + g;
    const int64_t stats = (sample * s.heads + head) * s.seq;
    const Rows<const T> q_rows = q.Of(s, sample, head);
    const Rows<const T> dout_rows = dout.Of(s, sample, head);
    for (int64_t row = s.causal ? begin : 0; row < s.seq; row += kTile) {
      ScoreTile(k_rows, begin, q_rows, row, s, staging, weights);
      ScoreTile(v_rows, begin, dout_rows, row, s, staging, grads);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int64_t query = row + ColumnOfThread() + j;
        const int64_t p = min(query, s.seq - 1);
        const float row_lse = lse[stats + p];
        const float row_delta = delta[stats + p];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const bool sees = Sees(s, query, begin + RowOfThread() + i);
          weights[i][j] = sees ? expf(weights[i][j] * s.scale - row_lse) : 0.0f;
          grads[i][j] =
              sees ? weights[i][j] * (grads[i][j] - row_delta) * s.scale : 0.0f;
        }
      }
      StageWeights(weights, staging);
      AddProduct<kGroups>(dout_rows, row, slice, s, staging, dv_sums);
      __syncthreads();  // the weights have been read
      StageWeights(grads, staging);
      AddProduct<kGroups>(q_rows, row, slice, s, staging, dk_sums);
    }
  }
  StoreSums<kGroups>(dk_sums, dk.Of(s, sample, kv_head), begin, slice, s);
  StoreSums<kGroups>(dv_sums, dv.Of(s, sample, kv_head), begin, slice, s);
}

Sizes SizesOf(const AttentionShape& s) {
  return {s.seq,   s.heads, s.heads / s.kv_heads, s.dim, DivideUp(s.seq, kTile),
          s.scale, s.causal};
}

template <typename T>
Operand<T> OperandOf(const HeadsView& view) {
  return {static_cast<T*>(view.data), view.row};
}

bool Empty(const AttentionShape& s) {
  return s.batch * s.seq * s.heads * s.dim == 0;
}

dim3 GridOf(const AttentionShape& s, int64_t heads, int groups) {
  const int64_t blocks = s.batch * heads * DivideUp(s.seq, kTile);
  PLO_ENFORCE(blocks < (int64_t{1} << 31), kUnimplemented, "attention of ",
              blocks, " tiles");
  return dim3(static_cast<unsigned>(blocks),
              static_cast<unsigned>(DivideUp(s.dim, groups * kGroupDims)));
}

// Calls fn(T{}, groups as a constant).
template <typename Fn>
void Dispatch(const AttentionShape& s, const Fn& fn) {
  DispatchDeviceFloat(s.dtype, [&](auto zero) {
    if (s.dim <= kGroupDims) {
      fn(zero, std::integral_constant<int, 1>{});
    } else {
      fn(zero, std::integral_constant<int, 2>{});
    }
  });
}

}  // namespace

void RunPlainAttentionForward(const AttentionShape& s,
                              const AttentionForward& op, void* stream) {
  if (Empty(s)) return;
  Dispatch(s, [&](auto zero, auto groups) {
    using T = decltype(zero);
    constexpr int kGroups = decltype(groups)::value;
    ForwardKernel<kGroups, T><<<GridOf(s, s.heads, kGroups), kThreads, 0,
                                static_cast<cudaStream_t>(stream)>>>(
        OperandOf<const T>(op.q), OperandOf<const T>(op.k),
        OperandOf<const T>(op.v), OperandOf<T>(op.out), op.lse, SizesOf(s));
  });
  CheckLaunch("attention ForwardKernel");
}

void RunPlainAttentionBackward(const AttentionShape& s,
                               const AttentionBackward& op, void* workspace,
                               void* stream) {
  if (Empty(s)) return;
  const auto on = static_cast<cudaStream_t>(stream);
  float* delta = static_cast<float*>(workspace);
  const int64_t rows = s.batch * s.heads * s.seq;
  const auto blocks = static_cast<unsigned>(
      std::min<int64_t>(DivideUp(rows, kThreads / 32), 8192));
  Dispatch(s, [&](auto zero, auto groups) {
    using T = decltype(zero);
    constexpr int kGroups = decltype(groups)::value;
    const Sizes sizes = SizesOf(s);
    const auto q = OperandOf<const T>(op.q), k = OperandOf<const T>(op.k),
               v = OperandOf<const T>(op.v), dout = OperandOf<const T>(op.dout);
    DeltaKernel<T><<<blocks, kThreads, 0, on>>>(OperandOf<const T>(op.out),
                                                dout, delta, rows, sizes);
    CheckLaunch("attention DeltaKernel");
    QueryGradKernel<kGroups, T>
        <<<GridOf(s, s.heads, kGroups), kThreads, 0, on>>>(
            q, k, v, dout, OperandOf<T>(op.dq), op.lse, delta, sizes);
    CheckLaunch("attention QueryGradKernel");
    KeyValueGradKernel<kGroups, T>
        <<<GridOf(s, s.kv_heads, kGroups), kThreads, 0, on>>>(
            q, k, v, dout, OperandOf<T>(op.dk), OperandOf<T>(op.dv), op.lse,
            delta, sizes);
    CheckLaunch("attention KeyValueGradKernel");
  });
}

}  // namespace plo
