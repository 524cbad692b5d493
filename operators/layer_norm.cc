// layer_norm(x, weight?, bias?) -> out, mean, rstd {eps} over the last axis;
// add_layer_norm(x, residual, weight, bias) -> sum, out, mean, rstd {eps}:
//   the same bits as add followed by layer_norm: the norm reads the rounded
//   sum;
// layer_norm_grad(x, weight?, mean, rstd, dout, dresidual?) -> dx?, dweight?,
//   dbias?: dresidual is what reaches x past the norm. With it dx has the bits
//   of a separate add: it is rounded, then dresidual is added.
//
// Rows are shared out to threads; the grads of weight and bias share out
// columns and sum blocks of rows in order. Variance is taken about the mean.
#include <algorithm>
#include <cmath>
#include <utility>

#include "operators/gpu_layout.h"
#include "operators/kernel_util.h"
#include "operators/schema_util.h"
#include "operators/vector_ops.h"

namespace plo {
namespace {

constexpr int64_t kColumns = 128;  // of one task of the column sums
constexpr int64_t kRows = 64;      // summed before they join the total

void InferNorm(InferContext& c, std::string_view x) {
  RequireFloat(c, x);
  const Shape& shape = c.shape(x);
  c.Require(shape.rank() >= 1, x, " is a scalar");
  for (const char* slot : {"weight", "bias"}) {
    if (!c.Has(slot)) continue;
    RequireDTypeLike(c, slot, x);
    RequireShape(c, slot, Shape{shape.dim(-1)});
  }
  c.Require(c.attrs().GetFloat("eps") >= 0, "eps is ",
            c.attrs().GetFloat("eps"));
  c.Set("out", c.dtype(x), shape);
  c.Set("mean", DType::kFp32, LeadingDims(shape));
  c.Set("rstd", DType::kFp32, LeadingDims(shape));
}

void InferLayerNorm(InferContext& c) { InferNorm(c, "x"); }

void InferAddLayerNorm(InferContext& c) {
  RequireFloat(c, "x");
  RequireLike(c, "residual", "x");
  c.Set("sum", c.dtype("x"), c.shape("x"));
  InferNorm(c, "x");
}

void InferGrad(InferContext& c) {
  RequireFloat(c, "x");
  const Shape& shape = c.shape("x");
  c.Require(shape.rank() >= 1, "x is a scalar");
  RequireLike(c, "dout", "x");
  for (const char* slot : {"mean", "rstd"}) {
    RequireDType(c, slot, DType::kFp32);
    RequireShape(c, slot, LeadingDims(shape));
  }
  const Shape row{shape.dim(-1)};
  if (c.Has("weight")) {
    RequireDTypeLike(c, "weight", "x");
    RequireShape(c, "weight", row);
  }
  if (c.Has("dresidual")) {
    c.Require(!c.op().Out("dx").empty(), "dresidual is given, but no dx");
    RequireLike(c, "dresidual", "x");
  }
  c.Set("dx", c.dtype("x"), shape);
  c.Set("dweight", c.dtype("x"), row);
  c.Set("dbias", c.dtype("x"), row);
}

// Emits layer_norm_grad of `x`, which writes its grad to `dx` unless kNoId.
void EmitGrad(GradContext& c, VarId x, VarId dx) {
  const Op& op = c.op();
  std::vector<Slot> inputs = {{"x", {x}}};
  std::vector<Slot> outputs;
  if (dx != kNoId) outputs.push_back({"dx", {dx}});
  if (op.HasIn("weight")) {
    inputs.push_back({"weight", {op.In1("weight")}});
    if (c.NeedsGrad("weight")) {
      outputs.push_back({"dweight", {c.InGrad("weight")}});
    }
  }
  if (op.HasIn("bias") && c.NeedsGrad("bias")) {
    outputs.push_back({"dbias", {c.InGrad("bias")}});
  }
  if (outputs.empty()) return;
  inputs.push_back({"mean", {op.Out1("mean")}});
  inputs.push_back({"rstd", {op.Out1("rstd")}});
  inputs.push_back({"dout", {c.OutGrad("out")}});
  c.Emit("layer_norm_grad", std::move(inputs), std::move(outputs), {});
}

void Grad(GradContext& c) {
  if (c.OutGrad("out") == kNoId) return;
  EmitGrad(c, c.op().In1("x"), c.NeedsGrad("x") ? c.InGrad("x") : kNoId);
}

// Mean and 1 / sqrt(variance + eps) of a row.
struct Stats {
  float mean, rstd;
};

Stats StatsOfRow(DType dtype, const void* x, int64_t index, int64_t n,
                 double eps) {
  float buffer[kRowChunk];
  float sum = 0.0f, squares = 0.0f;
  ForRowChunks(n, [&](int64_t begin, int64_t count) {
    sum += Vec().sum(FloatsAt(dtype, x, index + begin, count, buffer), count);
  });
  const float mean = sum / static_cast<float>(n);
  ForRowChunks(n, [&](int64_t begin, int64_t count) {
    squares += Vec().sum_squares_about(
        FloatsAt(dtype, x, index + begin, count, buffer), mean, count);
  });
  const float variance = squares / static_cast<float>(n);
  return {mean, 1.0f / std::sqrt(variance + static_cast<float>(eps))};
}

void NormalizeRow(DType dtype, const void* x, int64_t index, int64_t n,
                  Stats stats, const Tensor* weight, const Tensor* bias,
                  void* out) {
  float buffer[kRowChunk], weight_buffer[kRowChunk], bias_buffer[kRowChunk];
  ForRowChunks(n, [&](int64_t begin, int64_t count) {
    const int64_t at = index + begin;
    const float* in = FloatsAt(dtype, x, at, count, buffer);
    float* target = FloatTarget(dtype, out, at, buffer);
    Vec().normalize(in, stats.mean, stats.rstd, target, count);
    const float* w = weight == nullptr ? nullptr
                                       : FloatsAt(dtype, weight->data, begin,
                                                  count, weight_buffer);
    const float* b = bias == nullptr ? nullptr
                                     : FloatsAt(dtype, bias->data, begin, count,
                                                bias_buffer);
    if (w != nullptr && b != nullptr) {
      Vec().mul_add(target, w, b, target, count);
    } else if (w != nullptr) {
      Vec().mul(target, w, target, count);
    } else if (b != nullptr) {
      Vec().add(b, target, count);
    }
    StoreFloats(dtype, target, out, at, count);
  });
}

// Normalises `x` [.., n] to the outputs of `c`; prepare(row) comes first.
template <typename Prepare>
void NormalizeRows(KernelContext& c, const Tensor& x, const Prepare& prepare) {
  const Tensor* weight = c.TryIn("weight");
  const Tensor* bias = c.TryIn("bias");
  const Tensor& out = c.Out("out");
  float* mean = c.Out("mean").as<float>();
  float* rstd = c.Out("rstd").as<float>();
  const double eps = c.attrs().GetFloat("eps");
  const int64_t n = RowLength(x.shape);
  ParallelFor(RowCount(x.shape), x.numel, [&](int64_t row) {
    prepare(row * n, n);
    const Stats stats = StatsOfRow(x.dtype, x.data, row * n, n, eps);
    mean[row] = stats.mean;
    rstd[row] = stats.rstd;
    NormalizeRow(x.dtype, x.data, row * n, n, stats, weight, bias, out.data);
  });
}

void LayerNormKernel(KernelContext& c) {
  NormalizeRows(c, c.In("x"), [](int64_t, int64_t) {});
}

void AddLayerNormKernel(KernelContext& c) {
  const Tensor& x = c.In("x");
  const Tensor& residual = c.In("residual");
  const Tensor& sum = c.Out("sum");
  NormalizeRows(c, sum, [&](int64_t index, int64_t n) {
    float x_buffer[kRowChunk], y_buffer[kRowChunk];
    ForRowChunks(n, [&](int64_t begin, int64_t count) {
      const int64_t at = index + begin;
      ConvertToFloat(x.dtype, ElementAt(x.dtype, x.data, at), x_buffer, count);
      Vec().add(FloatsAt(x.dtype, residual.data, at, count, y_buffer), x_buffer,
                count);
      StoreFloats(x.dtype, x_buffer, sum.data, at, count);
    });
  });
}

// dx of one row: rstd * (g - mean(g) - xhat * mean(g * xhat)), g = dout * w;
// plus dresidual unless null, whose bytes dx may take.
void GradRow(DType dtype, const Tensor& x, const Tensor* weight,
             const Tensor& dout, const Tensor* dresidual, int64_t index,
             int64_t n, Stats stats, const Tensor& dx) {
  float hat[kRowChunk], g[kRowChunk], buffer[kRowChunk];
  const auto load = [&](int64_t begin, int64_t count) {
    const int64_t at = index + begin;
    Vec().normalize(FloatsAt(dtype, x.data, at, count, buffer), stats.mean,
                    stats.rstd, hat, count);
    ConvertToFloat(dtype, ElementAt(dtype, dout.data, at), g, count);
    if (weight == nullptr) return;
    Vec().mul(g, FloatsAt(dtype, weight->data, begin, count, buffer), g, count);
  };
  float sum = 0.0f, dot = 0.0f;
  ForRowChunks(n, [&](int64_t begin, int64_t count) {
    load(begin, count);
    sum += Vec().sum(g, count);
    dot += Vec().dot(g, hat, count);
  });
  const float mean_g = sum / static_cast<float>(n);
  const float mean_dot = dot / static_cast<float>(n);
  ForRowChunks(n, [&](int64_t begin, int64_t count) {
    // A row of one chunk is still in the buffers.
    if (n > kRowChunk) load(begin, count);
    Vec().axpy(hat, -mean_dot, g, count);
    Vec().normalize(g, mean_g, stats.rstd, g, count);
    const int64_t at = index + begin;
    if (dresidual != nullptr) {
      ConvertToFloat(dtype, ElementAt(dtype, dresidual->data, at), buffer,
                     count);
    }
    StoreFloats(dtype, g, dx.data, at, count);
    if (dresidual == nullptr) return;
    Vec().add(FloatsAt(dtype, dx.data, at, count, g), buffer, count);
    StoreFloats(dtype, buffer, dx.data, at, count);
  });
}

void GradColumns(DType dtype, const Tensor& x, const Tensor& dout,
                 const float* mean, const float* rstd, int64_t begin,
                 int64_t count, const Tensor* dweight, const Tensor* dbias) {
  const int64_t n = RowLength(x.shape), rows = RowCount(x.shape);
  float weight_total[kColumns] = {}, bias_total[kColumns] = {};
  float weight_part[kColumns], bias_part[kColumns];
  float hat[kColumns], g_buffer[kColumns], x_buffer[kColumns];
  for (int64_t block = 0; block < rows; block += kRows) {
    std::fill(weight_part, weight_part + count, 0.0f);
    std::fill(bias_part, bias_part + count, 0.0f);
    for (int64_t r = block; r < std::min(rows, block + kRows); ++r) {
      const int64_t at = r * n + begin;
      const float* g = FloatsAt(dtype, dout.data, at, count, g_buffer);
      Vec().add(g, bias_part, count);
      if (dweight == nullptr) continue;
      Vec().normalize(FloatsAt(dtype, x.data, at, count, x_buffer), mean[r],
                      rstd[r], hat, count);
      Vec().mul(hat, g, hat, count);
      Vec().add(hat, weight_part, count);
    }
    Vec().add(weight_part, weight_total, count);
    Vec().add(bias_part, bias_total, count);
  }
  if (dweight != nullptr) {
    StoreFloats(dtype, weight_total, dweight->data, begin, count);
  }
  if (dbias != nullptr) {
    StoreFloats(dtype, bias_total, dbias->data, begin, count);
  }
}

void LayerNormGradKernel(KernelContext& c) {
  const Tensor& x = c.In("x");
  const Tensor& dout = c.In("dout");
  const Tensor* weight = c.TryIn("weight");
  const Tensor* dresidual = c.TryIn("dresidual");
  const Tensor* dx = c.TryOut("dx");
  const Tensor* dweight = c.TryOut("dweight");
  const Tensor* dbias = c.TryOut("dbias");
  const float* mean = c.In("mean").as<float>();
  const float* rstd = c.In("rstd").as<float>();
  const int64_t n = RowLength(x.shape);
  // Columns first: dx may take the bytes of dout.
  if (dweight != nullptr || dbias != nullptr) {
    ParallelFor(CeilDiv(n, kColumns), x.numel, [&](int64_t task) {
      const int64_t begin = task * kColumns;
      GradColumns(x.dtype, x, dout, mean, rstd, begin,
                  std::min(kColumns, n - begin), dweight, dbias);
    });
  }
  if (dx == nullptr) return;
  ParallelFor(RowCount(x.shape), x.numel, [&](int64_t row) {
    GradRow(x.dtype, x, weight, dout, dresidual, row * n, n,
            {mean[row], rstd[row]}, *dx);
  });
}

// Partial sums of columns.
int64_t CudaGradWorkspace(const OpView& op) {
  const auto has = [&](const char* slot) { return !op.op().Out(slot).empty(); };
  const Var& x = op.In("x");
  const int64_t n = RowLength(x.shape);
  return (int64_t{has("dweight")} + int64_t{has("dbias")}) * n *
         static_cast<int64_t>(sizeof(float)) *
         NormGradPartials(RowCount(x.shape), n, x.dtype, has("dx"));
}

OpCost Cost(const OpView& op) {
  return {8.0 * static_cast<double>(op.In("x").shape.numel()),
          OperandBytes(op)};
}

}  // namespace

void RegisterLayerNorm(OpRegistry& ops, KernelRegistry& kernels) {
  OpSchema s;
  s.type = "layer_norm";
  s.inputs = {{"x"}, Optional("weight"), Optional("bias")};
  s.outputs = {{"out"}, {"mean"}, {"rstd"}};
  s.attrs = {FloatAttr("eps", 1e-5)};
  s.infer = InferLayerNorm;
  s.grad = Grad;
  s.cost = Cost;
  s.inplace = {{"out", "x"}};
  s.cheap = true;
  ops.Register(std::move(s));
  kernels.Register("layer_norm", DeviceKind::kCpu, LayerNormKernel);

  // Made by fuse_ops after the gradients exist, so it has none of its own.
  OpSchema a;
  a.type = "add_layer_norm";
  a.inputs = {{"x"}, {"residual"}, {"weight"}, {"bias"}};
  a.outputs = {{"sum"}, {"out"}, {"mean"}, {"rstd"}};
  a.attrs = {FloatAttr("eps", 1e-5)};
  a.infer = InferAddLayerNorm;
  a.cost = Cost;
  a.inplace = {{"sum", "x"}, {"sum", "residual"}};
  a.cheap = true;
  ops.Register(std::move(a));
  kernels.Register("add_layer_norm", DeviceKind::kCpu, AddLayerNormKernel);

  OpSchema g;
  g.type = "layer_norm_grad";
  // fuse_ops adds dresidual.
  g.inputs = {{"x"},    Optional("weight"), {"mean"},
              {"rstd"}, {"dout"},           Optional("dresidual")};
  g.outputs = {Optional("dx"), Optional("dweight"), Optional("dbias")};
  g.infer = InferGrad;
  g.cuda_workspace_bytes = CudaGradWorkspace;
  g.cost = Cost;
  g.inplace = {{"dx", "dout"}, {"dx", "dresidual"}};
  ops.Register(std::move(g));
  kernels.Register("layer_norm_grad", DeviceKind::kCpu, LayerNormGradKernel);
}

}  // namespace plo
