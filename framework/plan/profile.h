// Where in a step there is room on the device, before anything has an address.
#ifndef PLO_FRAMEWORK_PLAN_PROFILE_H_
#define PLO_FRAMEWORK_PLAN_PROFILE_H_

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "framework/plan/plan.h"

namespace plo {

// Free from the completion of the op at `start` in one step up to the start of
// the op at `end` in the next.
struct RoomWindow {
  size_t start = 0;  // positions in DeviceProfile::ops, both of micro
  size_t end = 0;
};

struct DeviceProfile {
  // Ops of the compute stream, micro then update; kNoId for feeds and fetches.
  std::vector<OpId> ops;
  size_t micro_count = 0;  // ops[0, micro_count) are micro
  // Of equal slots that the plan will find bytes for without a higher peak. All
  // start in the last micro-step.
  std::vector<RoomWindow> windows;

  bool RunsInLastMicro(const Program& program, size_t position) const {
    return ops[position] != kNoId &&
           !program.op(ops[position]).first_micro_only;
  }
};

// Looks for up to `most` slots of `slot_bytes` whose windows hold the whole
// update, in what all temps but those of the `excluded` storages leave. The
// windows are those on any kind of device, whose kernels differ in their
// workspaces.
DeviceProfile ProfileDevice(const Program& program,
                            const std::unordered_set<VarId>& excluded,
                            int64_t slot_bytes, size_t most,
                            const OpRegistry& registry = OpRegistry::Global());

// Temps of category communication for which the plan of some kind of device
// will find no hole that the others leave.
std::unordered_set<VarId> TempsWithoutRoom(
    const Program& program, const OpRegistry& registry = OpRegistry::Global());

}  // namespace plo

#endif  // PLO_FRAMEWORK_PLAN_PROFILE_H_
