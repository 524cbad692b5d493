// Tiled attention over strided operands: what attention and attention_qkv
// share.
//
// Scores exist one tile at a time. Each task owns one (batch, kv head) and runs
// its tiles in a fixed order on one thread, so the bits depend on the shapes
// only. Tasks are dealt to at most kMaxLanes lanes, each with a scratch of its
// own, so the workspace depends on the shapes only, too.
#ifndef PLO_OPERATORS_ATTENTION_CORE_H_
#define PLO_OPERATORS_ATTENTION_CORE_H_

#include <cstdint>

#include "framework/ir/types.h"

namespace plo {

struct AttentionShape {
  int64_t batch = 0, seq = 0, heads = 0, kv_heads = 0, dim = 0;
  DType dtype = DType::kFp32;
  bool causal = false;
  float scale = 1.0f;
};

// A [batch, seq, heads, dim] operand: element (b, s, h, d) is at
// data + b * seq * row + s * row + h * dim + d.
struct HeadsView {
  void* data = nullptr;
  int64_t row = 0;  // elements from one position to the next
};

struct AttentionForward {
  HeadsView q, k, v, out;
  float* lse = nullptr;  // [batch, heads, seq]
};
struct AttentionBackward {
  HeadsView q, k, v, out, dout, dq, dk, dv;
  const float* lse = nullptr;
};

int64_t AttentionForwardWorkspace(const AttentionShape& shape);
int64_t AttentionBackwardWorkspace(const AttentionShape& shape);
void RunAttentionForward(const AttentionShape& shape,
                         const AttentionForward& operands, void* workspace);
void RunAttentionBackward(const AttentionShape& shape,
                          const AttentionBackward& operands, void* workspace);

// Multiply-adds times two of one product of all visible tiles.
double AttentionProductFlops(const AttentionShape& shape);

}  // namespace plo

#endif  // PLO_OPERATORS_ATTENTION_CORE_H_
