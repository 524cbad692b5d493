// grad_stats: sums of squares by segment, and the number of elements that are
// not finite, over this rank's slice of a bucket's gradient. The squares are
// those of the gradient without the loss scale.
//
// One pass; 2 or 4 bytes per element. Sums are in double, in the order of
// grad_stats_layout.h, so the result depends on the slice's values only: not on
// the device or the number of threads, nor on whether the operand is the slice
// alone or the whole bucket.
#include "framework/ir/op_registry.h"
#include "operators/elementwise.h"
#include "operators/grad_stats_layout.h"
#include "operators/infer_util.h"

namespace plo {
namespace {

static_assert(kStatsRow == kRowChunk);

int64_t SegmentCount(const AttrMap& attrs) {
  return static_cast<int64_t>(attrs.GetInts("segment_begins").size());
}

void InferGradStats(InferContext& ctx) {
  RequireFloat(ctx, "x");
  if (ctx.Has("scale")) RequireScalar(ctx, "scale");
  RequireSegments(ctx);
  const int64_t numel = ctx.shape("x").numel();
  const int64_t slice = ctx.attrs().GetInt("slice_numel");
  ctx.Require(slice >= 0 && (ctx.attrs().GetBool("sliced") ? numel == slice
                                                           : numel >= slice),
              "slice_numel is ", slice, ", x has ", numel, " elements");
  ctx.Set("stats", DType::kFp32, {SegmentCount(ctx.attrs()) + 1});
}

// In elements of x.
struct Block {
  int64_t begin, n;
};

struct BlockStats {
  double squares;
  int64_t nonfinite;
};

// What does not change from step to step, and room for what does.
struct Layout {
  std::vector<StatsRun> runs;
  std::vector<Block> blocks;
  std::vector<BlockStats> stats;  // by block
};

Layout MakeLayout(const KernelContext& ctx) {
  Layout layout;
  layout.runs = MakeStatsRuns(ctx);
  for (const StatsRun& run : layout.runs) {
    for (int64_t at = 0; at < run.n; at += kStatsBlock) {
      layout.blocks.push_back(
          {run.begin + at, std::min(kStatsBlock, run.n - at)});
    }
  }
  layout.stats.resize(layout.blocks.size());
  return layout;
}

BlockStats StatsOfBlock(const Tensor& x, const Block& block) {
  const FloatLoops& loops = GetFloatLoops();
  BlockStats stats{};
  float buffer[kStatsRow];
  ForRowChunks(block.n, [&](int64_t begin, int64_t n) {
    const float* values =
        FloatsAt(x.dtype, x.data, block.begin + begin, n, buffer);
    double lanes[kStatsLanes] = {};
    loops.sum_squares(values, n, lanes);
    stats.squares += JoinStatsLanes(lanes);
    stats.nonfinite += loops.count_nonfinite(values, n);
  });
  return stats;
}

void GradStatsKernel(KernelContext& ctx) {
  const Tensor& x = ctx.In("x");
  Layout& layout = ctx.Cached<Layout>([&] { return MakeLayout(ctx); });
  ParallelFor(static_cast<int64_t>(layout.blocks.size()),
              ctx.attrs().GetInt("slice_numel"), [&](int64_t b) {
                const size_t i = static_cast<size_t>(b);
                layout.stats[i] = StatsOfBlock(x, layout.blocks[i]);
              });
  const Tensor* scale_in = ctx.TryIn("scale");
  const double scale = scale_in == nullptr ? 1.0 : *scale_in->as<float>();
  float* out = ctx.Out("stats").as<float>();
  const BlockStats* block = layout.stats.data();
  int64_t nonfinite = 0;
  for (const StatsRun& run : layout.runs) {
    double lanes[kStatsJoinLanes] = {};
    for (int64_t i = 0; i < CeilDiv(run.n, kStatsBlock); ++i, ++block) {
      lanes[i % kStatsJoinLanes] += block->squares;
      nonfinite += block->nonfinite;
    }
    *out++ = UnscaledSquares(JoinStatsLanes(lanes), scale);
  }
  *out = static_cast<float>(nonfinite);
}

// CUDA: a sum and a count for each block, and the count of all blocks.
int64_t CudaWorkspaceBytes(const OpView& op) {
  return 16 * MaxStatsBlocks(op.attrs().GetInt("slice_numel"),
                             SegmentCount(op.attrs())) +
         8;
}

OpCost GradStatsCost(const OpView& op) {
  const double n = static_cast<double>(op.attrs().GetInt("slice_numel"));
  return {2 * n, n * static_cast<double>(SizeOf(op.In("x").dtype))};
}

}  // namespace

void RegisterGradStats(OpRegistry& ops, KernelRegistry& kernels) {
  OpSchema schema;
  schema.type = "grad_stats";
  schema.inputs = {{"x"}, Optional("scale")};
  schema.outputs = {{"stats"}};
  schema.attrs = {BoolAttr("sliced", true),
                  {"slice_numel", AttrType::kInt},
                  {"segment_begins", AttrType::kInts},
                  {"segment_numels", AttrType::kInts}};
  schema.infer = InferGradStats;
  schema.cost = GradStatsCost;
  schema.cuda_workspace_bytes = CudaWorkspaceBytes;
  ops.Register(std::move(schema));
  kernels.Register("grad_stats", DeviceKind::kCpu, GradStatsKernel);
}

}  // namespace plo
