// How full the device is over a step, before anything has an address.
#ifndef PLO_FRAMEWORK_PLAN_PROFILE_H_
#define PLO_FRAMEWORK_PLAN_PROFILE_H_

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "framework/plan/plan.h"

namespace plo {

// Along the compute axis of the training graph; see the Note in plan.h.
struct DeviceProfile {
  // Ops of the compute stream, micro then update; kNoId for feeds.
  std::vector<OpId> ops;
  size_t micro_count = 0;  // ops[0, micro_count) are micro
  // By event: bytes free below the peak. Events 2i and 2i + 1 are the start and
  // the completion of ops[i].
  std::vector<int64_t> room;
};

// Leaves out the temps whose storage is in `excluded`. The room is what there
// is on any kind of device, whose kernels differ in their workspaces.
DeviceProfile ProfileDevice(const Program& program,
                            const std::unordered_set<VarId>& excluded,
                            const OpRegistry& registry = OpRegistry::Global());

}  // namespace plo

#endif  // PLO_FRAMEWORK_PLAN_PROFILE_H_
