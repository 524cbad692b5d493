// How offloaded optimizer updates are split between the host and the device.
#ifndef PLO_FRAMEWORK_PLAN_UPDATE_SPLIT_H_
#define PLO_FRAMEWORK_PLAN_UPDATE_SPLIT_H_

#include <cstdint>
#include <vector>

#include "framework/plan/rates.h"

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
  double grad = 2;          // stays on the device until it is streamed
  double param = 2;         // goes up after it
  double streamed = 12;     // states that go up, and down again
};

// Seconds from the end of the last backward to that of all updates, of which
// `host` elements are the host's and `streamed` ones go through the device.
// Uploads of states run for `hidden_seconds` before that, under the backward.
// docs/planning.md has the formula and the measurements behind it.
double UpdateSeconds(double host, double streamed, const UpdateTraffic& traffic,
                     const Rates& rates, double hidden_seconds);

// The fraction, of those that differ in one part, with which all updates end
// first; of those that end as soon, within 2 %, the largest, which leaves the
// host most to itself. `elements` are those of each part.
double BestStreamedFraction(const std::vector<int64_t>& elements,
                            const UpdateTraffic& traffic, const Rates& rates,
                            double hidden_seconds);

}  // namespace plo

#endif  // PLO_FRAMEWORK_PLAN_UPDATE_SPLIT_H_
