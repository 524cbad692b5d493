// reduce_sum, reduce_mean, reduce_max; reduce_to_shape (undoes a broadcast);
// broadcast_to.
#include <cstring>

#include "framework/ir/op_registry.h"
#include "operators/broadcast.h"
#include "operators/elementwise.h"
#include "operators/infer_util.h"
#include "operators/reduction.h"

namespace plo {
namespace {

Shape ReducedShape(const Shape& shape, DimMask mask, bool keepdims) {
  std::vector<int64_t> dims;
  for (int i = 0; i < shape.rank(); ++i) {
    if (!IsReduced(mask, i)) {
      dims.push_back(shape[i]);
    } else if (keepdims) {
      dims.push_back(1);
    }
  }
  return Shape(std::move(dims));
}

Shape InferReducedShape(const InferContext& ctx) {
  const Shape& x = ctx.shape("x");
  ctx.Require(x.rank() <= kMaxRank, "at most ", kMaxRank, " dimensions");
  const std::vector<int64_t>& axes = ctx.attrs().GetInts("axes");
  for (int64_t axis : axes) {
    ctx.Require(axis >= -x.rank() && axis < x.rank(), "axis ", axis,
                " is out of range for ", x);
  }
  return ReducedShape(x, MaskOf(axes, x.rank()),
                      ctx.attrs().GetBool("keepdims"));
}

void InferReduce(InferContext& ctx) {
  RequireFloat(ctx, "x");
  ctx.Set("out", ctx.dtype("x"), InferReducedShape(ctx));
}

DimMask AxesOf(const KernelContext& ctx, const Tensor& x) {
  return MaskOf(ctx.attrs().GetInts("axes"), x.shape.rank());
}

void SumKernel(KernelContext& ctx) {
  const Tensor& x = ctx.In("x");
  SumOver(x, AxesOf(ctx, x), 1.0, ctx.Out("out"));
}

void MeanKernel(KernelContext& ctx) {
  const Tensor& x = ctx.In("x");
  const Tensor& out = ctx.Out("out");
  const double count = out.numel == 0 ? 1.0
                                      : static_cast<double>(x.numel) /
                                            static_cast<double>(out.numel);
  SumOver(x, AxesOf(ctx, x), 1.0 / count, out);
}

void MaxKernel(KernelContext& ctx) {
  const Tensor& x = ctx.In("x");
  MaxOver(x, AxesOf(ctx, x), ctx.Out("out"));
}

// Broadcasts dout back over the reduced dimensions, times `factor`.
void EmitSpread(GradContext& grad, double factor) {
  if (!grad.NeedsGrad("x")) return;
  const Shape x = grad.program().var(grad.op().In1("x")).shape;
  VarId dout = grad.OutGrad("out");
  const DType dtype = grad.program().var(dout).dtype;
  const Shape dout_shape = grad.program().var(dout).shape;
  if (factor != 1.0) {
    const VarId scaled = grad.Temp(dtype, dout_shape, "mean");
    AttrMap attrs;
    attrs.Set("factor", factor);
    grad.Emit("scale", {{"x", {dout}}}, {{"out", {scaled}}}, attrs);
    dout = scaled;
  }
  const DimMask mask = MaskOf(grad.op().attrs.GetInts("axes"), x.rank());
  const Shape kept = ReducedShape(x, mask, true);
  if (kept != dout_shape) {
    const VarId view = grad.Temp(dtype, kept, "keepdims");
    AttrMap attrs;
    attrs.Set("shape", kept.dims());
    grad.Emit("reshape", {{"x", {dout}}}, {{"out", {view}}}, attrs);
    dout = view;
  }
  AttrMap attrs;
  attrs.Set("shape", x.dims());
  grad.Emit("broadcast_to", {{"x", {dout}}}, {{"out", {grad.InGrad("x")}}},
            attrs);
}

void SumGrad(GradContext& grad) { EmitSpread(grad, 1.0); }

void MeanGrad(GradContext& grad) {
  const Program& program = grad.program();
  const int64_t numel = program.var(grad.op().In1("x")).shape.numel();
  const int64_t outputs = program.var(grad.op().Out1("out")).shape.numel();
  EmitSpread(grad, numel == 0 ? 1.0
                              : static_cast<double>(outputs) /
                                    static_cast<double>(numel));
}

// --- reduce_max_grad: equal shares for ties ---

void InferMaxGrad(InferContext& ctx) {
  RequireFloat(ctx, "x");
  RequireDTypeLike(ctx, "out", "x");
  RequireShape(ctx, "out", InferReducedShape(ctx));
  RequireLike(ctx, "dout", "out");
  SetLike(ctx, "dx", "x");
}

float ValueAt(const Tensor& t, int64_t index) {
  float value;
  return *FloatsAt(t.dtype, t.data, index, 1, &value);
}

void MaxGradKernel(KernelContext& ctx) {
  const Tensor& x = ctx.In("x");
  const Tensor& out = ctx.In("out");
  const Tensor& dout = ctx.In("dout");
  const Tensor& dx = ctx.Out("dx");
  if (x.numel == 0) return;
  StridedLoop<1> kept, reduced;
  const DimMask mask = AxesOf(ctx, x);
  const auto strides = BroadcastStrides(x.shape, x.shape.rank());
  for (int i = 0; i < x.shape.rank(); ++i) {
    (IsReduced(mask, i) ? reduced : kept).Add(x.shape[i], {strides[i]});
  }
  kept.Finish();
  reduced.Finish();
  const int64_t repeats = reduced.Count(reduced.rank);
  ParallelFor(out.numel, x.numel, [&](int64_t o) {
    const int64_t base = kept.Offsets(o, kept.rank)[0];
    const float best = ValueAt(out, o);
    int64_t ties = 0;
    for (int64_t r = 0; r < repeats; ++r) {
      ties += ValueAt(x, base + reduced.Offsets(r, reduced.rank)[0]) == best;
    }
    const float share = ValueAt(dout, o) / static_cast<float>(ties);
    for (int64_t r = 0; r < repeats; ++r) {
      const int64_t at = base + reduced.Offsets(r, reduced.rank)[0];
      const float value = ValueAt(x, at) == best ? share : 0.0f;
      StoreFloats(dx.dtype, &value, dx.data, at, 1);
    }
  });
}

void MaxGrad(GradContext& grad) {
  if (!grad.NeedsGrad("x")) return;
  const Op& op = grad.op();
  grad.Emit("reduce_max_grad",
            {{"x", {op.In1("x")}},
             {"out", {op.Out1("out")}},
             {"dout", {grad.OutGrad("out")}}},
            {{"dx", {grad.InGrad("x")}}}, op.attrs);
}

// --- reduce_to_shape ---

void InferReduceToShape(InferContext& ctx) {
  RequireFloat(ctx, "x");
  const Shape target(ctx.attrs().GetInts("shape"));
  ctx.Require(ctx.shape("x").rank() <= kMaxRank, "at most ", kMaxRank,
              " dimensions");
  ctx.Require(BroadcastsTo(target, ctx.shape("x")), "shape ", target,
              " does not broadcast to x");
  ctx.Set("out", ctx.dtype("x"), target);
}

void ReduceToShapeKernel(KernelContext& ctx) {
  const Tensor& x = ctx.In("x");
  const Tensor& out = ctx.Out("out");
  if (x.shape == out.shape) {
    if (x.data != out.data && x.numel > 0) {
      std::memcpy(out.data, x.data,
                  static_cast<size_t>(x.numel * SizeOf(x.dtype)));
    }
    return;
  }
  SumOver(x, RepeatedDims(x.shape, out.shape), 1.0, out);
}

void ReduceToShapeGrad(GradContext& grad) {
  if (!grad.NeedsGrad("x")) return;
  AttrMap attrs;
  attrs.Set("shape", grad.program().var(grad.op().In1("x")).shape.dims());
  grad.Emit("broadcast_to", {{"x", {grad.OutGrad("out")}}},
            {{"out", {grad.InGrad("x")}}}, attrs);
}

// --- broadcast_to ---

void InferBroadcast(InferContext& ctx) {
  RequireFloat(ctx, "x");
  const Shape target(ctx.attrs().GetInts("shape"));
  ctx.Require(target.rank() <= kMaxRank, "at most ", kMaxRank, " dimensions");
  ctx.Require(BroadcastsTo(ctx.shape("x"), target),
              "x does not broadcast to shape ", target);
  ctx.Set("out", ctx.dtype("x"), target);
}

template <typename T>
void Spread(const StridedLoop<2>& loop, const T* x, T* out) {
  const int outer = loop.rank - 1;
  const int64_t inner = loop.inner();
  const int64_t stride = loop.stride[outer][1];
  const int64_t rows = loop.Count(outer);
  ParallelFor(rows, rows * inner, [&](int64_t row) {
    const auto offsets = loop.Offsets(row, outer);
    const T* from = x + offsets[1];
    T* to = out + offsets[0];
    if (stride == 0) {
      std::fill(to, to + inner, *from);
    } else {
      std::copy(from, from + inner, to);
    }
  });
}

void BroadcastKernel(KernelContext& ctx) {
  const Tensor& x = ctx.In("x");
  const Tensor& out = ctx.Out("out");
  if (out.numel == 0) return;
  const int rank = out.shape.rank();
  const auto x_strides = BroadcastStrides(x.shape, rank);
  const auto out_strides = BroadcastStrides(out.shape, rank);
  StridedLoop<2> loop;
  for (int i = 0; i < rank; ++i) {
    loop.Add(out.shape[i], {out_strides[i], x_strides[i]});
  }
  loop.Finish();
  if (SizeOf(x.dtype) == 2) {
    Spread(loop, x.as<const uint16_t>(), out.as<uint16_t>());
  } else {
    Spread(loop, x.as<const uint32_t>(), out.as<uint32_t>());
  }
}

void BroadcastGrad(GradContext& grad) {
  if (!grad.NeedsGrad("x")) return;
  AttrMap attrs;
  attrs.Set("shape", grad.program().var(grad.op().In1("x")).shape.dims());
  grad.Emit("reduce_to_shape", {{"x", {grad.OutGrad("out")}}},
            {{"out", {grad.InGrad("x")}}}, attrs);
}

int64_t CudaReduceWorkspace(const OpView& op) {
  const Var& x = op.In("x");
  return ReductionWorkspace(x.shape,
                            MaskOf(op.attrs().GetInts("axes"), x.shape.rank()),
                            x.dtype, op.Out("out").shape.numel());
}

int64_t CudaReduceToShapeWorkspace(const OpView& op) {
  const Var& x = op.In("x");
  const Var& out = op.Out("out");
  if (x.shape == out.shape) return 0;
  return ReductionWorkspace(x.shape, RepeatedDims(x.shape, out.shape), x.dtype,
                            out.shape.numel());
}

void RegisterReduceOp(OpRegistry& ops, KernelRegistry& kernels,
                      const char* type, Kernel kernel,
                      void (*gradient)(GradContext&)) {
  OpSchema schema;
  schema.type = type;
  schema.inputs = {{"x"}};
  schema.outputs = {{"out"}};
  schema.attrs = {{"axes", AttrType::kInts, false, std::vector<int64_t>{}},
                  BoolAttr("keepdims", false)};
  schema.infer = InferReduce;
  schema.grad = gradient;
  schema.cuda_workspace_bytes = CudaReduceWorkspace;
  ops.Register(std::move(schema));
  kernels.Register(type, DeviceKind::kCpu, kernel);
}

void RegisterShapeOp(OpRegistry& ops, KernelRegistry& kernels, const char* type,
                     void (*infer)(InferContext&), Kernel kernel,
                     void (*gradient)(GradContext&),
                     int64_t (*cuda_workspace)(const OpView&)) {
  OpSchema schema;
  schema.type = type;
  schema.inputs = {{"x"}};
  schema.outputs = {{"out"}};
  schema.attrs = {{"shape", AttrType::kInts}};
  schema.infer = infer;
  schema.grad = gradient;
  if (cuda_workspace) schema.cuda_workspace_bytes = cuda_workspace;
  ops.Register(std::move(schema));
  kernels.Register(type, DeviceKind::kCpu, kernel);
}

}  // namespace

void RegisterReduce(OpRegistry& ops, KernelRegistry& kernels) {
  RegisterReduceOp(ops, kernels, "reduce_sum", SumKernel, SumGrad);
  RegisterReduceOp(ops, kernels, "reduce_mean", MeanKernel, MeanGrad);
  RegisterReduceOp(ops, kernels, "reduce_max", MaxKernel, MaxGrad);
  RegisterShapeOp(ops, kernels, "reduce_to_shape", InferReduceToShape,
                  ReduceToShapeKernel, ReduceToShapeGrad,
                  CudaReduceToShapeWorkspace);
  RegisterShapeOp(ops, kernels, "broadcast_to", InferBroadcast, BroadcastKernel,
                  BroadcastGrad, nullptr);
  OpSchema backward;
  backward.type = "reduce_max_grad";
  backward.inputs = {{"x"}, {"out"}, {"dout"}};
  backward.outputs = {{"dx"}};
  backward.attrs = {{"axes", AttrType::kInts, false, std::vector<int64_t>{}},
                    BoolAttr("keepdims", false)};
  backward.infer = InferMaxGrad;
  ops.Register(std::move(backward));
  kernels.Register("reduce_max_grad", DeviceKind::kCpu, MaxGradKernel);
}

}  // namespace plo
