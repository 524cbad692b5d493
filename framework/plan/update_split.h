// How offloaded optimizer updates are split between the host and the device.
#ifndef PLO_FRAMEWORK_PLAN_UPDATE_SPLIT_H_
#define PLO_FRAMEWORK_PLAN_UPDATE_SPLIT_H_

#include <cstdint>
#include <vector>

#include "framework/plan/simulator.h"

namespace plo {

// True for the parts to stream through the device: whole parts whose bytes come
// near to `fraction` of all, alternating with the others as evenly as they can.
// The first part, which the next forward needs at once, is among them if the
// fraction has room for it: its states are on the device before the gradients
// are, where the host could only begin.
std::vector<bool> SplitUpdates(const std::vector<int64_t>& bytes,
                               double fraction);

// Bytes per element of an update.
struct UpdateTraffic {
  double host_update = 28;  // what the host's update reads and writes
  double param = 2;         // goes up after it
  double streamed = 12;     // states that go up, and down again
};

// The fraction, of those that differ in one part, with which all updates end
// first: the host's updates, both directions of the link and the host's memory,
// which all of them use, work side by side. `elements` are those of each part.
double BestStreamedFraction(const std::vector<int64_t>& elements,
                            const UpdateTraffic& traffic, const Rates& rates);

}  // namespace plo

#endif  // PLO_FRAMEWORK_PLAN_UPDATE_SPLIT_H_
