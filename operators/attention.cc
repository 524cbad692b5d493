// attention(q, k, v) -> out, lse {causal, scale}: q and out [B, S, H, D],
// k and v [B, S, G, D] where G divides H, lse fp32 [B, H, S], the log of the
// sum of exponentials of each row of scores. scale 0 means 1 / sqrt(D).
// attention_qkv(qkv) -> out, lse {heads, kv_heads, causal, scale}: the same
// with q, k and v side by side in the last dimension, qkv [B, S, (H + 2 G) *
// D], out [B, S, H * D]. The gradients recompute the scores from lse and read
// the rounded out.
#include <string>
#include <utility>
#include <vector>

#include "operators/attention_core.h"
#include "operators/attention_cuda.h"
#include "operators/attention_operands.h"
#include "operators/schema_util.h"

namespace plo {
namespace {

AttentionShape ShapeOf(const OpView& op) {
  if (op.Has("qkv")) {
    return PackedAttentionShapeOf(op.In("qkv").dtype, op.In("qkv").shape,
                                  op.attrs());
  }
  return AttentionShapeOf(op.In("q").dtype, op.In("q").shape, op.In("k").shape,
                          op.attrs());
}

// --- Shape rules ---

void CheckHeads(const InferContext& c, int64_t heads, int64_t kv_heads) {
  c.Require(heads > 0 && kv_heads > 0 && heads % kv_heads == 0, kv_heads,
            " kv heads do not divide ", heads, " heads");
}

void CheckOperands(const InferContext& c) {
  RequireFloat(c, "q");
  const Shape& q = c.shape("q");
  c.Require(q.rank() == 4 && c.shape("k").rank() == 4,
            "q and k must be [batch, seq, heads, dim]");
  RequireDTypeLike(c, "k", "q");
  const Shape& k = c.shape("k");
  RequireShape(c, "k", Shape{q[0], q[1], k[2], q[3]});
  RequireLike(c, "v", "k");
  c.Require(q[3] > 0, "the head size is 0");
  CheckHeads(c, q[2], k[2]);
}

void Infer(InferContext& c) {
  CheckOperands(c);
  const Shape& q = c.shape("q");
  c.Set("out", c.dtype("q"), q);
  c.Set("lse", DType::kFp32, Shape{q[0], q[2], q[1]});
}

void InferGrad(InferContext& c) {
  CheckOperands(c);
  const Shape& q = c.shape("q");
  RequireLike(c, "out", "q");
  RequireLike(c, "dout", "q");
  RequireDType(c, "lse", DType::kFp32);
  RequireShape(c, "lse", Shape{q[0], q[2], q[1]});
  c.Set("dq", c.dtype("q"), q);
  c.Set("dk", c.dtype("k"), c.shape("k"));
  c.Set("dv", c.dtype("v"), c.shape("v"));
}

AttentionShape CheckPacked(const InferContext& c) {
  RequireFloat(c, "qkv");
  const Shape& qkv = c.shape("qkv");
  c.Require(qkv.rank() == 3,
            "qkv must be [batch, seq, (heads + 2 * kv_heads) "
            "* dim]");
  const int64_t heads = c.attrs().GetInt("heads");
  const int64_t kv_heads = c.attrs().GetInt("kv_heads");
  CheckHeads(c, heads, kv_heads);
  c.Require(qkv[2] > 0 && qkv[2] % (heads + 2 * kv_heads) == 0,
            "heads + 2 * kv_heads = ", heads + 2 * kv_heads,
            " does not divide the last dimension ", qkv[2]);
  return PackedAttentionShapeOf(c.dtype("qkv"), qkv, c.attrs());
}

void InferPacked(InferContext& c) {
  const AttentionShape s = CheckPacked(c);
  c.Set("out", s.dtype, Shape{s.batch, s.seq, s.heads * s.dim});
  c.Set("lse", DType::kFp32, Shape{s.batch, s.heads, s.seq});
}

void InferPackedGrad(InferContext& c) {
  const AttentionShape s = CheckPacked(c);
  for (const char* slot : {"out", "dout"}) {
    RequireDTypeLike(c, slot, "qkv");
    RequireShape(c, slot, Shape{s.batch, s.seq, s.heads * s.dim});
  }
  RequireDType(c, "lse", DType::kFp32);
  RequireShape(c, "lse", Shape{s.batch, s.heads, s.seq});
  c.Set("dqkv", s.dtype, c.shape("qkv"));
}

// --- Gradients ---

// The grads of all inputs `slots`; what is not wanted goes to a temp.
void EmitGrad(GradContext& c, const std::vector<std::string>& slots) {
  const Op& op = c.op();
  const VarId dout = c.OutGrad("out");
  if (dout == kNoId) return;
  bool wanted = false;
  for (const std::string& slot : slots) wanted |= c.NeedsGrad(slot);
  if (!wanted) return;
  std::vector<Slot> inputs, outputs;
  for (const std::string& slot : slots) {
    inputs.push_back({slot, {op.In1(slot)}});
    const Var& var = c.program().var(op.In1(slot));
    const VarId grad = c.NeedsGrad(slot) ? c.InGrad(slot)
                                         : c.Temp(var.dtype, var.shape,
                                                  var.name + "@grad_unused");
    outputs.push_back({"d" + slot, {grad}});
  }
  inputs.push_back({"out", {op.Out1("out")}});
  inputs.push_back({"lse", {op.Out1("lse")}});
  inputs.push_back({"dout", {dout}});
  c.Emit(op.type + "_grad", std::move(inputs), std::move(outputs), op.attrs);
}

// --- Kernels ---

void ForwardKernel(KernelContext& c) {
  const auto call = AttentionForwardCallOf(c);
  RunAttentionForward(call.shape, call.operands, c.workspace());
}

void BackwardKernel(KernelContext& c) {
  const auto call = AttentionBackwardCallOf(c);
  RunAttentionBackward(call.shape, call.operands, c.workspace());
}

OpSchema ForwardSchema(const char* type) {
  OpSchema s;
  s.type = type;
  s.outputs = {{"out"}, {"lse"}};
  s.attrs = {BoolAttr("causal", false), FloatAttr("scale", 0.0)};
  s.workspace_bytes = [](const OpView& op) {
    return AttentionForwardWorkspace(ShapeOf(op));
  };
  s.cuda_workspace_bytes = [](const OpView& op) {
    return CudaAttentionForwardWorkspace(ShapeOf(op));
  };
  s.cost = [](const OpView& op) -> OpCost {
    return {2 * AttentionProductFlops(ShapeOf(op)), OperandBytes(op)};
  };
  return s;
}

OpSchema BackwardSchema(const char* type) {
  OpSchema s = ForwardSchema(type);
  s.workspace_bytes = [](const OpView& op) {
    return AttentionBackwardWorkspace(ShapeOf(op));
  };
  s.cuda_workspace_bytes = [](const OpView& op) {
    return CudaAttentionBackwardWorkspace(ShapeOf(op));
  };
  s.cost = [](const OpView& op) -> OpCost {
    return {5 * AttentionProductFlops(ShapeOf(op)), OperandBytes(op)};
  };
  return s;
}

void AddPackedAttrs(OpSchema& s) {
  s.attrs.push_back({"heads", AttrType::kInt});
  s.attrs.push_back({"kv_heads", AttrType::kInt});
}

}  // namespace

void RegisterAttention(OpRegistry& ops, KernelRegistry& kernels) {
  OpSchema s = ForwardSchema("attention");
  s.inputs = {{"q"}, {"k"}, {"v"}};
  s.infer = Infer;
  s.grad = [](GradContext& c) { EmitGrad(c, {"q", "k", "v"}); };
  ops.Register(std::move(s));
  kernels.Register("attention", DeviceKind::kCpu, ForwardKernel);

  s = BackwardSchema("attention_grad");
  s.inputs = {{"q"}, {"k"}, {"v"}, {"out"}, {"lse"}, {"dout"}};
  s.outputs = {{"dq"}, {"dk"}, {"dv"}};
  s.infer = InferGrad;
  ops.Register(std::move(s));
  kernels.Register("attention_grad", DeviceKind::kCpu, BackwardKernel);

  s = ForwardSchema("attention_qkv");
  s.inputs = {{"qkv"}};
  AddPackedAttrs(s);
  s.infer = InferPacked;
  s.grad = [](GradContext& c) { EmitGrad(c, {"qkv"}); };
  ops.Register(std::move(s));
  kernels.Register("attention_qkv", DeviceKind::kCpu, ForwardKernel);

  s = BackwardSchema("attention_qkv_grad");
  s.inputs = {{"qkv"}, {"out"}, {"lse"}, {"dout"}};
  s.outputs = {{"dqkv"}};
  AddPackedAttrs(s);
  s.infer = InferPackedGrad;
  ops.Register(std::move(s));
  kernels.Register("attention_qkv_grad", DeviceKind::kCpu, BackwardKernel);
}

}  // namespace plo
