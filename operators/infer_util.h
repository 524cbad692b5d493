// More short spellings for shape rules and costs, for elementwise ops and
// small records.
#ifndef PLO_OPERATORS_INFER_UTIL_H_
#define PLO_OPERATORS_INFER_UTIL_H_

#include <functional>
#include <string_view>

#include "framework/ir/op_registry.h"
#include "operators/schema_util.h"

namespace plo {

// A [1] operand, such as a loss, a scale or a counter.
inline void RequireScalar(const InferContext& c, std::string_view slot,
                          DType dtype = DType::kFp32) {
  c.Require(c.dtype(slot) == dtype && c.shape(slot) == Shape{1}, slot,
            " must be ", dtype, " [1], is ", c.dtype(slot), " ", c.shape(slot));
}

// The output has the type of an input.
inline void SetLike(InferContext& c, std::string_view out,
                    std::string_view in) {
  c.Set(out, c.dtype(in), c.shape(in));
}

// For OpSchema::cost: operand bytes and `flops` per element of the first
// output.
inline std::function<OpCost(const OpView&)> CostPerElement(double flops) {
  return [flops](const OpView& op) {
    const Var& out = op.program().var(op.op().outputs.front().vars.front());
    return OpCost{flops * static_cast<double>(out.shape.numel()),
                  OperandBytes(op)};
  };
}

}  // namespace plo

#endif  // PLO_OPERATORS_INFER_UTIL_H_
