// Checks that shape rules share, and short forms of slots and attributes.
#ifndef PLO_OPERATORS_SCHEMA_UTIL_H_
#define PLO_OPERATORS_SCHEMA_UTIL_H_

#include <string>
#include <string_view>
#include <utility>

#include "framework/ir/op_registry.h"

namespace plo {

inline SlotDef Optional(std::string name) {
  return {std::move(name), /*optional=*/true, /*variadic=*/false};
}
inline AttrDef BoolAttr(std::string name, bool fallback) {
  return {std::move(name), AttrType::kBool, false, fallback};
}
inline AttrDef IntAttr(std::string name, int64_t fallback) {
  return {std::move(name), AttrType::kInt, false, fallback};
}
inline AttrDef FloatAttr(std::string name, double fallback) {
  return {std::move(name), AttrType::kFloat, false, fallback};
}

inline void RequireFloat(const InferContext& c, std::string_view slot) {
  c.Require(IsFloat(c.dtype(slot)), slot, " must be a float tensor, not ",
            c.dtype(slot));
}
inline void RequireDType(const InferContext& c, std::string_view slot,
                         DType dtype) {
  c.Require(c.dtype(slot) == dtype, slot, " must be ", dtype, ", not ",
            c.dtype(slot));
}
// `slot` must have the dtype of `like`.
inline void RequireDTypeLike(const InferContext& c, std::string_view slot,
                             std::string_view like) {
  c.Require(c.dtype(slot) == c.dtype(like), slot, " is ", c.dtype(slot),
            " but ", like, " is ", c.dtype(like));
}
inline void RequireShape(const InferContext& c, std::string_view slot,
                         const Shape& shape) {
  c.Require(c.shape(slot) == shape, slot, " has shape ", c.shape(slot),
            ", expected ", shape);
}
// `slot` must have the dtype and shape of `like`.
inline void RequireLike(const InferContext& c, std::string_view slot,
                        std::string_view like) {
  RequireDTypeLike(c, slot, like);
  RequireShape(c, slot, c.shape(like));
}
// The accumulation pair: `acc` is given exactly with accumulate=true and has
// the type of the output.
inline void RequireAccumulator(const InferContext& c, DType dtype,
                               const Shape& shape) {
  const bool accumulate = c.attrs().GetBool("accumulate");
  c.Require(accumulate == c.Has("acc"), "accumulate is ",
            accumulate ? "true" : "false", " but acc is ",
            c.Has("acc") ? "given" : "missing");
  if (!accumulate) return;
  RequireDType(c, "acc", dtype);
  RequireShape(c, "acc", shape);
}

// The dimensions without the last one.
inline Shape LeadingDims(const Shape& shape) {
  std::vector<int64_t> dims = shape.dims();
  if (!dims.empty()) dims.pop_back();
  return Shape(std::move(dims));
}

// Bytes of all operands: the traffic of an op that touches each once.
inline double OperandBytes(const OpView& op) {
  double bytes = 0;
  for (const auto* slots : {&op.op().inputs, &op.op().outputs}) {
    for (const Slot& slot : *slots) {
      for (VarId id : slot.vars) {
        bytes += static_cast<double>(op.program().var(id).bytes());
      }
    }
  }
  return bytes;
}

}  // namespace plo

#endif  // PLO_OPERATORS_SCHEMA_UTIL_H_
