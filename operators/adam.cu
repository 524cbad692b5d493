// adamw, sgd_momentum on CUDA: one launch per bucket, bit for bit the CPU's
// update (operators/adam_math.h).
//
// The pieces of the bucket travel as a kernel argument, and every block works
// within one piece. A small kernel before folds the factors of each piece from
// the step record, so nothing waits for the host and a captured launch stays
// valid.
#include <algorithm>

#include "operators/adam_layout.h"
#include "operators/quads.cuh"

namespace plo {
namespace {

constexpr int kThreads = 256;
constexpr int kQuad = 4;  // elements of a thread
constexpr int64_t kTile = kThreads * kQuad;

struct Piece {
  int64_t begin, end;   // elements of the operands
  int64_t first_block;  // of the launch
  double weight_decay, lr_scale;
  int32_t segment;  // or kPaddingPiece
  int32_t need_clip;
};

// Kernel arguments are limited to 4 KiB on all devices; a bucket of one block
// of a transformer has a dozen pieces.
constexpr int kMaxPieces = 64;
constexpr int kFoldThreads = 96;
struct PieceTable {
  int32_t count = 0;
  Piece pieces[kMaxPieces];
};

struct Launch {
  PieceTable table;
  int64_t blocks = 0;
};

struct State {
  UpdateRule rule;
  UpdateOperands operands;
  bool aligned;  // to 16 bytes
  std::vector<Launch> launches;
};

// Tiles start at multiples of kTile of the operands, so that the quads of
// threads are aligned; those of a piece need not start at its begin.
int64_t BlockCount(const UpdatePiece& piece) {
  return DivideUp(piece.end, kTile) - piece.begin / kTile;
}

State MakeState(const KernelContext& context, bool adam) {
  const UpdateLayout layout = MakeUpdateLayout(context, adam);
  State state;
  state.rule = layout.rule;
  state.operands = BindUpdateOperands(context);
  const UpdateOperands& o = state.operands;
  state.aligned = IsAligned16(o.grad) && IsAligned16(o.master) &&
                  IsAligned16(o.moment1) && IsAligned16(o.moment2) &&
                  IsAligned16(o.param);
  for (const UpdatePiece& piece : layout.pieces) {
    if (state.launches.empty() ||
        state.launches.back().table.count == kMaxPieces) {
      state.launches.emplace_back();
    }
    Launch& launch = state.launches.back();
    Piece& entry = launch.table.pieces[launch.table.count++];
    entry = {piece.begin,
             piece.end,
             launch.blocks,
             0,
             0,
             static_cast<int32_t>(piece.segment),
             0};
    if (piece.segment != kPaddingPiece) {
      const SegmentRule& rule =
          layout.segments[static_cast<size_t>(piece.segment)];
      entry.weight_decay = rule.weight_decay;
      entry.lr_scale = rule.lr_scale;
      entry.need_clip = rule.need_clip ? 1 : 0;
    }
    launch.blocks += BlockCount(piece);
  }
  return state;
}

struct AdamUpdate {
  using Scalars = AdamScalars;
  static constexpr bool kHasMoment2 = true;
  static __device__ Scalars Fold(const UpdateRule& rule,
                                 const SegmentRule& segment,
                                 const float* record) {
    return FoldAdam(rule, segment, record);
  }
  static __device__ void Apply(const Scalars& s, float grad, float& p, float& m,
                               float& v) {
    AdamElement(s, grad, p, m, v);
  }
};

struct SgdUpdate {
  using Scalars = SgdScalars;
  static constexpr bool kHasMoment2 = false;
  static __device__ Scalars Fold(const UpdateRule& rule,
                                 const SegmentRule& segment,
                                 const float* record) {
    return FoldSgd(rule, segment, record);
  }
  static __device__ void Apply(const Scalars& s, float grad, float& p, float& m,
                               float&) {
    SgdElement(s, grad, p, m);
  }
};

// Keeps the compiler from moving loads down to where values are used, so that
// those of all operands are under way at once.
__device__ void Pin(float4& x) {
  asm volatile("" : "+f"(x.x), "+f"(x.y), "+f"(x.z), "+f"(x.w));
}
__device__ void Pin(uint4& x) {
  asm volatile("" : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w));
}

__device__ float4& QuadAt(float* data, int64_t at) {
  return *reinterpret_cast<float4*>(data + at);
}

// Params are written last: they may have the gradient's bytes.
template <typename Update>
__device__ void UpdateQuad(const typename Update::Scalars& s,
                           const UpdateOperands& o, int64_t at) {
  float4 p = QuadAt(o.master, at), m = QuadAt(o.moment1, at);
  float4 v = {0, 0, 0, 0};
  if constexpr (Update::kHasMoment2) v = QuadAt(o.moment2, at);
  uint4 raw = LoadQuad(o.grad_dtype, o.grad, at);
  Pin(p);
  Pin(m);
  if constexpr (Update::kHasMoment2) Pin(v);
  Pin(raw);
  const float4 g = FloatsOfQuad(o.grad_dtype, raw);
  Update::Apply(s, g.x, p.x, m.x, v.x);
  Update::Apply(s, g.y, p.y, m.y, v.y);
  Update::Apply(s, g.z, p.z, m.z, v.z);
  Update::Apply(s, g.w, p.w, m.w, v.w);
  QuadAt(o.master, at) = p;
  QuadAt(o.moment1, at) = m;
  if constexpr (Update::kHasMoment2) QuadAt(o.moment2, at) = v;
  if (o.param != nullptr) StoreQuad(o.param_dtype, o.param, at, p);
}

template <typename Update>
__device__ void UpdateOne(const typename Update::Scalars& s,
                          const UpdateOperands& o, int64_t at) {
  float p = o.master[at], m = o.moment1[at], v = 0.0f;
  if constexpr (Update::kHasMoment2) v = o.moment2[at];
  Update::Apply(s, LoadFloat(o.grad_dtype, o.grad, at), p, m, v);
  o.master[at] = p;
  o.moment1[at] = m;
  if constexpr (Update::kHasMoment2) o.moment2[at] = v;
  if (o.param != nullptr) StoreFloat(o.param_dtype, o.param, at, p);
}

__device__ int FindPiece(const PieceTable& table, int64_t block) {
  int low = 0;
  int high = table.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (table.pieces[middle].first_block <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

template <typename Scalars>
__device__ __host__ Scalars* ScalarsOf(void* scratch, int64_t piece) {
  static_assert(sizeof(Scalars) <= kScalarsPitch);
  return reinterpret_cast<Scalars*>(static_cast<char*>(scratch) +
                                    piece * kScalarsPitch);
}

// One thread per piece, and one that touches the last byte of the scratch.
template <typename Update>
__global__ void FoldKernel(const __grid_constant__ UpdateRule rule,
                           const float* record, const float* stats,
                           void* scratch, char* last,
                           const __grid_constant__ PieceTable table) {
  const int i = static_cast<int>(threadIdx.x);
  if (i == kMaxPieces) *last = 0;
  if (i >= table.count) return;
  const Piece& piece = table.pieces[i];
  if (piece.segment == kPaddingPiece || record[kRecordSkip] != 0.0f) return;
  const float sum_squares = stats == nullptr ? 0.0f : stats[piece.segment];
  *ScalarsOf<typename Update::Scalars>(scratch, i) = Update::Fold(
      rule,
      {piece.weight_decay, piece.lr_scale, piece.need_clip != 0, sum_squares},
      record);
}

template <typename Update>
__global__ void __launch_bounds__(kThreads, 5)
    UpdateKernel(const __grid_constant__ UpdateOperands o, const float* record,
                 void* scratch, bool aligned,
                 const __grid_constant__ PieceTable table) {
  const int index = FindPiece(table, blockIdx.x);
  const Piece& piece = table.pieces[index];
  const bool skip = record[kRecordSkip] != 0.0f;
  const bool padding = piece.segment == kPaddingPiece;
  const bool writes_param = o.param != nullptr;
  if (skip && (!writes_param || o.param == o.master)) return;
  if (padding && !writes_param) return;
  const int64_t tile =
      (piece.begin / kTile + blockIdx.x - piece.first_block) * kTile;
  // This thread's quad, of which the piece may own a part.
  const int64_t at = tile + threadIdx.x * kQuad;
  const int64_t low = max(piece.begin, at);
  const int64_t high = min(piece.end, at + kQuad);
  const bool whole = aligned && high - low == kQuad;
  if (skip || padding) {  // params are the master copy, or zero
    if (whole) {
      const float4 p = skip ? QuadAt(o.master, at) : float4{0, 0, 0, 0};
      StoreQuad(o.param_dtype, o.param, at, p);
    } else {
      for (int64_t i = low; i < high; ++i) {
        StoreFloat(o.param_dtype, o.param, i, skip ? o.master[i] : 0.0f);
      }
    }
    return;
  }
  const typename Update::Scalars scalars =
      *ScalarsOf<typename Update::Scalars>(scratch, index);
  if (whole) {
    UpdateQuad<Update>(scalars, o, at);
  } else {
#pragma unroll 1
    for (int64_t i = low; i < high; ++i) UpdateOne<Update>(scalars, o, i);
  }
}

template <typename Update>
void RunUpdate(KernelContext& context) {
  const State& state = context.Cached<State>(
      [&] { return MakeState(context, Update::kHasMoment2); });
  const float* record = context.In("record").as<float>();
  const Tensor* tensor = context.TryIn("stats");
  const float* stats =
      tensor == nullptr
          ? nullptr
          : tensor->as<float>() + context.attrs().GetInt("stats_offset");
  const cudaStream_t stream = StreamOf(context);
  char* scratch = static_cast<char*>(context.workspace());
  char* last = scratch + context.workspace_bytes() - 1;
  for (const Launch& launch : state.launches) {
    FoldKernel<Update><<<1, kFoldThreads, 0, stream>>>(
        state.rule, record, stats, scratch, last, launch.table);
    CheckLaunch("fold");
    if (launch.blocks > 0) {
      UpdateKernel<Update>
          <<<static_cast<unsigned>(launch.blocks), kThreads, 0, stream>>>(
              state.operands, record, scratch, state.aligned, launch.table);
      CheckLaunch("update");
    }
    scratch += launch.table.count * kScalarsPitch;
  }
}

}  // namespace

void RegisterAdamCuda(KernelRegistry& kernels) {
  kernels.Register("adamw", DeviceKind::kCuda, RunUpdate<AdamUpdate>);
  kernels.Register("sgd_momentum", DeviceKind::kCuda, RunUpdate<SgdUpdate>);
}

}  // namespace plo
