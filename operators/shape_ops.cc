// reshape (a view), transpose, slice, concat, split and their gradients.
//
// These move bytes and know nothing of their meaning: any dtype works.
#include <algorithm>
#include <cstring>

#include "framework/ir/op_registry.h"
#include "operators/broadcast.h"
#include "operators/infer_util.h"
#include "operators/kernel_util.h"

namespace plo {
namespace {

int Axis(const InferContext& ctx, const Shape& shape) {
  const int64_t axis = ctx.attrs().GetInt("axis");
  ctx.Require(axis >= -shape.rank() && axis < shape.rank(), "axis ", axis,
              " is out of range for ", shape);
  return static_cast<int>(axis < 0 ? axis + shape.rank() : axis);
}

int AxisOf(const AttrMap& attrs, const Shape& shape) {
  const int64_t axis = attrs.GetInt("axis");
  return static_cast<int>(axis < 0 ? axis + shape.rank() : axis);
}

Shape WithDim(const Shape& shape, int axis, int64_t n) {
  std::vector<int64_t> dims = shape.dims();
  dims[static_cast<size_t>(axis)] = n;
  return Shape(std::move(dims));
}

// --- reshape ---

void InferReshape(InferContext& ctx) {
  std::vector<int64_t> dims = ctx.attrs().GetInts("shape");
  const int64_t numel = ctx.shape("x").numel();
  int64_t known = 1;
  int64_t* open = nullptr;
  for (int64_t& dim : dims) {
    ctx.Require(dim >= -1, "shape has a dimension of ", dim);
    if (dim >= 0) {
      known *= dim;
      continue;
    }
    ctx.Require(open == nullptr, "shape may have one dimension of -1");
    open = &dim;
  }
  if (open != nullptr) {
    ctx.Require(known > 0 && numel % known == 0, "cannot tell -1 in shape ",
                Shape(ctx.attrs().GetInts("shape")));
    *open = numel / known;
  }
  Shape shape(std::move(dims));
  ctx.Require(shape.numel() == numel, "shape ", shape, " has ", shape.numel(),
              " elements, x has ", numel);
  ctx.Set("out", ctx.dtype("x"), std::move(shape));
}

void CopyAll(const Tensor& x, const Tensor& out) {
  const int64_t bytes = x.numel * SizeOf(x.dtype);
  if (bytes == 0 || x.data == out.data) return;
  std::memcpy(out.data, x.data, static_cast<size_t>(bytes));
}

// A view needs no work; the copy is for an output with bytes of its own.
void ReshapeKernel(KernelContext& ctx) { CopyAll(ctx.In("x"), ctx.Out("out")); }

void ReshapeGrad(GradContext& grad) {
  if (!grad.NeedsGrad("x")) return;
  const Var x = grad.program().var(grad.op().In1("x"));
  AttrMap attrs;
  attrs.Set("shape", x.shape.dims());
  // The grad of a param must have bytes of its own.
  grad.Emit(x.kind == VarKind::kParam ? "reshape_copy" : "reshape",
            {{"x", {grad.OutGrad("out")}}}, {{"out", {grad.InGrad("x")}}},
            attrs);
}

// --- transpose ---

void InferTranspose(InferContext& ctx) {
  const Shape& x = ctx.shape("x");
  const std::vector<int64_t>& perm = ctx.attrs().GetInts("perm");
  std::vector<int64_t> sorted = perm;
  std::sort(sorted.begin(), sorted.end());
  bool valid = static_cast<int>(perm.size()) == x.rank();
  for (size_t i = 0; i < sorted.size(); ++i) {
    valid = valid && sorted[i] == static_cast<int64_t>(i);
  }
  ctx.Require(valid, "perm ", Shape(perm), " is no permutation of the ",
              x.rank(), " dimensions of x");
  ctx.Require(x.rank() <= kMaxRank, "at most ", kMaxRank, " dimensions");
  std::vector<int64_t> dims;
  for (int64_t axis : perm) dims.push_back(x[static_cast<int>(axis)]);
  ctx.Set("out", ctx.dtype("x"), Shape(std::move(dims)));
}

// Tiles keep both the rows read and the rows written in the cache.
template <typename T>
void TransposeTiles(const T* from, int64_t row_stride, int64_t col_stride,
                    int64_t rows, int64_t cols, T* to, int64_t to_stride) {
  constexpr int64_t kTile = 16;
  for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
    for (int64_t c0 = 0; c0 < cols; c0 += kTile) {
      const int64_t r1 = std::min(rows, r0 + kTile);
      const int64_t c1 = std::min(cols, c0 + kTile);
      for (int64_t r = r0; r < r1; ++r) {
        for (int64_t c = c0; c < c1; ++c) {
          to[r * to_stride + c] = from[r * row_stride + c * col_stride];
        }
      }
    }
  }
}

template <typename T>
void TransposeDense(const StridedLoop<2>& loop, const T* x, T* out) {
  const int last = loop.rank - 1;
  const int64_t inner = loop.inner();
  const int64_t stride = loop.stride[last][1];
  const int64_t total = loop.Count(loop.rank);
  if (stride == 1 || loop.rank == 1) {
    ParallelFor(loop.Count(last), total, [&](int64_t row) {
      const auto offsets = loop.Offsets(row, last);
      std::copy(x + offsets[1], x + offsets[1] + inner, out + offsets[0]);
    });
    return;
  }
  // The output's two innermost dimensions as a matrix, in strips of rows.
  constexpr int64_t kStrip = 64;
  const int64_t rows = loop.size[last - 1];
  const int64_t strips = CeilDiv(rows, kStrip);
  ParallelFor(loop.Count(last - 1) * strips, total, [&](int64_t unit) {
    const auto offsets = loop.Offsets(unit / strips, last - 1);
    const int64_t r0 = unit % strips * kStrip;
    const int64_t to_stride = loop.stride[last - 1][0];
    const int64_t row_stride = loop.stride[last - 1][1];
    TransposeTiles(x + offsets[1] + r0 * row_stride, row_stride, stride,
                   std::min(kStrip, rows - r0), inner,
                   out + offsets[0] + r0 * to_stride, to_stride);
  });
}

void TransposeKernel(KernelContext& ctx) {
  const Tensor& x = ctx.In("x");
  const Tensor& out = ctx.Out("out");
  if (x.numel == 0) return;
  const std::vector<int64_t>& perm = ctx.attrs().GetInts("perm");
  const int rank = x.shape.rank();
  const auto x_strides = BroadcastStrides(x.shape, rank);
  const auto out_strides = BroadcastStrides(out.shape, rank);
  StridedLoop<2> loop;
  for (int i = 0; i < rank; ++i) {
    loop.Add(out.shape[i],
             {out_strides[i], x_strides[static_cast<size_t>(perm[i])]});
  }
  loop.Finish();
  switch (SizeOf(x.dtype)) {
    case 1:
      return TransposeDense(loop, x.as<const uint8_t>(), out.as<uint8_t>());
    case 2:
      return TransposeDense(loop, x.as<const uint16_t>(), out.as<uint16_t>());
    case 4:
      return TransposeDense(loop, x.as<const uint32_t>(), out.as<uint32_t>());
    default:
      return TransposeDense(loop, x.as<const uint64_t>(), out.as<uint64_t>());
  }
}

void TransposeGrad(GradContext& grad) {
  if (!grad.NeedsGrad("x")) return;
  const std::vector<int64_t>& perm = grad.op().attrs.GetInts("perm");
  std::vector<int64_t> inverse(perm.size());
  for (size_t i = 0; i < perm.size(); ++i) {
    inverse[static_cast<size_t>(perm[i])] = static_cast<int64_t>(i);
  }
  AttrMap attrs;
  attrs.Set("perm", std::move(inverse));
  grad.Emit("transpose", {{"x", {grad.OutGrad("out")}}},
            {{"out", {grad.InGrad("x")}}}, attrs);
}

// --- slice, concat, split ---

// A tensor as [outer, dim(axis), inner bytes].
struct AxisLayout {
  int64_t outer = 1, dim = 1, inner_bytes = 1;
};

AxisLayout LayoutOf(const Tensor& t, int axis) {
  AxisLayout layout;
  for (int i = 0; i < axis; ++i) layout.outer *= t.shape[i];
  layout.dim = t.shape[axis];
  layout.inner_bytes = SizeOf(t.dtype);
  for (int i = axis + 1; i < t.shape.rank(); ++i) {
    layout.inner_bytes *= t.shape[i];
  }
  return layout;
}

// Copies elements [from, from + n) along `axis` of x to [to, to + n) of out.
void CopyAlong(const Tensor& x, int64_t from, const Tensor& out, int64_t to,
               int64_t n, int axis) {
  const AxisLayout source = LayoutOf(x, axis);
  const AxisLayout target = LayoutOf(out, axis);
  const int64_t bytes = n * source.inner_bytes;
  if (bytes == 0) return;
  const int64_t elements = source.outer * bytes / SizeOf(x.dtype);
  ParallelFor(source.outer, elements, [&](int64_t i) {
    std::memcpy(
        out.as<std::byte>() + (i * target.dim + to) * target.inner_bytes,
        x.as<const std::byte>() + (i * source.dim + from) * source.inner_bytes,
        static_cast<size_t>(bytes));
  });
}

void InferSlice(InferContext& ctx) {
  const Shape& x = ctx.shape("x");
  const int axis = Axis(ctx, x);
  const int64_t begin = ctx.attrs().GetInt("begin");
  const int64_t end = ctx.attrs().GetInt("end");
  ctx.Require(0 <= begin && begin <= end && end <= x[axis], "range [", begin,
              ", ", end, ") does not lie in dimension ", axis, " of ", x);
  ctx.Set("out", ctx.dtype("x"), WithDim(x, axis, end - begin));
}

void SliceKernel(KernelContext& ctx) {
  const Tensor& x = ctx.In("x");
  const Tensor& out = ctx.Out("out");
  const int axis = AxisOf(ctx.attrs(), x.shape);
  CopyAlong(x, ctx.attrs().GetInt("begin"), out, 0, out.shape[axis], axis);
}

void SliceGrad(GradContext& grad) {
  if (!grad.NeedsGrad("x")) return;
  const Shape x = grad.program().var(grad.op().In1("x")).shape;
  AttrMap attrs;
  attrs.Set("axis", grad.op().attrs.GetInt("axis"));
  attrs.Set("begin", grad.op().attrs.GetInt("begin"));
  attrs.Set("full", x[AxisOf(grad.op().attrs, x)]);
  grad.Emit("slice_grad", {{"dout", {grad.OutGrad("out")}}},
            {{"dx", {grad.InGrad("x")}}}, attrs);
}

void InferSliceGrad(InferContext& ctx) {
  const Shape& dout = ctx.shape("dout");
  const int axis = Axis(ctx, dout);
  const int64_t begin = ctx.attrs().GetInt("begin");
  const int64_t full = ctx.attrs().GetInt("full");
  ctx.Require(begin >= 0 && begin + dout[axis] <= full, "dout at ", begin,
              " does not lie in a dimension of ", full);
  ctx.Set("dx", ctx.dtype("dout"), WithDim(dout, axis, full));
}

void SliceGradKernel(KernelContext& ctx) {
  const Tensor& dout = ctx.In("dout");
  const Tensor& dx = ctx.Out("dx");
  const int axis = AxisOf(ctx.attrs(), dout.shape);
  const int64_t begin = ctx.attrs().GetInt("begin");
  const AxisLayout layout = LayoutOf(dx, axis);
  const int64_t head = begin * layout.inner_bytes;
  const int64_t tail =
      (layout.dim - begin - dout.shape[axis]) * layout.inner_bytes;
  ParallelFor(layout.outer, dx.numel, [&](int64_t i) {
    std::byte* row = dx.as<std::byte>() + i * layout.dim * layout.inner_bytes;
    std::fill(row, row + head, std::byte{0});
    std::byte* end = row + layout.dim * layout.inner_bytes;
    std::fill(end - tail, end, std::byte{0});
  });
  CopyAlong(dout, 0, dx, begin, dout.shape[axis], axis);
}

void InferConcat(InferContext& ctx) {
  const Shape& first = ctx.shape("x");
  const int axis = Axis(ctx, first);
  int64_t total = 0;
  for (int i = 0; i < ctx.Count("x"); ++i) {
    const Shape& x = ctx.shape("x", i);
    ctx.Require(x.rank() == first.rank() &&
                    WithDim(x, axis, first[axis]) == first &&
                    ctx.dtype("x", i) == ctx.dtype("x"),
                "inputs must differ in dimension ", axis, " only");
    total += x[axis];
  }
  ctx.Set("out", ctx.dtype("x"), WithDim(first, axis, total));
}

void ConcatKernel(KernelContext& ctx) {
  const Tensor& out = ctx.Out("out");
  const int axis = AxisOf(ctx.attrs(), out.shape);
  int64_t at = 0;
  for (int i = 0; i < ctx.InCount("x"); ++i) {
    const Tensor& x = ctx.In("x", i);
    CopyAlong(x, 0, out, at, x.shape[axis], axis);
    at += x.shape[axis];
  }
}

void ConcatGrad(GradContext& grad) {
  const std::vector<VarId> inputs = grad.op().In("x");
  const Shape out = grad.program().var(grad.op().Out1("out")).shape;
  const int axis = AxisOf(grad.op().attrs, out);
  int64_t at = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int64_t n = grad.program().var(inputs[i]).shape[axis];
    if (grad.NeedsGrad("x", static_cast<int>(i))) {
      AttrMap attrs;
      attrs.Set("axis", axis);
      attrs.Set("begin", at);
      attrs.Set("end", at + n);
      grad.Emit("slice", {{"x", {grad.OutGrad("out")}}},
                {{"out", {grad.InGrad("x", static_cast<int>(i))}}}, attrs);
    }
    at += n;
  }
}

void InferSplit(InferContext& ctx) {
  const Shape& x = ctx.shape("x");
  const int axis = Axis(ctx, x);
  const std::vector<int64_t>& sizes = ctx.attrs().GetInts("sizes");
  int64_t total = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    ctx.Require(sizes[i] >= 0, "sizes must not be negative");
    total += sizes[i];
    ctx.Set("out", ctx.dtype("x"), WithDim(x, axis, sizes[i]),
            static_cast<int>(i));
  }
  ctx.Require(total == x[axis], "sizes ", Shape(sizes),
              " do not add up to dimension ", axis, " of ", x);
}

void SplitKernel(KernelContext& ctx) {
  const Tensor& x = ctx.In("x");
  const int axis = AxisOf(ctx.attrs(), x.shape);
  int64_t at = 0;
  for (int i = 0; i < ctx.OutCount("out"); ++i) {
    const Tensor& out = ctx.Out("out", i);
    CopyAlong(x, at, out, 0, out.shape[axis], axis);
    at += out.shape[axis];
  }
}

// A part that no grad reaches counts as zeros.
void SplitGrad(GradContext& grad) {
  if (!grad.NeedsGrad("x")) return;
  const std::vector<VarId> outputs = grad.op().Out("out");
  std::vector<VarId> parts;
  for (size_t i = 0; i < outputs.size(); ++i) {
    VarId part = grad.OutGrad("out", static_cast<int>(i));
    if (part == kNoId) {
      const Var like = grad.program().var(outputs[i]);
      part = grad.Temp(like.dtype, like.shape, "zeros");
      AttrMap attrs;
      attrs.Set("value", 0.0);
      attrs.Set("shape", like.shape.dims());
      attrs.Set("dtype", std::string(DTypeName(like.dtype)));
      grad.Emit("fill_constant", {}, {{"out", {part}}}, attrs);
    }
    parts.push_back(part);
  }
  AttrMap attrs;
  attrs.Set("axis", grad.op().attrs.GetInt("axis"));
  grad.Emit("concat", {{"x", parts}}, {{"out", {grad.InGrad("x")}}}, attrs);
}

struct ShapeOp {
  const char* type;
  std::vector<SlotDef> inputs, outputs;
  std::vector<AttrDef> attrs;
  void (*infer)(InferContext&);
  Kernel kernel;
  void (*gradient)(GradContext&);
};

void RegisterOne(OpRegistry& ops, KernelRegistry& kernels, ShapeOp op) {
  OpSchema schema;
  schema.type = op.type;
  schema.inputs = std::move(op.inputs);
  schema.outputs = std::move(op.outputs);
  schema.attrs = std::move(op.attrs);
  schema.infer = op.infer;
  if (op.gradient != nullptr) schema.grad = op.gradient;
  const bool view = schema.type == "reshape";
  if (view) {
    schema.aliases = {{"out", "x"}};
    schema.cost = [](const OpView&) { return OpCost{}; };
  }
  if (schema.type == "reshape_copy") schema.inplace = {{"out", "x"}};
  schema.cheap = view;
  ops.Register(std::move(schema));
  kernels.Register(op.type, DeviceKind::kCpu, op.kernel);
}

}  // namespace

void RegisterShapeOps(OpRegistry& ops, KernelRegistry& kernels) {
  const SlotDef many_x{"x", false, true};
  const SlotDef many_out{"out", false, true};
  const AttrDef shape{"shape", AttrType::kInts};
  const AttrDef axis{"axis", AttrType::kInt};
  const AttrDef begin{"begin", AttrType::kInt};
  RegisterOne(ops, kernels,
              {"reshape",
               {{"x"}},
               {{"out"}},
               {shape},
               InferReshape,
               ReshapeKernel,
               ReshapeGrad});
  RegisterOne(ops, kernels,
              {"reshape_copy",
               {{"x"}},
               {{"out"}},
               {shape},
               InferReshape,
               ReshapeKernel,
               ReshapeGrad});
  RegisterOne(ops, kernels,
              {"transpose",
               {{"x"}},
               {{"out"}},
               {{"perm", AttrType::kInts}},
               InferTranspose,
               TransposeKernel,
               TransposeGrad});
  RegisterOne(ops, kernels,
              {"slice",
               {{"x"}},
               {{"out"}},
               {axis, begin, {"end", AttrType::kInt}},
               InferSlice,
               SliceKernel,
               SliceGrad});
  RegisterOne(ops, kernels,
              {"slice_grad",
               {{"dout"}},
               {{"dx"}},
               {axis, begin, {"full", AttrType::kInt}},
               InferSliceGrad,
               SliceGradKernel,
               nullptr});
  RegisterOne(ops, kernels,
              {"concat",
               {many_x},
               {{"out"}},
               {axis},
               InferConcat,
               ConcatKernel,
               ConcatGrad});
  RegisterOne(ops, kernels,
              {"split",
               {{"x"}},
               {many_out},
               {axis, {"sizes", AttrType::kInts}},
               InferSplit,
               SplitKernel,
               SplitGrad});
}

}  // namespace plo
