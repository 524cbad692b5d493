// cross_entropy(logits, labels) -> loss_sum, lse {ignore_index}: the sum over
// the rows whose label is not ignore_index of lse - logit[label], lse being
// log(sum(exp(logits))) per row.
// cross_entropy_grad(logits, labels, lse, dloss) -> dlogits:
// (softmax - onehot) * dloss, zero in ignored rows.
#include <algorithm>
#include <utility>

#include "operators/kernel_util.h"
#include "operators/labels.h"
#include "operators/running_lse.h"
#include "operators/schema_util.h"
#include "operators/vector_ops.h"

namespace plo {
namespace {

void CheckOperands(InferContext& c) {
  RequireFloat(c, "logits");
  c.Require(c.shape("logits").rank() >= 1, "logits is a scalar");
  RequireLabels(c, c.shape("logits"));
}

void Infer(InferContext& c) {
  CheckOperands(c);
  c.Set("loss_sum", DType::kFp32, Shape{1});
  c.Set("lse", DType::kFp32, LeadingDims(c.shape("logits")));
}

void InferGrad(InferContext& c) {
  CheckOperands(c);
  RequireDType(c, "lse", DType::kFp32);
  RequireShape(c, "lse", LeadingDims(c.shape("logits")));
  RequireDType(c, "dloss", DType::kFp32);
  RequireShape(c, "dloss", Shape{1});
  c.Set("dlogits", c.dtype("logits"), c.shape("logits"));
}

void Grad(GradContext& c) {
  const Op& op = c.op();
  const VarId dloss = c.OutGrad("loss_sum");
  if (dloss == kNoId || !c.NeedsGrad("logits")) return;
  AttrMap attrs;
  attrs.Set("ignore_index", op.attrs.GetInt("ignore_index"));
  const VarId dlogits = c.InGrad("logits");
  c.Emit("cross_entropy_grad",
         {{"logits", {op.In1("logits")}},
          {"labels", {op.In1("labels")}},
          {"lse", {op.Out1("lse")}},
          {"dloss", {dloss}}},
         {{"dlogits", {dlogits}}}, std::move(attrs));
}

void CrossEntropyKernel(KernelContext& c) {
  const Tensor& logits = c.In("logits");
  const Tensor& labels = c.In("labels");
  const int64_t n = RowLength(logits.shape), rows = RowCount(logits.shape);
  const int64_t ignore = c.attrs().GetInt("ignore_index");
  CheckLabels(labels, ignore, n);
  float* lse = c.Out("lse").as<float>();
  ParallelFor(rows, logits.numel, [&](int64_t row) {
    lse[row] = LseOfRow(logits.dtype, logits.data, row * n, n).value();
  });
  double loss = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t label = labels.as<int32_t>()[row];
    if (label == ignore) continue;
    float logit;
    ConvertToFloat(logits.dtype,
                   ElementAt(logits.dtype, logits.data, row * n + label),
                   &logit, 1);
    loss += lse[row] - logit;
  }
  c.Out("loss_sum").as<float>()[0] = static_cast<float>(loss);
}

void CrossEntropyGradKernel(KernelContext& c) {
  const Tensor& logits = c.In("logits");
  const Tensor& labels = c.In("labels");
  const Tensor& dlogits = c.Out("dlogits");
  const DType dtype = logits.dtype;
  const int64_t n = RowLength(logits.shape), rows = RowCount(logits.shape);
  const int64_t ignore = c.attrs().GetInt("ignore_index");
  CheckLabels(labels, ignore, n);
  const float* lse = c.In("lse").as<float>();
  const float dloss = c.In("dloss").as<float>()[0];
  ParallelFor(rows, logits.numel, [&](int64_t row) {
    const int64_t label = labels.as<int32_t>()[row];
    float buffer[kRowChunk];
    ForRowChunks(n, [&](int64_t begin, int64_t count) {
      const int64_t at = row * n + begin;
      float* target = FloatTarget(dtype, dlogits.data, at, buffer);
      if (label == ignore) {
        std::fill(target, target + count, 0.0f);
      } else {
        const float* in = FloatsAt(dtype, logits.data, at, count, buffer);
        Vec().exp_sum(in, lse[row], target, count);
        if (label >= begin && label < begin + count) {
          target[label - begin] -= 1.0f;
        }
        Vec().scale(target, dloss, target, count);
      }
      StoreFloats(dtype, target, dlogits.data, at, count);
    });
  });
}

OpCost Cost(const OpView& op) {
  return {5.0 * static_cast<double>(op.In("logits").shape.numel()),
          OperandBytes(op)};
}

}  // namespace

void RegisterCrossEntropy(OpRegistry& ops, KernelRegistry& kernels) {
  OpSchema s;
  s.type = "cross_entropy";
  s.inputs = {{"logits"}, {"labels"}};
  s.outputs = {{"loss_sum"}, {"lse"}};
  s.attrs = {IntAttr("ignore_index", -100)};
  s.infer = Infer;
  s.grad = Grad;
  s.cost = Cost;
  ops.Register(std::move(s));
  kernels.Register("cross_entropy", DeviceKind::kCpu, CrossEntropyKernel);

  OpSchema g;
  g.type = "cross_entropy_grad";
  g.inputs = {{"logits"}, {"labels"}, {"lse"}, {"dloss"}};
  g.outputs = {{"dlogits"}};
  g.attrs = {IntAttr("ignore_index", -100)};
  g.infer = InferGrad;
  g.cost = Cost;
  g.inplace = {{"dlogits", "logits"}};
  ops.Register(std::move(g));
  kernels.Register("cross_entropy_grad", DeviceKind::kCpu,
                   CrossEntropyGradKernel);
}

}  // namespace plo
