// The workspace of embedding_grad on a GPU.
#ifndef PLO_OPERATORS_EMBEDDING_PLAN_H_
#define PLO_OPERATORS_EMBEDDING_PLAN_H_

#include <cstdint>

namespace plo {

// A radix sort orders the positions by id, stably, a digit at a time; then the
// rows of each id are summed in groups of kEmbeddingGroup positions.
inline constexpr int kEmbeddingDigitBits = 8;
inline constexpr int64_t kEmbeddingDigits = int64_t{1} << kEmbeddingDigitBits;
inline constexpr int64_t kEmbeddingTile = 2048;  // positions of a block
inline constexpr int64_t kEmbeddingGroup = 64;

struct EmbeddingPlan {
  int passes = 1;
  int64_t tiles = 0;
  // Offsets in 4-byte words.
  int64_t sums = 0;    // fp32, two rows for each group of sorted positions
  int64_t counts = 0;  // of each digit in each tile
  int64_t firsts = 0;  // of each row that occurs: its first sorted position
  // Pass p writes keys[p % 2] and positions[p % 2]. The last words of all are
  // those of pass 0, which always runs.
  int64_t keys[2] = {};
  int64_t positions[2] = {};
  int64_t words = 0;
};

inline EmbeddingPlan MakeEmbeddingPlan(int64_t count, int64_t rows,
                                       int64_t hidden) {
  EmbeddingPlan plan;
  if (count == 0) return plan;
  while (plan.passes * kEmbeddingDigitBits < 31 &&
         (rows - 1) >> (plan.passes * kEmbeddingDigitBits) > 0) {
    ++plan.passes;
  }
  plan.tiles = (count + kEmbeddingTile - 1) / kEmbeddingTile;
  const auto take = [&](int64_t words) {
    const int64_t at = plan.words;
    plan.words += words;
    return at;
  };
  plan.sums =
      take(2 * ((count + kEmbeddingGroup - 1) / kEmbeddingGroup) * hidden);
  plan.counts = take(kEmbeddingDigits * plan.tiles);
  plan.firsts = take(rows);
  for (int i = 1; i >= 0; --i) {
    plan.keys[i] = take(count);
    plan.positions[i] = take(count);
  }
  return plan;
}

}  // namespace plo

#endif  // PLO_OPERATORS_EMBEDDING_PLAN_H_
