// reduce_rows(x, acc?) -> out [N] {accumulate}: sums x [.., N] over all but the
// last dimension, or adds that sum to acc, which is the same var as out. The
// gradient of a bias.
//
// Columns are shared out to threads; each column sums blocks of rows in order,
// so the bits depend on the shape only. fp32, rounded once.
#include <algorithm>

#include "operators/gpu_layout.h"
#include "operators/kernel_util.h"
#include "operators/schema_util.h"
#include "operators/vector_ops.h"

namespace plo {
namespace {

constexpr int64_t kColumns = 128;  // of one task
constexpr int64_t kRows = 64;      // summed before they join the total

void Infer(InferContext& c) {
  RequireFloat(c, "x");
  c.Require(c.shape("x").rank() >= 1, "x is a scalar");
  const Shape out{RowLength(c.shape("x"))};
  RequireAccumulator(c, c.dtype("x"), out);
  c.Set("out", c.dtype("x"), out);
}

void Grad(GradContext& c) {
  const VarId dout = c.OutGrad("out");
  if (dout == kNoId || !c.NeedsGrad("x")) return;
  PLO_ENFORCE(!c.op().attrs.GetBool("accumulate"), kUnimplemented,
              Describe(c.op()), ": no gradient with accumulate=true");
  AttrMap attrs;
  attrs.Set("shape", c.program().var(c.op().In1("x")).shape.dims());
  const VarId grad = c.InGrad("x");
  c.Emit("broadcast_to", {{"x", {dout}}}, {{"out", {grad}}}, attrs);
}

// Partial sums of the slices; see ColumnPlan.
int64_t CudaWorkspace(const OpView& op) {
  const Var& x = op.In("x");
  const int64_t n = RowLength(x.shape);
  return MakeColumnPlan(RowCount(x.shape), n, x.dtype).slices * n *
         static_cast<int64_t>(sizeof(float));
}

OpCost Cost(const OpView& op) {
  return {static_cast<double>(op.In("x").shape.numel()), OperandBytes(op)};
}

void ReduceRowsKernel(KernelContext& c) {
  const Tensor& x = c.In("x");
  const Tensor& out = c.Out("out");
  const bool accumulate = c.attrs().GetBool("accumulate");
  const int64_t n = RowLength(x.shape);
  const int64_t rows = RowCount(x.shape);
  ParallelFor(CeilDiv(n, kColumns), x.numel, [&](int64_t task) {
    const int64_t begin = task * kColumns;
    const int64_t count = std::min(kColumns, n - begin);
    float total[kColumns] = {}, part[kColumns], row[kColumns];
    for (int64_t block = 0; block < rows; block += kRows) {
      std::fill(part, part + count, 0.0f);
      for (int64_t r = block; r < std::min(rows, block + kRows); ++r) {
        Vec().add(FloatsAt(x.dtype, x.data, r * n + begin, count, row), part,
                  count);
      }
      Vec().add(part, total, count);
    }
    if (accumulate) {
      Vec().add(FloatsAt(x.dtype, out.data, begin, count, row), total, count);
    }
    StoreFloats(x.dtype, total, out.data, begin, count);
  });
}

}  // namespace

void RegisterReduceRows(OpRegistry& ops, KernelRegistry& kernels) {
  OpSchema s;
  s.type = "reduce_rows";
  s.inputs = {{"x"}, Optional("acc")};
  s.outputs = {{"out"}};
  s.attrs = {BoolAttr("accumulate", false)};
  s.infer = Infer;
  s.grad = Grad;
  s.cuda_workspace_bytes = CudaWorkspace;
  s.cost = Cost;
  s.aliases = {{"out", "acc"}};
  ops.Register(std::move(s));
  kernels.Register("reduce_rows", DeviceKind::kCpu, ReduceRowsKernel);
}

}  // namespace plo
