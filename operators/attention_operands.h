// The operands of the attention ops' kernels, packed or not.
#ifndef PLO_OPERATORS_ATTENTION_OPERANDS_H_
#define PLO_OPERATORS_ATTENTION_OPERANDS_H_

#include <cmath>
#include <cstdint>

#include "framework/runtime/kernel.h"
#include "operators/attention_core.h"
#include "operators/rows.h"

namespace plo {

inline float AttentionScaleOf(const AttrMap& attrs, int64_t dim) {
  const double scale = attrs.GetFloat("scale");
  return static_cast<float>(
      scale != 0 ? scale : 1.0 / std::sqrt(static_cast<double>(dim)));
}

inline AttentionShape AttentionShapeOf(DType dtype, const Shape& q,
                                       const Shape& k, const AttrMap& attrs) {
  AttentionShape s;
  s.batch = q[0];
  s.seq = q[1];
  s.heads = q[2];
  s.dim = q[3];
  s.kv_heads = k[2];
  s.dtype = dtype;
  s.causal = attrs.GetBool("causal");
  s.scale = AttentionScaleOf(attrs, s.dim);
  return s;
}

inline AttentionShape PackedAttentionShapeOf(DType dtype, const Shape& qkv,
                                             const AttrMap& attrs) {
  AttentionShape s;
  s.batch = qkv[0];
  s.seq = qkv[1];
  s.heads = attrs.GetInt("heads");
  s.kv_heads = attrs.GetInt("kv_heads");
  s.dim = qkv[2] / (s.heads + 2 * s.kv_heads);
  s.dtype = dtype;
  s.causal = attrs.GetBool("causal");
  s.scale = AttentionScaleOf(attrs, s.dim);
  return s;
}

struct AttentionForwardCall {
  AttentionShape shape;
  AttentionForward operands;
};
struct AttentionBackwardCall {
  AttentionShape shape;
  AttentionBackward operands;
};

namespace attention_internal {

inline HeadsView Heads(const Tensor& t) {
  return {t.data, t.shape[2] * t.shape[3]};
}
inline HeadsView Joined(const Tensor& t) { return {t.data, t.shape[2]}; }

// q, k or v inside a packed tensor, `skip` heads in.
inline HeadsView Packed(const AttentionShape& s, const Tensor& t,
                        int64_t skip) {
  return {ElementAt(s.dtype, t.data, skip * s.dim), t.shape[2]};
}

}  // namespace attention_internal

// Of attention and attention_qkv.
inline AttentionForwardCall AttentionForwardCallOf(const KernelContext& c) {
  using namespace attention_internal;
  float* lse = c.Out("lse").as<float>();
  if (const Tensor* qkv = c.TryIn("qkv")) {
    const auto s = PackedAttentionShapeOf(qkv->dtype, qkv->shape, c.attrs());
    return {s,
            {Packed(s, *qkv, 0), Packed(s, *qkv, s.heads),
             Packed(s, *qkv, s.heads + s.kv_heads), Joined(c.Out("out")), lse}};
  }
  const Tensor& q = c.In("q");
  const Tensor& k = c.In("k");
  return {AttentionShapeOf(q.dtype, q.shape, k.shape, c.attrs()),
          {Heads(q), Heads(k), Heads(c.In("v")), Heads(c.Out("out")), lse}};
}

// Of attention_grad and attention_qkv_grad.
inline AttentionBackwardCall AttentionBackwardCallOf(const KernelContext& c) {
  using namespace attention_internal;
  const float* lse = c.In("lse").as<float>();
  if (const Tensor* qkv = c.TryIn("qkv")) {
    const Tensor& dqkv = c.Out("dqkv");
    const auto s = PackedAttentionShapeOf(qkv->dtype, qkv->shape, c.attrs());
    const int64_t v = s.heads + s.kv_heads;
    return {s,
            {Packed(s, *qkv, 0), Packed(s, *qkv, s.heads), Packed(s, *qkv, v),
             Joined(c.In("out")), Joined(c.In("dout")), Packed(s, dqkv, 0),
             Packed(s, dqkv, s.heads), Packed(s, dqkv, v), lse}};
  }
  const Tensor& q = c.In("q");
  const Tensor& k = c.In("k");
  return {AttentionShapeOf(q.dtype, q.shape, k.shape, c.attrs()),
          {Heads(q), Heads(k), Heads(c.In("v")), Heads(c.In("out")),
           Heads(c.In("dout")), Heads(c.Out("dq")), Heads(c.Out("dk")),
           Heads(c.Out("dv")), lse}};
}

}  // namespace plo

#endif  // PLO_OPERATORS_ATTENTION_OPERANDS_H_
