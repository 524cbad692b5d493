// What every comm shares: the reduction that defines its results, and the
// wording of its errors.
#ifndef PLO_FRAMEWORK_RUNTIME_COMM_COMMON_H_
#define PLO_FRAMEWORK_RUNTIME_COMM_COMMON_H_

#include <cstdint>
#include <string>
#include <vector>

#include "framework/ir/types.h"
#include "framework/runtime/comm.h"

namespace plo {

// output[i] = round(((x0 + x1) + x2) + ...) where xr = inputs[r][i], in fp32
// for floating types, wrapping for integers; or the largest, where a NaN wins
// over numbers and the lower rank wins among equals. `output` may be one of
// the inputs. Throws InvalidArgument for a sum of bools.
void ReduceInRankOrder(const std::vector<const void*>& inputs, void* output,
                       int64_t count, DType dtype, Reduction reduction);

// The part of `count` elements that `rank` reduces in an all_reduce: equal
// slices, the last ones short or empty.
struct SliceRange {
  int64_t begin;
  int64_t count;
};
SliceRange OwnSlice(int64_t count, int rank, int size);

// "all_reduce of 12 bf16"
std::string CollectiveName(const char* kind, int64_t count, DType dtype);
// "rank 3" or "ranks 1, 2, 5"
std::string RankList(const std::vector<int>& ranks);

// Throws InvalidArgument on a negative count or a null pointer to data.
void CheckCollectiveArguments(const char* kind, const void* data,
                              int64_t count);

}  // namespace plo

#endif  // PLO_FRAMEWORK_RUNTIME_COMM_COMMON_H_
