// What a finished plan costs: peaks, transfers, limits.
#ifndef PLO_FRAMEWORK_PLAN_REPORT_H_
#define PLO_FRAMEWORK_PLAN_REPORT_H_

#include <string>
#include <vector>

#include "framework/plan/plan.h"

namespace plo::planning {

// Where the most bytes of a place are live.
struct PeakPoint {
  int graph = 0;      // kStartupGraph for the startup section
  int32_t event = 0;  // on that graph's axis
  int64_t bytes = 0;
};
PeakPoint FindPeak(const Plan& plan, Place place);

// The storages live at a point, persistent ones included, by index.
std::vector<StorageIndex> LiveAt(const Plan& plan, Place place,
                                 const PeakPoint& point);

// "op 'matmul' #12 (layer0)", "feed 'x'": how messages name a launch.
std::string DescribeLaunch(const Program& program, const Launch& launch);

// Fills the peaks of both places but for arena_bytes.
void ReportPeaks(const std::vector<const Program*>& programs, Plan& plan);

// Fills the bytes per step and host_state_bytes.
void ReportTransfers(const Program& program, const OpRegistry& registry,
                     Plan& plan);

// Bytes the ring algorithm of a collective makes a rank send; 0 for one rank.
int64_t RingBytes(const Launch& launch, std::string_view op_type,
                  int world_size);

// Throws OutOfMemory if the arena of `place` is above `limit` (0: no limit).
void CheckLimit(const Plan& plan, Place place, int64_t limit);

}  // namespace plo::planning

#endif  // PLO_FRAMEWORK_PLAN_REPORT_H_
