// matmul(x, y, bias?, acc?) -> out {trans_x, trans_y, collapse, accumulate}
//
// With y of rank 2 the leading dimensions of x collapse to rows and come back
// in the result, unless trans_x. With collapse both operands become matrices
// first and the result is one: the form of weight gradients. Otherwise the
// leading dimensions are a batch and broadcast. accumulate adds to acc, which
// is the same var as out. Sums are in fp32 and rounded once.
#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "operators/cublas_workspace.h"
#include "operators/kernel_util.h"
#include "operators/matmul_geometry.h"
#include "operators/onednn_matmul.h"
#include "operators/onednn_utils.h"
#include "operators/schema_util.h"

namespace plo {
namespace {

void Infer(InferContext& c) {
  RequireFloat(c, "x");
  RequireDTypeLike(c, "y", "x");
  const Shape& x = c.shape("x");
  const Shape& y = c.shape("y");
  c.Require(x.rank() >= 2 && y.rank() >= 2, "operands have ranks ", x.rank(),
            " and ", y.rank(), ", at least 2 is needed");
  MatmulGeometry g;
  try {
    g = MatmulGeometryOf(x, y, c.attrs());
  } catch (const Error& error) {
    c.Fail("the batches do not match: ", error.message());
  }
  c.Require(g.k == g.k_of_y, "x ", x, " and y ", y,
            " do not match: inner dimensions ", g.k, " and ", g.k_of_y);
  if (c.Has("bias")) {
    RequireDTypeLike(c, "bias", "x");
    RequireShape(c, "bias", Shape{g.n});
  }
  RequireAccumulator(c, c.dtype("x"), g.out);
  c.Set("out", c.dtype("x"), g.out);
}

// The grad of one operand, summed over the dimensions it was broadcast along.
void EmitProduct(GradContext& c, std::string_view slot, VarId a, VarId b,
                 bool trans_a, bool trans_b, bool collapse) {
  AttrMap attrs;
  attrs.Set("trans_x", trans_a);
  attrs.Set("trans_y", trans_b);
  attrs.Set("collapse", collapse);
  const Program& p = c.program();
  const Var& operand = p.var(c.op().In1(slot));
  const Shape product =
      MatmulGeometryOf(p.var(a).shape, p.var(b).shape, attrs).out;
  if (product == operand.shape) {
    const VarId grad = c.InGrad(slot);
    c.Emit("matmul", {{"x", {a}}, {"y", {b}}}, {{"out", {grad}}}, attrs);
    return;
  }
  const Shape shape = operand.shape;
  const VarId wide =
      c.Temp(operand.dtype, product, operand.name + "@grad_broadcast");
  c.Emit("matmul", {{"x", {a}}, {"y", {b}}}, {{"out", {wide}}}, attrs);
  AttrMap reduce;
  reduce.Set("shape", shape.dims());
  const VarId grad = c.InGrad(slot);
  c.Emit("reduce_to_shape", {{"x", {wide}}}, {{"out", {grad}}}, reduce);
}

void Grad(GradContext& c) {
  const Op& op = c.op();
  const VarId dout = c.OutGrad("out");
  if (dout == kNoId) return;
  const VarId x = op.In1("x"), y = op.In1("y");
  const bool trans_x = op.attrs.GetBool("trans_x");
  const bool trans_y = op.attrs.GetBool("trans_y");
  const Shape& x_shape = c.program().var(x).shape;
  const Shape& y_shape = c.program().var(y).shape;
  const MatmulGeometry g = MatmulGeometryOf(x_shape, y_shape, op.attrs);
  // The forms below would need a view of an operand in another shape.
  const bool reshaped = g.batched
                            ? (x_shape.rank() == 2 && trans_y)
                            : ((x_shape.rank() > 2 &&
                                (trans_x || op.attrs.GetBool("collapse"))) ||
                               y_shape.rank() > 2);
  PLO_ENFORCE(!op.attrs.GetBool("accumulate") && !reshaped, kUnimplemented,
              Describe(op),
              ": no gradient for this form of matmul; reshape the operands to "
              "matrices first (x ",
              x_shape, ", y ", y_shape, ")");
  const bool collapse = !g.batched;
  // The weight first: its bucket can be reduced while dx is computed.
  if (c.NeedsGrad("y")) {
    if (trans_y) {
      EmitProduct(c, "y", dout, x, true, trans_x, collapse);
    } else {
      EmitProduct(c, "y", x, dout, !trans_x, false, collapse);
    }
  }
  if (c.NeedsGrad("x")) {
    if (trans_x) {
      EmitProduct(c, "x", y, dout, trans_y, true, false);
    } else {
      EmitProduct(c, "x", dout, y, false, !trans_y, false);
    }
  }
  if (op.HasIn("bias") && c.NeedsGrad("bias")) {
    const VarId grad = c.InGrad("bias");
    c.Emit("reduce_rows", {{"x", {dout}}}, {{"out", {grad}}}, {});
  }
}

MatmulGeometry MatmulGeometryOf(const OpView& op) {
  return MatmulGeometryOf(op.In("x").shape, op.In("y").shape, op.attrs());
}

// A batch of at least this many fp32 products has one thread for each.
constexpr int64_t kParallelBatch = 4;

GemmCall CallOf(const MatmulGeometry& g, DType dtype, const AttrMap& attrs) {
  GemmCall call;
  call.dtype = dtype;
  call.trans_a = attrs.GetBool("trans_x");
  call.trans_b = attrs.GetBool("trans_y");
  call.m = g.m;
  call.n = g.n;
  call.k = g.k;
  call.stride_a = g.x_cols;
  call.stride_b = g.y_cols;
  call.stride_c = g.n;
  call.accumulate = attrs.GetBool("accumulate");
  return call;
}

bool RunsInParallel(const MatmulGeometry& g, DType dtype) {
  return g.batched && dtype == DType::kFp32 && g.lead.numel() >= kParallelBatch;
}

int64_t WorkspaceBytes(const OpView& op) {
  const MatmulGeometry g = MatmulGeometryOf(op);
  const DType dtype = op.In("x").dtype;
  if (g.out.numel() == 0 || RunsInParallel(g, dtype)) return 0;
  return GemmWorkspaceBytes(CallOf(g, dtype, op.attrs()));
}

int64_t CudaWorkspaceBytes(const OpView& op) {
  const MatmulGeometry g = MatmulGeometryOf(op);
  return CublasWorkspaceBytes(g.out.numel(), g.k);
}

OpCost Cost(const OpView& op) {
  const MatmulGeometry g = MatmulGeometryOf(op);
  return {2.0 * static_cast<double>(g.out.numel()) * static_cast<double>(g.k),
          OperandBytes(op)};
}

constexpr int64_t kScratchPerThread = int64_t{4} << 20;

struct Launch {
  MatmulGeometry g;
  std::vector<int64_t> x_offsets, y_offsets;
  GemmCall call;                          // but for the pointers of a, b and c
  std::optional<OnednnMatmul> primitive;  // else RunGemm()
};

// The planned scratch stays that of RunGemm(), so that a plan does not depend
// on the CPU and the threads of the machine that makes it.
std::optional<OnednnMatmul> FindPrimitive(const Launch& launch,
                                          const KernelContext& c) {
  const GemmCall& call = launch.call;
  if (launch.g.out.numel() == 0 || call.k == 0 ||
      RunsInParallel(launch.g, call.dtype) || !UsesOnednnMatmul(call.dtype)) {
    return std::nullopt;
  }
  auto primitive = OnednnMatmul::Find(call);
  // Some forms would keep the whole result in fp32.
  const int64_t limit = kScratchPerThread * omp_get_max_threads();
  if (primitive && primitive->scratch_bytes() > limit) return std::nullopt;
  const int64_t bytes = c.workspace_bytes();
  if (primitive && bytes > 0) {
    // It may leave some untouched: the measured peak is to equal the planned.
    static_cast<std::byte*>(c.workspace())[bytes - 1] = {};
  }
  return primitive;
}

Launch MakeLaunch(KernelContext& c) {
  Launch launch;
  MatmulGeometry& g = launch.g;
  g = MatmulGeometryOf(c.In("x").shape, c.In("y").shape, c.attrs());
  if (g.batched) {
    launch.x_offsets = BatchOffsets(g.x_lead, g.lead, g.m * g.k);
    launch.y_offsets = BatchOffsets(g.y_lead, g.lead, g.k * g.n);
  } else {
    launch.x_offsets = launch.y_offsets = {0};
  }
  const Tensor* bias = c.TryIn("bias");
  launch.call = CallOf(g, c.In("x").dtype, c.attrs());
  launch.call.bias = bias != nullptr ? bias->data : nullptr;
  launch.primitive = FindPrimitive(launch, c);
  return launch;
}

void MatmulKernel(KernelContext& c) {
  Launch& launch = c.Cached<Launch>([&] { return MakeLaunch(c); });
  const MatmulGeometry& g = launch.g;
  const Tensor& x = c.In("x");
  const Tensor& y = c.In("y");
  const Tensor& out = c.Out("out");
  void* workspace = c.workspace_bytes() > 0 ? c.workspace() : nullptr;
  const int64_t batch = static_cast<int64_t>(launch.x_offsets.size());
  const auto run = [&](int64_t i) {
    const size_t index = static_cast<size_t>(i);
    GemmCall call = launch.call;
    call.a = ElementAt(x.dtype, x.data, launch.x_offsets[index]);
    call.b = ElementAt(x.dtype, y.data, launch.y_offsets[index]);
    call.c = ElementAt(x.dtype, out.data, i * g.m * g.n);
    if (launch.primitive) {
      launch.primitive->Run(call, workspace, c.workspace_bytes());
    } else {
      RunGemm(call, workspace);
    }
  };
  // Else each product uses all threads and the one workspace.
  if (RunsInParallel(g, x.dtype)) {
    ParallelFor(batch, g.out.numel() * g.k, run);
  } else {
    for (int64_t i = 0; i < batch; ++i) run(i);
  }
}

}  // namespace

void RegisterMatmul(OpRegistry& ops, KernelRegistry& kernels) {
  OpSchema s;
  s.type = "matmul";
  s.inputs = {{"x"}, {"y"}, Optional("bias"), Optional("acc")};
  s.outputs = {{"out"}};
  s.attrs = {BoolAttr("trans_x", false), BoolAttr("trans_y", false),
             BoolAttr("collapse", false), BoolAttr("accumulate", false)};
  s.infer = Infer;
  s.grad = Grad;
  s.workspace_bytes = WorkspaceBytes;
  s.cuda_workspace_bytes = CudaWorkspaceBytes;
  s.cost = Cost;
  s.aliases = {{"out", "acc"}};
  ops.Register(std::move(s));
  kernels.Register("matmul", DeviceKind::kCpu, MatmulKernel);
}

}  // namespace plo
