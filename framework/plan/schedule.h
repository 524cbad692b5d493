// Waits between streams, and what they prove about the order of launches.
#ifndef PLO_FRAMEWORK_PLAN_SCHEDULE_H_
#define PLO_FRAMEWORK_PLAN_SCHEDULE_H_

#include <array>
#include <cstdint>
#include <vector>

#include "framework/plan/plan.h"

namespace plo::planning {

// A number of the issue order of the unrolled steps; grows along every stream.
using InstanceIndex = int32_t;

// Per stream the last instance known complete, -1 for none.
using Clock = std::array<InstanceIndex, kStreamCount>;

// One repetition of a section.
struct Block {
  Section section = Section::kMicro;
  int step = 0;
  InstanceIndex first = 0;
  InstanceIndex end = 0;
};

// A few consecutive steps of a graph, launch by launch. Three micro-steps stand
// for any larger number: the first, one in between, the last.
struct Timeline {
  std::vector<LaunchIndex> launch;  // by instance
  std::vector<Block> blocks;
  // What is known complete when an instance starts. Its stream's earlier
  // instances are.
  std::vector<Clock> known;

  InstanceIndex size() const {
    return static_cast<InstanceIndex>(launch.size());
  }
};

// Enough steps that the middle one is in the steady state and has a past and
// a future.
inline constexpr int kUnrolledSteps = 3;
inline constexpr int kUnrolledMicros = 3;

// Sets the waits of the launches of plan.graphs[graph] and returns the order
// they prove. Dependencies are those between accesses of overlapping bytes of a
// storage, one of them a write, and Op::after.
Timeline ScheduleGraph(const Program& program, int graph, Plan& plan);

}  // namespace plo::planning

#endif  // PLO_FRAMEWORK_PLAN_SCHEDULE_H_
