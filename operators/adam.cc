// adamw, sgd_momentum: the update of one bucket, or of this rank's slice of it,
// on the device or on the host.
//
// Reads everything that depends on the step from the step record. A skipped
// step leaves the state as it is; the rounded param is written even then,
// because its buffer may be the one the gradient came in. Elements outside
// every segment are padding and stay zero.
//
// Of a slice of slice_numel elements (0: as many as there are operands' ones)
// the op may update a part, from element slice_begin on.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "framework/ir/op_registry.h"
#include "framework/runtime/host_pool.h"
#include "operators/adam_kernels.h"
#include "operators/adam_layout.h"
#include "operators/infer_util.h"
#include "operators/kernel_util.h"
#include "operators/segments.h"
#include "operators/step_record.h"

namespace plo {
namespace {

// Elements a thread takes at a time; 28 bytes each pass through its caches.
constexpr int64_t kGrain = 16384;

void RequireState(InferContext& ctx, const char* slot) {
  RequireDType(ctx, slot, DType::kFp32);
  RequireShape(ctx, slot, ctx.shape("grad"));
  SetLike(ctx, slot, slot);
}

// The rounded param has the dtype of the var given for it, if there is one
// already, else that of the gradient.
DType ParamDType(const InferContext& ctx) {
  const VarId param = ctx.op().Out1("param");
  return param == kNoId ? ctx.dtype("grad") : ctx.program().var(param).dtype;
}

void InferUpdate(InferContext& ctx, bool adam) {
  RequireFloat(ctx, "grad");
  ctx.Require(ctx.shape("grad").rank() == 1, "grad must have one dimension");
  RequireDType(ctx, "record", DType::kFp32);
  RequireShape(ctx, "record", {kStepRecordSize});
  RequireState(ctx, "master");
  RequireState(ctx, "moment1");
  if (adam) RequireState(ctx, "moment2");
  if (!ctx.op().Out("param").empty()) {
    ctx.Require(IsFloat(ParamDType(ctx)), "param must be of a float type");
    ctx.Set("param", ParamDType(ctx), ctx.shape("grad"));
  }
  RequireSegments(ctx);
  const AttrMap& attrs = ctx.attrs();
  const int64_t begin = attrs.GetInt("slice_begin");
  const int64_t slice = attrs.GetInt("slice_numel");
  const int64_t numel = ctx.shape("grad").numel();
  ctx.Require(slice == 0 ? begin == 0 : begin >= 0 && begin <= slice - numel,
              numel, " elements from ", begin, " on are not within a slice of ",
              slice);
  const size_t segments = attrs.GetInts("segment_begins").size();
  ctx.Require(attrs.GetFloats("segment_weight_decay").size() == segments &&
                  attrs.GetFloats("segment_lr_scale").size() == segments &&
                  attrs.GetInts("segment_need_clip").size() == segments,
              "the segment attributes differ in length");
  if (ParseClipMode(attrs.GetString("clip_mode")) == ClipMode::kNorm) {
    ctx.Require(ctx.Has("stats"), "clip_mode norm needs stats");
    RequireDType(ctx, "stats", DType::kFp32);
    const int64_t offset = attrs.GetInt("stats_offset");
    ctx.Require(offset >= 0 && offset + static_cast<int64_t>(segments) <=
                                   ctx.shape("stats").numel(),
                "stats_offset ", offset, " leaves fewer than ", segments,
                " stats");
  }
}

void InferAdam(InferContext& ctx) {
  InferUpdate(ctx, true);
  for (const char* name : {"beta1", "beta2"}) {
    const double beta = ctx.attrs().GetFloat(name);
    ctx.Require(beta >= 0 && beta < 1, name, " must be in [0, 1), is ", beta);
  }
  ctx.Require(ctx.attrs().GetFloat("eps") >= 0, "eps must not be negative");
}

void InferSgd(InferContext& ctx) {
  InferUpdate(ctx, false);
  const double momentum = ctx.attrs().GetFloat("momentum");
  ctx.Require(momentum >= 0 && momentum < 1, "momentum must be in [0, 1), is ",
              momentum);
}

// The layout, and room for what changes from step to step.
struct State {
  UpdateLayout layout;
  std::vector<AdamScalars> adam;
  std::vector<SgdScalars> sgd;
};

State MakeState(const KernelContext& ctx, bool adam) {
  State state{MakeUpdateLayout(ctx, adam), {}, {}};
  const size_t count = state.layout.segments.size();
  state.adam.resize(adam ? count : 0);
  state.sgd.resize(adam ? 0 : count);
  return state;
}

// The host stream has threads of its own, which OMP_NUM_THREADS does not limit.
template <typename Fn>
void ForChunks(KernelContext& ctx, int64_t numel, const Fn& fn) {
  HostPool* pool = ctx.env().pool;
  if (pool != nullptr && ctx.op().stream == StreamKind::kHost) {
    pool->ParallelFor(numel, kGrain, std::cref(fn));
  } else {
    ParallelRanges(numel, kGrain, fn);
  }
}

void ZeroParam(const UpdateOperands& o, int64_t begin, int64_t end) {
  if (o.param == nullptr) return;
  std::memset(ElementAt(o.param_dtype, o.param, begin), 0,
              static_cast<size_t>((end - begin) * SizeOf(o.param_dtype)));
}

void RunUpdate(KernelContext& ctx, bool adam) {
  State& state = ctx.Cached<State>([&] { return MakeState(ctx, adam); });
  UpdateLayout& layout = state.layout;
  const UpdateOperands o = BindUpdateOperands(ctx);
  const int64_t numel = ctx.In("grad").numel;
  const float* record = ctx.In("record").as<float>();
  if (record[kRecordSkip] != 0.0f) {
    if (o.param == nullptr || o.param == o.master) return;
    return ForChunks(ctx, numel, [&](int64_t begin, int64_t end) {
      StoreFloats(o.param_dtype, o.master + begin, o.param, begin, end - begin);
    });
  }
  const Tensor* stats = ctx.TryIn("stats");
  const int64_t offset = ctx.attrs().GetInt("stats_offset");
  for (size_t i = 0; i < layout.segments.size(); ++i) {
    SegmentRule& segment = layout.segments[i];
    if (stats != nullptr) {
      segment.sum_squares =
          stats->as<float>()[offset + static_cast<int64_t>(i)];
    }
    if (adam) {
      state.adam[i] = FoldAdam(layout.rule, segment, record);
    } else {
      state.sgd[i] = FoldSgd(layout.rule, segment, record);
    }
  }
  const UpdateKernels& kernels = GetUpdateKernels();
  ForChunks(ctx, numel, [&](int64_t begin, int64_t end) {
    auto piece = std::upper_bound(
        layout.pieces.begin(), layout.pieces.end(), begin,
        [](int64_t at, const UpdatePiece& p) { return at < p.end; });
    for (; piece != layout.pieces.end() && piece->begin < end; ++piece) {
      const int64_t from = std::max(begin, piece->begin);
      const int64_t to = std::min(end, piece->end);
      const size_t segment = static_cast<size_t>(piece->segment);
      if (piece->segment == kPaddingPiece) {
        ZeroParam(o, from, to);
      } else if (adam) {
        kernels.adam(state.adam[segment], o, from, to);
      } else {
        kernels.sgd(state.sgd[segment], o, from, to);
      }
    }
  });
}

void AdamKernel(KernelContext& ctx) { RunUpdate(ctx, true); }
void SgdKernel(KernelContext& ctx) { RunUpdate(ctx, false); }

OpSchema UpdateSchema(const char* type, std::vector<AttrDef> attrs,
                      bool decoupled) {
  OpSchema schema;
  schema.type = type;
  schema.inputs = {
      {"grad"}, {"record"}, Optional("stats"), {"master"}, {"moment1"}};
  schema.outputs = {{"master"}, {"moment1"}, Optional("param")};
  schema.attrs = std::move(attrs);
  for (AttrDef def : std::vector<AttrDef>{
           FloatAttr("weight_decay", 0.0),
           BoolAttr("decoupled", decoupled),
           BoolAttr("sliced", true),
           IntAttr("slice_begin", 0),
           IntAttr("slice_numel", 0),
           {"segment_begins", AttrType::kInts},
           {"segment_numels", AttrType::kInts},
           {"segment_weight_decay", AttrType::kFloats},
           {"segment_lr_scale", AttrType::kFloats},
           {"segment_need_clip", AttrType::kInts},
           {"clip_mode", AttrType::kString, false, std::string("none")},
           FloatAttr("clip_norm", 0.0),
           IntAttr("stats_offset", 0)}) {
    schema.attrs.push_back(std::move(def));
  }
  schema.aliases = {{"master", "master"}, {"moment1", "moment1"}};
  schema.where = OpSchema::Where::kDeviceOrHost;
  schema.cuda_workspace_bytes = [](const OpView& op) {
    return UpdateScratchBytes(
        static_cast<int64_t>(op.attrs().GetInts("segment_begins").size()));
  };
  return schema;
}

}  // namespace

void RegisterAdam(OpRegistry& ops, KernelRegistry& kernels) {
  OpSchema adam =
      UpdateSchema("adamw",
                   {FloatAttr("beta1", 0.9), FloatAttr("beta2", 0.999),
                    FloatAttr("eps", 1e-8)},
                   true);
  adam.inputs.push_back({"moment2"});
  adam.outputs.push_back({"moment2"});
  adam.aliases.push_back({"moment2", "moment2"});
  adam.infer = InferAdam;
  adam.cost = CostPerElement(16);
  ops.Register(std::move(adam));
  kernels.Register("adamw", DeviceKind::kCpu, AdamKernel);

  OpSchema sgd = UpdateSchema(
      "sgd_momentum", {FloatAttr("momentum", 0.9), BoolAttr("nesterov", false)},
      false);
  sgd.infer = InferSgd;
  sgd.cost = CostPerElement(8);
  ops.Register(std::move(sgd));
  kernels.Register("sgd_momentum", DeviceKind::kCpu, SgdKernel);
}

}  // namespace plo
