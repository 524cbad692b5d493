#include "operators/attention_core.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "operators/kernel_util.h"
#include "operators/onednn_utils.h"
#include "operators/vector_ops.h"

namespace plo {
namespace {

constexpr int64_t kTile = 64;  // rows and columns of a tile of scores
constexpr int64_t kMaxLanes = 16;
constexpr int64_t kLaneBudgetBytes = int64_t{16} << 20;

int64_t TileOf(const AttentionShape& s) { return std::min(kTile, s.seq); }

bool Empty(const AttentionShape& s) {
  return s.batch * s.seq * s.heads * s.dim == 0;
}

// How tasks are dealt to lanes, and the scratch of a lane in floats.
struct Lanes {
  int64_t tasks = 0, count = 0, floats = 0, stride = 0;

  Lanes(int64_t task_count, int64_t lane_floats)
      : tasks(task_count),
        floats(lane_floats),
        stride(RoundUp(lane_floats, 64)) {
    const int64_t bytes = stride * static_cast<int64_t>(sizeof(float));
    count = std::clamp(kLaneBudgetBytes / bytes, int64_t{1},
                       std::min(kMaxLanes, tasks));
  }
  int64_t WorkspaceBytes() const {
    return ((count - 1) * stride + floats) *
           static_cast<int64_t>(sizeof(float));
  }
  // fn(task, scratch) for all tasks, which have `flops` flops together.
  template <typename Fn>
  void Run(double flops, void* workspace, const Fn& fn) const {
    const int64_t elements = static_cast<int64_t>(flops / 16);
    ParallelFor(count, elements, [&](int64_t lane) {
      float* scratch = static_cast<float*>(workspace) + lane * stride;
      for (int64_t task = lane; task < tasks; task += count) fn(task, scratch);
    });
  }
};

// Hands out pieces of a lane's scratch; with a null base it only counts.
struct Carver {
  float* base = nullptr;
  int64_t used = 0;
  float* Take(int64_t floats) {
    float* piece = base == nullptr ? nullptr : base + used;
    used += floats;
    return piece;
  }
};

struct ForwardScratch {
  float *q, *k, *v;  // converted tiles, 16 bits only
  float *acc, *max, *sum;
  float* scores;  // last: the first tile fills it

  static int64_t Floats(const AttentionShape& s) {
    ForwardScratch unused;
    return unused.Carve(s, nullptr);
  }
  int64_t Carve(const AttentionShape& s, float* base) {
    Carver carver{base};
    const int64_t tile = TileOf(s);
    const int64_t converted = Is16Bit(s.dtype) ? tile * s.dim : 0;
    q = carver.Take(converted);
    k = carver.Take(converted);
    v = carver.Take(converted);
    acc = carver.Take(tile * s.dim);
    max = carver.Take(tile);
    sum = carver.Take(tile);
    scores = carver.Take(tile * tile);
    return carver.used;
  }
};

struct BackwardScratch {
  float *q, *k, *v, *dout;  // converted tiles, 16 bits only
  // fp32 sums, 16 bits only; in fp32 the outputs are the sums. dk and dv span
  // the sequence when several heads add to them.
  float *dq, *dk, *dv;
  float* delta;  // [seq]
  float *scores, *dscores;

  static int64_t Floats(const AttentionShape& s) {
    BackwardScratch unused;
    return unused.Carve(s, nullptr);
  }
  static int64_t KvRows(const AttentionShape& s) {
    return s.heads == s.kv_heads ? TileOf(s) : s.seq;
  }
  int64_t Carve(const AttentionShape& s, float* base) {
    Carver carver{base};
    const int64_t tile = TileOf(s);
    const bool narrow = Is16Bit(s.dtype);
    const int64_t converted = narrow ? tile * s.dim : 0;
    q = carver.Take(converted);
    k = carver.Take(converted);
    v = carver.Take(converted);
    dout = carver.Take(converted);
    dq = carver.Take(narrow ? s.seq * s.dim : 0);
    dk = carver.Take(narrow ? KvRows(s) * s.dim : 0);
    dv = carver.Take(narrow ? KvRows(s) * s.dim : 0);
    delta = carver.Take(s.seq);
    scores = carver.Take(tile * tile);
    dscores = carver.Take(tile * tile);
    return carver.used;
  }
};

// `rows` rows of fp32: in place, or converted.
struct Rows {
  float* data = nullptr;
  int64_t stride = 0;
};

int64_t OffsetOf(const AttentionShape& s, const HeadsView& view, int64_t b,
                 int64_t position, int64_t head) {
  return (b * s.seq + position) * view.row + head * s.dim;
}

// Rows [position, position + rows) of one head, for reading.
Rows LoadRows(const AttentionShape& s, const HeadsView& view, int64_t b,
              int64_t position, int64_t rows, int64_t head, float* buffer) {
  const int64_t offset = OffsetOf(s, view, b, position, head);
  if (s.dtype == DType::kFp32) {
    return {static_cast<float*>(view.data) + offset, view.row};
  }
  for (int64_t i = 0; i < rows; ++i) {
    ConvertToFloat(s.dtype,
                   ElementAt(s.dtype, view.data, offset + i * view.row),
                   buffer + i * s.dim, s.dim);
  }
  return {buffer, s.dim};
}

void StoreRows(const AttentionShape& s, const float* sums,
               const HeadsView& view, int64_t b, int64_t position, int64_t rows,
               int64_t head) {
  const int64_t offset = OffsetOf(s, view, b, position, head);
  for (int64_t i = 0; i < rows; ++i) {
    StoreFloats(s.dtype, sums + i * s.dim, view.data, offset + i * view.row,
                s.dim);
  }
}

// Columns of a tile at `begin` that row `position` may see.
int64_t Visible(const AttentionShape& s, int64_t position, int64_t begin,
                int64_t columns) {
  return s.causal ? std::clamp(position + 1 - begin, int64_t{0}, columns)
                  : columns;
}

// --- Forward ---

void ForwardTile(const AttentionShape& s, const AttentionForward& op,
                 const ForwardScratch& scratch, int64_t b, int64_t head,
                 int64_t begin, int64_t rows) {
  const int64_t kv_head = head / (s.heads / s.kv_heads);
  const int64_t tile = TileOf(s);
  const Rows q = LoadRows(s, op.q, b, begin, rows, head, scratch.q);
  std::fill_n(scratch.max, rows, -std::numeric_limits<float>::infinity());
  std::fill_n(scratch.sum, rows, 0.0f);
  const int64_t end = s.causal ? begin + rows : s.seq;
  for (int64_t col = 0; col < end; col += tile) {
    const int64_t cols = std::min(tile, s.seq - col);
    const Rows k = LoadRows(s, op.k, b, col, cols, kv_head, scratch.k);
    const Rows v = LoadRows(s, op.v, b, col, cols, kv_head, scratch.v);
    Sgemm(false, true, rows, cols, s.dim, s.scale, q.data, q.stride, k.data,
          k.stride, 0.0f, scratch.scores, cols);
    for (int64_t i = 0; i < rows; ++i) {
      float* row = scratch.scores + i * cols;
      const int64_t visible = Visible(s, begin + i, col, cols);
      const float top = Vec().max(row, visible);
      if (top > scratch.max[i]) {
        const float shrink = std::exp(scratch.max[i] - top);
        scratch.max[i] = top;
        scratch.sum[i] *= shrink;
        if (col > 0) {
          float* acc = scratch.acc + i * s.dim;
          Vec().scale(acc, shrink, acc, s.dim);
        }
      }
      scratch.sum[i] += Vec().exp_sum(row, scratch.max[i], row, visible);
      std::fill(row + visible, row + cols, 0.0f);
    }
    Sgemm(false, false, rows, s.dim, cols, 1.0f, scratch.scores, cols, v.data,
          v.stride, col > 0 ? 1.0f : 0.0f, scratch.acc, s.dim);
  }
  float* lse = op.lse + (b * s.heads + head) * s.seq + begin;
  for (int64_t i = 0; i < rows; ++i) {
    lse[i] = scratch.max[i] + std::log(scratch.sum[i]);
    float* acc = scratch.acc + i * s.dim;
    Vec().scale(acc, 1.0f / scratch.sum[i], acc, s.dim);
  }
  StoreRows(s, scratch.acc, op.out, b, begin, rows, head);
}

// --- Backward ---

// Where the sums of a grad are kept: the output itself in fp32.
Rows SumRows(const AttentionShape& s, const HeadsView& view, int64_t b,
             int64_t position, int64_t head, float* sums,
             int64_t sums_position) {
  if (s.dtype == DType::kFp32) {
    return {
        static_cast<float*>(view.data) + OffsetOf(s, view, b, position, head),
        view.row};
  }
  return {sums + sums_position * s.dim, s.dim};
}

// delta[i] = sum(dout[i] * out[i]), from the rounded out.
void RowDeltas(const AttentionShape& s, const AttentionBackward& op, int64_t b,
               int64_t head, const BackwardScratch& scratch) {
  const int64_t tile = TileOf(s);
  for (int64_t begin = 0; begin < s.seq; begin += tile) {
    const int64_t rows = std::min(tile, s.seq - begin);
    const Rows out = LoadRows(s, op.out, b, begin, rows, head, scratch.q);
    const Rows dout = LoadRows(s, op.dout, b, begin, rows, head, scratch.dout);
    for (int64_t i = 0; i < rows; ++i) {
      scratch.delta[begin + i] = Vec().dot(out.data + i * out.stride,
                                           dout.data + i * dout.stride, s.dim);
    }
  }
}

// The contributions of the tile at (begin, col) to dq, dk and dv.
void BackwardTile(const AttentionShape& s, const AttentionBackward& op,
                  const BackwardScratch& scratch, int64_t b, int64_t head,
                  int64_t begin, int64_t col, int64_t cols, const Rows& k,
                  const Rows& v, const Rows& dk, const Rows& dv,
                  float beta_kv) {
  const int64_t rows = std::min(TileOf(s), s.seq - begin);
  const Rows q = LoadRows(s, op.q, b, begin, rows, head, scratch.q);
  const Rows dout = LoadRows(s, op.dout, b, begin, rows, head, scratch.dout);
  Sgemm(false, true, rows, cols, s.dim, s.scale, q.data, q.stride, k.data,
        k.stride, 0.0f, scratch.scores, cols);
  Sgemm(false, true, rows, cols, s.dim, 1.0f, dout.data, dout.stride, v.data,
        v.stride, 0.0f, scratch.dscores, cols);
  const float* lse = op.lse + (b * s.heads + head) * s.seq + begin;
  for (int64_t i = 0; i < rows; ++i) {
    float* p = scratch.scores + i * cols;
    const int64_t visible = Visible(s, begin + i, col, cols);
    Vec().exp_sum(p, lse[i], p, visible);
    std::fill(p + visible, p + cols, 0.0f);
  }
  Sgemm(true, false, cols, s.dim, rows, 1.0f, scratch.scores, cols, dout.data,
        dout.stride, beta_kv, dv.data, dv.stride);
  for (int64_t i = 0; i < rows; ++i) {
    float* dscores = scratch.dscores + i * cols;
    Vec().softmax_backward(scratch.scores + i * cols, dscores,
                           scratch.delta[begin + i], s.scale, dscores, cols);
  }
  Sgemm(true, false, cols, s.dim, rows, 1.0f, scratch.dscores, cols, q.data,
        q.stride, beta_kv, dk.data, dk.stride);
  const Rows dq = SumRows(s, op.dq, b, begin, head, scratch.dq, begin);
  Sgemm(false, false, rows, s.dim, cols, 1.0f, scratch.dscores, cols, k.data,
        k.stride, col > 0 ? 1.0f : 0.0f, dq.data, dq.stride);
}

// All heads that share one kv head of one sample.
void BackwardTask(const AttentionShape& s, const AttentionBackward& op,
                  const BackwardScratch& scratch, int64_t b, int64_t kv_head) {
  const int64_t group = s.heads / s.kv_heads;
  const int64_t tile = TileOf(s);
  const bool narrow = Is16Bit(s.dtype);
  for (int64_t g = 0; g < group; ++g) {
    const int64_t head = kv_head * group + g;
    RowDeltas(s, op, b, head, scratch);
    for (int64_t col = 0; col < s.seq; col += tile) {
      const int64_t cols = std::min(tile, s.seq - col);
      const Rows k = LoadRows(s, op.k, b, col, cols, kv_head, scratch.k);
      const Rows v = LoadRows(s, op.v, b, col, cols, kv_head, scratch.v);
      const int64_t at = group == 1 ? 0 : col;
      const Rows dk = SumRows(s, op.dk, b, col, kv_head, scratch.dk, at);
      const Rows dv = SumRows(s, op.dv, b, col, kv_head, scratch.dv, at);
      const int64_t first = s.causal ? col : 0;
      for (int64_t begin = first; begin < s.seq; begin += tile) {
        BackwardTile(s, op, scratch, b, head, begin, col, cols, k, v, dk, dv,
                     g > 0 || begin > first ? 1.0f : 0.0f);
      }
      if (narrow && g + 1 == group) {
        StoreRows(s, dk.data, op.dk, b, col, cols, kv_head);
        StoreRows(s, dv.data, op.dv, b, col, cols, kv_head);
      }
    }
    if (narrow) StoreRows(s, scratch.dq, op.dq, b, 0, s.seq, head);
  }
}

}  // namespace

int64_t AttentionForwardWorkspace(const AttentionShape& s) {
  if (Empty(s)) return 0;
  return Lanes(s.batch * s.heads, ForwardScratch::Floats(s)).WorkspaceBytes();
}

int64_t AttentionBackwardWorkspace(const AttentionShape& s) {
  if (Empty(s)) return 0;
  return Lanes(s.batch * s.kv_heads, BackwardScratch::Floats(s))
      .WorkspaceBytes();
}

void RunAttentionForward(const AttentionShape& s, const AttentionForward& op,
                         void* workspace) {
  if (Empty(s)) return;
  const Lanes lanes(s.batch * s.heads, ForwardScratch::Floats(s));
  lanes.Run(AttentionProductFlops(s), workspace,
            [&](int64_t task, float* base) {
              ForwardScratch scratch;
              scratch.Carve(s, base);
              const int64_t tile = TileOf(s);
              for (int64_t begin = 0; begin < s.seq; begin += tile) {
                ForwardTile(s, op, scratch, task / s.heads, task % s.heads,
                            begin, std::min(tile, s.seq - begin));
              }
            });
}

void RunAttentionBackward(const AttentionShape& s, const AttentionBackward& op,
                          void* workspace) {
  if (Empty(s)) return;
  const Lanes lanes(s.batch * s.kv_heads, BackwardScratch::Floats(s));
  lanes.Run(
      AttentionProductFlops(s), workspace, [&](int64_t task, float* base) {
        BackwardScratch scratch;
        scratch.Carve(s, base);
        BackwardTask(s, op, scratch, task / s.kv_heads, task % s.kv_heads);
      });
}

double AttentionProductFlops(const AttentionShape& s) {
  const int64_t tile = std::max<int64_t>(TileOf(s), 1);
  double scores = 0;
  for (int64_t begin = 0; begin < s.seq; begin += tile) {
    const int64_t rows = std::min(tile, s.seq - begin);
    const int64_t cols = s.causal ? begin + rows : s.seq;
    scores += static_cast<double>(rows) * static_cast<double>(cols);
  }
  return 2.0 * scores * static_cast<double>(s.batch * s.heads * s.dim);
}

}  // namespace plo
