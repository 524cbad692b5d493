// How linear_cross_entropy is cut on CUDA, and its scratch; no CUDA needed.
//
// Logits exist for all tokens and one block of classes at a time. So each block
// gives its rows of dweight in one product over all tokens, and only dx, much
// smaller than dweight, is summed over blocks: in the output for fp32, else in
// fp32 in the workspace. Forward and backward cut alike and see the same
// logits.
#ifndef PLO_OPERATORS_LINEAR_CROSS_ENTROPY_PLAN_H_
#define PLO_OPERATORS_LINEAR_CROSS_ENTROPY_PLAN_H_

#include <algorithm>
#include <cstdint>

#include "framework/ir/types.h"
#include "operators/cublas_workspace.h"

namespace plo {

struct LinearCrossEntropyBlocks {
  DType dtype = DType::kFp32;
  int64_t tokens = 0, classes = 0, hidden = 0;
  int64_t class_block = 0;
  int64_t pitch = 0;  // elements from one row of logits to the next
  // Byte offsets in the workspace.
  int64_t row_max = 0, row_sum = 0, row_loss = 0;  // forward: fp32 [tokens]
  int64_t dx_sums = 0;                             // backward
  int64_t logits = 0;  // last; the products' scratch is first
  int64_t total_bytes = 0;

  int64_t cublas_bytes() const { return cublas_bytes_; }
  // Whether dx is summed apart from the output.
  bool sums_dx() const { return Is16Bit(dtype) && class_block < classes; }

  // `chunk_tokens` > 0 bounds a block of logits to that many tokens' worth of
  // classes.
  LinearCrossEntropyBlocks(DType type, int64_t token_count, int64_t class_count,
                           int64_t hidden_size, int64_t chunk_tokens)
      : dtype(type),
        tokens(token_count),
        classes(class_count),
        hidden(hidden_size) {
    if (tokens == 0) return;
    int64_t most = kLogitsBytes / (tokens * SizeOf(dtype));
    if (chunk_tokens > 0) most = chunk_tokens * classes / tokens;
    most = std::clamp(most / kAlign * kAlign, kAlign, RoundUp(classes, kAlign));
    const int64_t blocks = (classes + most - 1) / most;
    class_block =
        std::min(classes, RoundUp((classes + blocks - 1) / blocks, kAlign));
    pitch = RoundUp(class_block, 8);
    cublas_bytes_ = CublasWorkspaceBytes(tokens * class_block, hidden);
  }

  void LayOutForward() {
    if (tokens == 0) return;
    row_max = Take(tokens * kFloat);
    row_sum = Take(tokens * kFloat);
    row_loss = Take(tokens * kFloat);
    LayOutLogits();
  }

  void LayOutBackward(bool want_dx) {
    if (tokens == 0) return;
    if (want_dx && sums_dx()) dx_sums = Take(tokens * hidden * kFloat);
    LayOutLogits();
  }

 private:
  // A block of logits: large enough for the products to run at full speed,
  // small beside what else a step holds at its peak.
  static constexpr int64_t kLogitsBytes = int64_t{160} << 20;
  static constexpr int64_t kAlign = 128;
  static constexpr int64_t kFloat = sizeof(float);

  static int64_t RoundUp(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

  // Segments start at multiples of 256 bytes, behind the products' scratch.
  int64_t Take(int64_t bytes) {
    const int64_t begin = RoundUp(std::max(total_bytes, cublas_bytes_), 256);
    total_bytes = begin + bytes;
    return begin;
  }
  // To the last element that the first block writes.
  void LayOutLogits() {
    logits = Take(((tokens - 1) * pitch + class_block) * SizeOf(dtype));
  }

  int64_t cublas_bytes_ = 0;  // the same for all three products
};

}  // namespace plo

#endif  // PLO_OPERATORS_LINEAR_CROSS_ENTROPY_PLAN_H_
