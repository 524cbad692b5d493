// GraphBuilder's methods of one op each.
#include "paddle_lite_offload/graph_builder.h"

namespace plo {

Value GraphBuilder::Unary(std::string_view type, Value x, AttrMap attrs,
                          const Site& site) {
  return Append(type, {{"x", {x}}}, std::move(attrs), site)[0];
}

Value GraphBuilder::Binary(std::string_view type, Value x, Value y,
                           const Site& site) {
  return Append(type, {{"x", {x}}, {"y", {y}}}, {}, site)[0];
}

// --- Linear algebra ---

Value GraphBuilder::Matmul(Value x, Value y, Value bias, bool trans_x,
                           bool trans_y, Site site) {
  AttrMap attrs;
  attrs.Set("trans_x", Attr(trans_x));
  attrs.Set("trans_y", Attr(trans_y));
  return Append("matmul", {{"x", {x}}, {"y", {y}}, {"bias", {bias}}},
                std::move(attrs), site)[0];
}

// --- Elementwise ---

Value GraphBuilder::Add(Value x, Value y, Site site) {
  return Binary("add", x, y, site);
}
Value GraphBuilder::Sub(Value x, Value y, Site site) {
  return Binary("sub", x, y, site);
}
Value GraphBuilder::Mul(Value x, Value y, Site site) {
  return Binary("mul", x, y, site);
}
Value GraphBuilder::Div(Value x, Value y, Site site) {
  return Binary("div", x, y, site);
}

Value GraphBuilder::Scale(Value x, double factor, double bias, Site site) {
  AttrMap attrs;
  attrs.Set("factor", Attr(factor));
  attrs.Set("bias", Attr(bias));
  return Unary("scale", x, std::move(attrs), site);
}

Value GraphBuilder::Gelu(Value x, std::string_view approximate, Site site) {
  AttrMap attrs;
  attrs.Set("approximate", Attr(std::string(approximate)));
  return Unary("gelu", x, std::move(attrs), site);
}

Value GraphBuilder::Relu(Value x, Site site) {
  return Unary("relu", x, {}, site);
}
Value GraphBuilder::Silu(Value x, Site site) {
  return Unary("silu", x, {}, site);
}
Value GraphBuilder::Tanh(Value x, Site site) {
  return Unary("tanh", x, {}, site);
}

Value GraphBuilder::Cast(Value x, DType dtype, Site site) {
  AttrMap attrs;
  attrs.Set("dtype", Attr(std::string(DTypeName(dtype))));
  return Unary("cast", x, std::move(attrs), site);
}

Value GraphBuilder::Dropout(Value x, double p, Site site) {
  Require(p >= 0 && p < 1, site, "dropout p must be in [0, 1), got ", p);
  if (p == 0) return x;
  AttrMap attrs;
  attrs.Set("p", Attr(p));
  return Unary("dropout", x, std::move(attrs), site);
}

// --- Norms, attention, embedding ---

Value GraphBuilder::Softmax(Value x, Site site) {
  return Unary("softmax", x, {}, site);
}

Value GraphBuilder::LayerNorm(Value x, Value weight, Value bias, double eps,
                              Site site) {
  AttrMap attrs;
  attrs.Set("eps", Attr(eps));
  return Append("layer_norm",
                {{"x", {x}}, {"weight", {weight}}, {"bias", {bias}}},
                std::move(attrs), site)[0];
}

Value GraphBuilder::Attention(Value q, Value k, Value v, bool causal,
                              double scale, Site site) {
  AttrMap attrs;
  attrs.Set("causal", Attr(causal));
  attrs.Set("scale", Attr(scale));
  return Append("attention", {{"q", {q}}, {"k", {k}}, {"v", {v}}},
                std::move(attrs), site)[0];
}

Value GraphBuilder::AttentionQkv(Value qkv, int64_t heads, int64_t kv_heads,
                                 bool causal, double scale, Site site) {
  AttrMap attrs;
  attrs.Set("heads", Attr(heads));
  attrs.Set("kv_heads", Attr(kv_heads));
  attrs.Set("causal", Attr(causal));
  attrs.Set("scale", Attr(scale));
  return Append("attention_qkv", {{"qkv", {qkv}}}, std::move(attrs), site)[0];
}

Value GraphBuilder::Embedding(Value ids, Value weight, Site site) {
  return Append("embedding", {{"ids", {ids}}, {"weight", {weight}}}, {},
                site)[0];
}

// --- Losses ---

Value GraphBuilder::CrossEntropy(Value logits, Value labels,
                                 int64_t ignore_index, Site site) {
  AttrMap attrs;
  attrs.Set("ignore_index", Attr(ignore_index));
  return Append("cross_entropy", {{"logits", {logits}}, {"labels", {labels}}},
                std::move(attrs), site)[0];
}

Value GraphBuilder::LinearCrossEntropy(Value x, Value weight, Value labels,
                                       int64_t ignore_index,
                                       int64_t chunk_tokens, Site site) {
  AttrMap attrs;
  attrs.Set("ignore_index", Attr(ignore_index));
  attrs.Set("chunk_tokens", Attr(chunk_tokens));
  return Append("linear_cross_entropy",
                {{"x", {x}}, {"weight", {weight}}, {"labels", {labels}}},
                std::move(attrs), site)[0];
}

Value GraphBuilder::SumSquaredError(Value x, Value y, Site site) {
  return Binary("sum_squared_error", x, y, site);
}

Value GraphBuilder::CountValid(Value labels, int64_t ignore_index, Site site) {
  AttrMap attrs;
  attrs.Set("ignore_index", Attr(ignore_index));
  return Count("count_valid", "labels", labels, std::move(attrs), site);
}

Value GraphBuilder::CountElements(Value feed, Site site) {
  return Count("count_elements", "x", feed, {}, site);
}

// --- Shapes ---

Value GraphBuilder::Reshape(Value x, std::vector<int64_t> shape, Site site) {
  AttrMap attrs;
  attrs.Set("shape", Attr(std::move(shape)));
  return Unary("reshape", x, std::move(attrs), site);
}

Value GraphBuilder::Transpose(Value x, std::vector<int64_t> perm, Site site) {
  AttrMap attrs;
  attrs.Set("perm", Attr(std::move(perm)));
  return Unary("transpose", x, std::move(attrs), site);
}

Value GraphBuilder::Slice(Value x, int64_t axis, int64_t begin, int64_t end,
                          Site site) {
  AttrMap attrs;
  attrs.Set("axis", Attr(axis));
  attrs.Set("begin", Attr(begin));
  attrs.Set("end", Attr(end));
  return Unary("slice", x, std::move(attrs), site);
}

Value GraphBuilder::Concat(const std::vector<Value>& x, int64_t axis,
                           Site site) {
  AttrMap attrs;
  attrs.Set("axis", Attr(axis));
  return Append("concat", {{"x", x}}, std::move(attrs), site)[0];
}

std::vector<Value> GraphBuilder::Split(Value x, int64_t axis,
                                       std::vector<int64_t> sizes, Site site) {
  AttrMap attrs;
  attrs.Set("axis", Attr(axis));
  attrs.Set("sizes", Attr(std::move(sizes)));
  return Append("split", {{"x", {x}}}, std::move(attrs), site);
}

Value GraphBuilder::BroadcastTo(Value x, std::vector<int64_t> shape,
                                Site site) {
  AttrMap attrs;
  attrs.Set("shape", Attr(std::move(shape)));
  return Unary("broadcast_to", x, std::move(attrs), site);
}

// --- Reductions and constants ---

namespace {
AttrMap ReduceAttrs(std::vector<int64_t> axes, bool keepdims) {
  AttrMap attrs;
  attrs.Set("axes", Attr(std::move(axes)));
  attrs.Set("keepdims", Attr(keepdims));
  return attrs;
}
}  // namespace

Value GraphBuilder::ReduceSum(Value x, std::vector<int64_t> axes, bool keepdims,
                              Site site) {
  return Unary("reduce_sum", x, ReduceAttrs(std::move(axes), keepdims), site);
}
Value GraphBuilder::ReduceMean(Value x, std::vector<int64_t> axes,
                               bool keepdims, Site site) {
  return Unary("reduce_mean", x, ReduceAttrs(std::move(axes), keepdims), site);
}
Value GraphBuilder::ReduceMax(Value x, std::vector<int64_t> axes, bool keepdims,
                              Site site) {
  return Unary("reduce_max", x, ReduceAttrs(std::move(axes), keepdims), site);
}

Value GraphBuilder::FillConstant(double value, std::vector<int64_t> shape,
                                 Site site) {
  AttrMap attrs;
  attrs.Set("value", Attr(value));
  attrs.Set("shape", Attr(std::move(shape)));
  attrs.Set("dtype", "fp32");
  return Append("fill_constant", {}, std::move(attrs), site)[0];
}

}  // namespace plo
