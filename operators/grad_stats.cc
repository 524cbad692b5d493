// grad_stats: sums of squares by segment, and the number of elements that are
// not finite, over this rank's slice of a bucket's gradient.
//
// One pass; 2 or 4 bytes per element. Blocks of fixed size are summed in double
// and combined in order, so the result depends on the slice's values only: not
// on the number of threads, nor on whether the operand is the slice alone or
// the whole bucket.
#include "framework/ir/op_registry.h"
#include "operators/elementwise.h"
#include "operators/infer_util.h"
#include "operators/segments.h"

namespace plo {
namespace {

constexpr int64_t kBlock = 32 * kRowChunk;

int64_t SegmentCount(const AttrMap& attrs) {
  return static_cast<int64_t>(attrs.GetInts("segment_begins").size());
}

void InferGradStats(InferContext& ctx) {
  RequireFloat(ctx, "x");
  RequireSegments(ctx);
  const int64_t numel = ctx.shape("x").numel();
  const int64_t slice = ctx.attrs().GetInt("slice_numel");
  ctx.Require(slice >= 0 && (ctx.attrs().GetBool("sliced") ? numel == slice
                                                           : numel >= slice),
              "slice_numel is ", slice, ", x has ", numel, " elements");
  ctx.Set("stats", DType::kFp32, {SegmentCount(ctx.attrs()) + 1});
}

// A run of one segment, in elements of x.
struct Block {
  int64_t segment;
  int64_t begin, n;
};

// What does not change from step to step.
struct Layout {
  std::vector<Block> blocks;
  std::vector<double> squares;  // by block
  std::vector<int64_t> nonfinite;
};

Layout MakeLayout(const KernelContext& ctx) {
  const AttrMap& attrs = ctx.attrs();
  const int64_t slice = attrs.GetInt("slice_numel");
  const int64_t low = ctx.env().rank * slice;
  const int64_t offset = attrs.GetBool("sliced") ? 0 : low;
  Layout layout;
  for (int64_t s = 0; s < SegmentCount(attrs); ++s) {
    const SegmentRange range =
        SegmentWithin(attrs, static_cast<size_t>(s), low, low + slice);
    for (int64_t at = range.begin; at < range.end; at += kBlock) {
      layout.blocks.push_back(
          {s, offset + at, std::min(kBlock, range.end - at)});
    }
  }
  layout.squares.resize(layout.blocks.size());
  layout.nonfinite.resize(layout.blocks.size());
  return layout;
}

void GradStatsKernel(KernelContext& ctx) {
  const Tensor& x = ctx.In("x");
  const Tensor& stats = ctx.Out("stats");
  Layout& layout = ctx.Cached<Layout>([&] { return MakeLayout(ctx); });
  const FloatLoops& loops = GetFloatLoops();
  const int64_t blocks = static_cast<int64_t>(layout.blocks.size());
  ParallelFor(blocks, ctx.attrs().GetInt("slice_numel"), [&](int64_t b) {
    const Block& block = layout.blocks[static_cast<size_t>(b)];
    double lanes[8] = {};
    int64_t nonfinite = 0;
    float buffer[kRowChunk];
    ForRowChunks(block.n, [&](int64_t begin, int64_t n) {
      const float* values =
          FloatsAt(x.dtype, x.data, block.begin + begin, n, buffer);
      loops.sum_squares(values, n, lanes);
      nonfinite += loops.count_nonfinite(values, n);
    });
    layout.squares[static_cast<size_t>(b)] =
        ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
        ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
    layout.nonfinite[static_cast<size_t>(b)] = nonfinite;
  });
  float* out = stats.as<float>();
  size_t b = 0;
  int64_t nonfinite = 0;
  for (int64_t s = 0; s + 1 < stats.numel; ++s) {
    double total = 0;
    for (; b < layout.blocks.size() && layout.blocks[b].segment == s; ++b) {
      total += layout.squares[b];
      nonfinite += layout.nonfinite[b];
    }
    out[s] = static_cast<float>(total);
  }
  out[stats.numel - 1] = static_cast<float>(nonfinite);
}

OpCost GradStatsCost(const OpView& op) {
  const double n = static_cast<double>(op.attrs().GetInt("slice_numel"));
  return {2 * n, n * static_cast<double>(SizeOf(op.In("x").dtype))};
}

}  // namespace

void RegisterGradStats(OpRegistry& ops, KernelRegistry& kernels) {
  OpSchema schema;
  schema.type = "grad_stats";
  schema.inputs = {{"x"}};
  schema.outputs = {{"stats"}};
  schema.attrs = {BoolAttr("sliced", true),
                  {"slice_numel", AttrType::kInt},
                  {"segment_begins", AttrType::kInts},
                  {"segment_numels", AttrType::kInts}};
  schema.infer = InferGradStats;
  schema.cost = GradStatsCost;
  ops.Register(std::move(schema));
  kernels.Register("grad_stats", DeviceKind::kCpu, GradStatsKernel);
}

}  // namespace plo
