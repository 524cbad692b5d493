// apply_amp(dtype=bf16|fp16|fp32): the O2 form of mixed precision.
//
// Before                                  After
//   feed x fp32                             feed x fp32
//   param w fp32                            param w bf16
//   fill_normal() -> w {dtype="fp32"}       fill_normal() -> w {dtype="bf16"}
//                                           cast(x) -> x@bf16 {dtype="bf16"}
//   matmul(x, w) -> y fp32                  matmul(x@bf16, w) -> y bf16
//   cross_entropy(y) -> loss, lse fp32      cross_entropy(y) -> loss, lse fp32
//
// Every fp32 param, the ops that fill it and all that is computed from it take
// the new type; what a schema fixes to fp32 (losses, statistics) stays. Fills
// inside micro follow. A float feed is cast in front of its first reader; ops
// of the first micro-step only (counts) go on reading the feed itself.
//
// Needs: a program before append_backward, and runs once. Optimizers keep an
// fp32 master of each 16-bit param later. dtype=fp32 changes nothing.
#include <algorithm>

#include "framework/ir/op_registry.h"
#include "passes/passes.h"
#include "passes/rewrite_utils.h"

namespace plo {
namespace {

class ApplyAmp : public Pass {
 public:
  explicit ApplyAmp(DType dtype) : dtype_(dtype) {}
  std::string_view name() const override { return "apply_amp"; }

  bool Run(Program& program) override {
    RequireFirstRun(program, name());
    if (dtype_ == DType::kFp32) return false;
    for (const auto& op : program.ops(Section::kMicro)) {
      PLO_ENFORCE(op->role == Role::kForward, kFailedPrecondition,
                  "apply_amp comes before append_backward, found ",
                  Describe(*op));
    }
    Program amp = program.Clone();
    const bool params = ConvertParams(amp);
    const bool feeds = CastFeeds(amp);
    if (!params && !feeds) return false;
    Infer(amp);
    program = std::move(amp);
    return true;
  }

 private:
  bool ConvertParams(Program& program) const {
    bool changed = false;
    for (VarId id : program.Params()) {
      Var& var = program.mutable_var(id);
      if (var.dtype != DType::kFp32) continue;
      var.dtype = dtype_;
      changed = true;
      for (OpId writer : program.Writers(id)) {
        SetFillType(program.mutable_op(writer));
      }
    }
    return changed;
  }

  void SetFillType(Op& op) const {
    const Attr* dtype = op.attrs.Find("dtype");
    if (op.inputs.empty() && dtype != nullptr &&
        *dtype == Attr(std::string("fp32"))) {
      op.attrs.Set("dtype", std::string(DTypeName(dtype_)));
    }
  }

  bool CastFeeds(Program& program) const {
    bool changed = false;
    for (VarId id : program.vars()) {
      const Var& feed = program.var(id);
      if (feed.kind != VarKind::kFeed || feed.dtype != DType::kFp32) continue;
      std::vector<OpId> readers = program.Readers(id);
      std::erase_if(readers, [&](OpId reader) {
        const Op& op = program.op(reader);
        return op.type == "cast" || op.first_micro_only;
      });
      if (readers.empty()) continue;
      changed = true;
      Var cast = feed;
      cast.id = kNoId;
      cast.name = program.UniqueName(StrCat(feed.name, "@", DTypeName(dtype_)));
      cast.kind = VarKind::kTemp;
      cast.dtype = dtype_;
      const VarId cast_id = program.AddVar(std::move(cast));
      OpSpec spec;
      spec.type = "cast";
      spec.inputs = {{"x", {id}}};
      spec.outputs = {{"out", {cast_id}}};
      spec.attrs.Set("dtype", std::string(DTypeName(dtype_)));
      spec.region = program.op(readers[0]).region;
      program.InsertBefore(readers[0], std::move(spec));
      for (OpId reader : readers) program.ReplaceInput(reader, id, cast_id);
    }
    return changed;
  }

  void Infer(Program& program) const {
    for (const auto& op : program.ops(Section::kMicro)) {
      SetFillType(*op);
      NormalizeOp(OpRegistry::Global(), program, *op);
      for (const auto& result : InferOp(OpRegistry::Global(), program, *op)) {
        const std::vector<VarId>& outs = op->Out(result.slot);
        if (result.index >= static_cast<int>(outs.size())) continue;
        Var& out = program.mutable_var(outs[result.index]);
        if (out.dtype == result.dtype) continue;
        // Offsets of views are in bytes.
        out.byte_offset =
            out.byte_offset / SizeOf(out.dtype) * SizeOf(result.dtype);
        out.dtype = result.dtype;
      }
    }
  }

  DType dtype_;
};

}  // namespace

std::unique_ptr<Pass> MakeApplyAmp(PassOptions& options) {
  const DType dtype = ParseDType(options.String("dtype", "bf16"));
  PLO_ENFORCE(dtype == DType::kFp32 || Is16Bit(dtype), kInvalidArgument,
              "apply_amp: dtype must be bf16, fp16 or fp32, got ", dtype);
  return std::make_unique<ApplyAmp>(dtype);
}

}  // namespace plo
