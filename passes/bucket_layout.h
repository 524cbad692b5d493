// Which params share a bucket, and where in it each of them lies.
#ifndef PLO_PASSES_BUCKET_LAYOUT_H_
#define PLO_PASSES_BUCKET_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "framework/ir/program.h"

namespace plo {

// Members start at multiples of this many elements, and every rank owns a
// multiple of it: vector loads never straddle two params or two ranks.
inline constexpr int64_t kBucketAlignment = 128;

struct BucketLayoutOptions {
  int64_t degree = 1;                        // ranks that share a bucket
  int64_t bucket_bytes = int64_t{25} << 20;  // of params, padding left out
};

// Buckets in the order in which forward first reads their members; params that
// nothing reads come last. A bucket holds whole params of one dtype, never
// spans two blocks (top-level components of the regions) and never mixes
// trainable and frozen params. A param above bucket_bytes, and a param read
// from several blocks (tied), has a bucket of its own. Fills in name, members,
// numel, shard_numel and trainable only. Near-linear in the program's size.
std::vector<Bucket> LayOutBuckets(const Program& program,
                                  const BucketLayoutOptions& options);

// The elements of a bucket that belong to no member, as [begin, end) pairs.
struct BucketGap {
  int64_t begin = 0;
  int64_t end = 0;
};
std::vector<BucketGap> BucketGaps(const Bucket& bucket);

}  // namespace plo

#endif  // PLO_PASSES_BUCKET_LAYOUT_H_
