#include "operators/adam_layout.h"

#include "framework/ir/error.h"
#include "operators/segments.h"

namespace plo {
namespace {

void AddPiece(std::vector<UpdatePiece>& pieces, int64_t begin, int64_t end,
              int64_t segment) {
  if (begin < end) pieces.push_back({begin, end, segment});
}

}  // namespace

ClipMode ParseClipMode(const std::string& name) {
  if (name == "none") return ClipMode::kNone;
  if (name == "global_norm") return ClipMode::kGlobalNorm;
  if (name == "norm") return ClipMode::kNorm;
  PLO_ENFORCE(name == "value", kInvalidArgument,
              "clip_mode must be none, global_norm, norm or value, is '", name,
              "'");
  return ClipMode::kValue;
}

UpdateLayout MakeUpdateLayout(const KernelContext& ctx, bool adam) {
  const AttrMap& attrs = ctx.attrs();
  UpdateLayout layout;
  if (adam) {
    layout.rule.beta1 = attrs.GetFloat("beta1");
    layout.rule.beta2 = attrs.GetFloat("beta2");
    layout.rule.eps = attrs.GetFloat("eps");
  } else {
    layout.rule.momentum = attrs.GetFloat("momentum");
    layout.rule.nesterov = attrs.GetBool("nesterov");
  }
  layout.rule.weight_decay = attrs.GetFloat("weight_decay");
  layout.rule.decoupled = attrs.GetBool("decoupled");
  layout.rule.clip_mode = ParseClipMode(attrs.GetString("clip_mode"));
  layout.rule.clip = attrs.GetFloat("clip_norm");

  const int64_t numel = ctx.In("grad").numel;
  const int64_t slice = attrs.GetInt("slice_numel");
  int64_t low = attrs.GetInt("slice_begin");
  if (attrs.GetBool("sliced")) {
    low += ctx.env().rank * (slice > 0 ? slice : numel);
  }
  const size_t count = attrs.GetInts("segment_begins").size();
  int64_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    layout.segments.push_back({attrs.GetFloats("segment_weight_decay")[i],
                               attrs.GetFloats("segment_lr_scale")[i],
                               attrs.GetInts("segment_need_clip")[i] != 0});
    const SegmentRange range = SegmentWithin(attrs, i, low, low + numel);
    if (range.empty()) continue;
    AddPiece(layout.pieces, at, range.begin, kPaddingPiece);
    AddPiece(layout.pieces, range.begin, range.end, static_cast<int64_t>(i));
    at = range.end;
  }
  AddPiece(layout.pieces, at, numel, kPaddingPiece);
  return layout;
}

UpdateOperands BindUpdateOperands(const KernelContext& ctx) {
  UpdateOperands o;
  o.grad = ctx.In("grad").data;
  o.grad_dtype = ctx.In("grad").dtype;
  o.master = ctx.Out("master").as<float>();
  o.moment1 = ctx.Out("moment1").as<float>();
  if (const Tensor* v = ctx.TryOut("moment2")) o.moment2 = v->as<float>();
  if (const Tensor* param = ctx.TryOut("param")) {
    o.param = param->data;
    o.param_dtype = param->dtype;
  }
  return o;
}

}  // namespace plo
