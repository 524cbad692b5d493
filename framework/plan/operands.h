// From programs to launches: which bytes of which storage every op touches.
#ifndef PLO_FRAMEWORK_PLAN_OPERANDS_H_
#define PLO_FRAMEWORK_PLAN_OPERANDS_H_

#include <cstdint>
#include <vector>

#include "framework/plan/plan.h"

namespace plo::planning {

// The byte range of an operand within its storage, widened over all ranks, so
// that every rank makes the same plan.
struct ByteRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool empty() const { return begin >= end; }
};
ByteRange RangeOfAllRanks(const Operand& operand, int world_size);

// Fills storages (without offsets and lifetimes) and graphs (without waits).
// Throws NotFound for a fetch or a param of an eval program that is not there,
// and InvalidArgument for a program whose bytes no sum could hold.
void BuildLaunches(const Program& program, const PlanOptions& options,
                   const OpRegistry& registry, Plan& plan);

// Lets outputs take over the storage of inputs where OpSchema::inplace allows
// it and nothing else sees the difference. Storages no operand names any more
// are removed.
void MergeInPlace(const std::vector<const Program*>& programs,
                  const OpRegistry& registry, Plan& plan);

// The programs of plan.graphs, in order.
std::vector<const Program*> GraphPrograms(const Program& program,
                                          const PlanOptions& options);

}  // namespace plo::planning

#endif  // PLO_FRAMEWORK_PLAN_OPERANDS_H_
