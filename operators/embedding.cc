// embedding: rows of a table by id, and the gradient of the table.
//
// The gradient sorts the positions by id (counting sort, stable), then sums
// the rows of each id in position order in fp32: deterministic, independent
// of the number of threads, and every row of the table is written.
#include <cstring>

#include "framework/ir/op_registry.h"
#include "operators/embedding_plan.h"
#include "operators/infer_util.h"
#include "operators/kernel_util.h"
#include "operators/vector_ops.h"

namespace plo {
namespace {

void InferForward(InferContext& ctx) {
  RequireDType(ctx, "ids", DType::kInt32);
  RequireFloat(ctx, "weight");
  ctx.Require(ctx.shape("weight").rank() == 2,
              "weight must be [rows, hidden], is ", ctx.shape("weight"));
  std::vector<int64_t> dims = ctx.shape("ids").dims();
  dims.push_back(ctx.shape("weight")[1]);
  ctx.Set("out", ctx.dtype("weight"), Shape(std::move(dims)));
}

void InferBackward(InferContext& ctx) {
  RequireDType(ctx, "ids", DType::kInt32);
  RequireFloat(ctx, "dout");
  const Shape& ids = ctx.shape("ids");
  const Shape& dout = ctx.shape("dout");
  ctx.Require(dout.rank() == ids.rank() + 1,
              "dout must be ids with a last "
              "dimension added, is ",
              dout);
  for (int i = 0; i < ids.rank(); ++i) {
    ctx.Require(ids[i] == dout[i],
                "dout must be ids with a last dimension "
                "added, is ",
                dout);
  }
  const int64_t rows = ctx.attrs().GetInt("num_rows");
  ctx.Require(rows >= 0, "num_rows must not be negative, is ", rows);
  const Shape table{rows, dout[dout.rank() - 1]};
  RequireAccumulator(ctx, ctx.dtype("dout"), table);
  ctx.Set("dweight", ctx.dtype("dout"), table);
}

void CheckIds(const Op& op, const int32_t* ids, int64_t count, int64_t rows) {
  for (int64_t i = 0; i < count; ++i) {
    PLO_ENFORCE(ids[i] >= 0 && ids[i] < rows, kInvalidArgument, Describe(op),
                ": token id ", ids[i], " at position ", i,
                " is out of range [0, ", rows, ")");
  }
}

void EmbeddingKernel(KernelContext& ctx) {
  const Tensor& ids = ctx.In("ids");
  const Tensor& weight = ctx.In("weight");
  const Tensor& out = ctx.Out("out");
  const int32_t* id = ids.as<int32_t>();
  CheckIds(ctx.op(), id, ids.numel, weight.shape[0]);
  const int64_t row_bytes = weight.shape[1] * SizeOf(weight.dtype);
  if (row_bytes == 0) return;
  const std::byte* table = weight.as<std::byte>();
  std::byte* target = out.as<std::byte>();
  ParallelFor(ids.numel, out.numel, [&](int64_t i) {
    std::memcpy(target + i * row_bytes, table + id[i] * row_bytes,
                static_cast<size_t>(row_bytes));
  });
}

// starts[rows + 1], then positions[count], ids ascending.
int64_t WorkspaceBytes(const OpView& view) {
  const int64_t rows = view.attrs().GetInt("num_rows");
  return (rows + 1 + view.In("ids").shape.numel()) *
         static_cast<int64_t>(sizeof(int32_t));
}

int64_t CudaWorkspaceBytes(const OpView& view) {
  return 4 * MakeEmbeddingPlan(view.In("ids").shape.numel(),
                               view.attrs().GetInt("num_rows"),
                               view.Out("dweight").shape[1])
                 .words;
}

void SortPositions(const int32_t* ids, int64_t count, int64_t rows,
                   int32_t* starts, int32_t* positions) {
  std::fill(starts, starts + rows + 1, 0);
  for (int64_t i = 0; i < count; ++i) ++starts[ids[i] + 1];
  for (int64_t row = 0; row < rows; ++row) starts[row + 1] += starts[row];
  // Filling moves each start to its row's end, which is the next row's start.
  for (int64_t i = 0; i < count; ++i) {
    positions[starts[ids[i]]++] = static_cast<int32_t>(i);
  }
}

void EmbeddingGradKernel(KernelContext& ctx) {
  const Tensor& ids = ctx.In("ids");
  const Tensor& dout = ctx.In("dout");
  const Tensor& dweight = ctx.Out("dweight");
  const Tensor* acc = ctx.TryIn("acc");
  const int64_t rows = dweight.shape[0];
  const int64_t hidden = dweight.shape[1];
  const int64_t count = ids.numel;
  const int32_t* id = ids.as<int32_t>();
  CheckIds(ctx.op(), id, count, rows);
  int32_t* starts = static_cast<int32_t*>(ctx.workspace());
  int32_t* positions = starts + rows + 1;
  SortPositions(id, count, rows, starts, positions);
  const int32_t* ends = starts;

  ParallelFor(rows, dweight.numel + dout.numel, [&](int64_t row) {
    const int64_t first = row == 0 ? 0 : ends[row - 1];
    const int64_t last = ends[row];
    if (acc != nullptr && first == last && acc->data == dweight.data) return;
    float sums[kRowChunk], buffer[kRowChunk];
    ForRowChunks(hidden, [&](int64_t begin, int64_t n) {
      std::fill(sums, sums + n, 0.0f);
      for (int64_t i = first; i < last; ++i) {
        Vec().add(FloatsAt(dout.dtype, dout.data, positions[i] * hidden + begin,
                           n, buffer),
                  sums, n);
      }
      const int64_t at = row * hidden + begin;
      if (acc != nullptr) {
        Vec().add(FloatsAt(acc->dtype, acc->data, at, n, buffer), sums, n);
      }
      StoreFloats(dweight.dtype, sums, dweight.data, at, n);
    });
  });
}

void EmbeddingGrad(GradContext& grad) {
  if (!grad.NeedsGrad("weight")) return;
  AttrMap attrs;
  const VarId weight = grad.op().In1("weight");
  attrs.Set("num_rows", grad.program().var(weight).shape[0]);
  grad.Emit("embedding_grad",
            {{"ids", {grad.op().In1("ids")}}, {"dout", {grad.OutGrad("out")}}},
            {{"dweight", {grad.InGrad("weight")}}}, attrs);
}

OpCost ForwardCost(const OpView& view) {
  OpCost cost;
  cost.bytes = 2.0 * static_cast<double>(view.Out("out").bytes()) +
               static_cast<double>(view.In("ids").bytes());
  return cost;
}

}  // namespace

void RegisterEmbedding(OpRegistry& ops, KernelRegistry& kernels) {
  OpSchema forward;
  forward.type = "embedding";
  forward.inputs = {{"ids"}, {"weight"}};
  forward.outputs = {{"out"}};
  forward.infer = InferForward;
  forward.grad = EmbeddingGrad;
  forward.cost = ForwardCost;
  ops.Register(std::move(forward));
  kernels.Register("embedding", DeviceKind::kCpu, EmbeddingKernel);

  OpSchema backward;
  backward.type = "embedding_grad";
  backward.inputs = {{"ids"}, {"dout"}, Optional("acc")};
  backward.outputs = {{"dweight"}};
  backward.attrs = {{"num_rows", AttrType::kInt},
                    BoolAttr("accumulate", false)};
  backward.infer = InferBackward;
  backward.workspace_bytes = WorkspaceBytes;
  backward.cuda_workspace_bytes = CudaWorkspaceBytes;
  backward.cost = CostPerElement(1);
  backward.aliases = {{"dweight", "acc"}};
  ops.Register(std::move(backward));
  kernels.Register("embedding_grad", DeviceKind::kCpu, EmbeddingGradKernel);
}

}  // namespace plo
