// Class labels: int32, in [0, classes) or equal to ignore_index.
#ifndef PLO_OPERATORS_LABELS_H_
#define PLO_OPERATORS_LABELS_H_

#include <cstdint>

#include "framework/ir/error.h"
#include "framework/ir/op_registry.h"
#include "framework/runtime/kernel.h"
#include "operators/schema_util.h"

namespace plo {

// One label for each row of a tensor of shape `rows`: [..., row length].
inline void RequireLabels(const InferContext& c, const Shape& rows) {
  RequireDType(c, "labels", DType::kInt32);
  RequireShape(c, "labels", LeadingDims(rows));
}

// Throws InvalidArgument naming the first label out of range.
inline void CheckLabels(const Tensor& labels, int64_t ignore_index,
                        int64_t classes) {
  const int32_t* values = labels.as<int32_t>();
  for (int64_t i = 0; i < labels.numel; ++i) {
    const int64_t label = values[i];
    PLO_ENFORCE(label == ignore_index || (label >= 0 && label < classes),
                kInvalidArgument, "label ", label, " at position ", i,
                " is out of range [0, ", classes, ")");
  }
}

}  // namespace plo

#endif  // PLO_OPERATORS_LABELS_H_
