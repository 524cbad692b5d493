// What the optimizer kernels of all devices take from an op's attributes.
#ifndef PLO_OPERATORS_ADAM_LAYOUT_H_
#define PLO_OPERATORS_ADAM_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "framework/runtime/kernel.h"
#include "operators/adam_kernels.h"
#include "operators/adam_math.h"

namespace plo {

// Throws InvalidArgument unless it is none, global_norm, norm or value.
ClipMode ParseClipMode(const std::string& name);

inline constexpr int64_t kPaddingPiece = -1;

// A run of the operands' elements: of one segment, or padding.
struct UpdatePiece {
  int64_t begin, end;
  int64_t segment;
};

struct UpdateLayout {
  UpdateRule rule;
  std::vector<SegmentRule> segments;
  std::vector<UpdatePiece> pieces;  // cover all elements, ascending
};

// What the CUDA kernel folds for each piece, in the op's scratch.
inline constexpr int64_t kScalarsPitch = 64;  // bytes
inline int64_t UpdateScratchBytes(int64_t segments) {
  return (2 * segments + 1) * kScalarsPitch;  // the most pieces there are
}

// Of an adamw, or else an sgd_momentum.
UpdateLayout MakeUpdateLayout(const KernelContext& ctx, bool adam);
UpdateOperands BindUpdateOperands(const KernelContext& ctx);

}  // namespace plo

#endif  // PLO_OPERATORS_ADAM_LAYOUT_H_
