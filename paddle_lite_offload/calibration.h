// Measures what a machine does per second.
#ifndef PLO_PADDLE_LITE_OFFLOAD_CALIBRATION_H_
#define PLO_PADDLE_LITE_OFFLOAD_CALIBRATION_H_

#include <cstdint>
#include <functional>
#include <string>

#include "framework/ir/types.h"
#include "framework/plan/rates.h"
#include "framework/runtime/comm.h"

namespace plo {

struct CalibrationOptions {
  DeviceKind device = DeviceKind::kCpu;
  Comm* comm = nullptr;  // null for one rank
  int local_rank = 0;
  int local_world_size = 1;
  // Of what is copied; 0: so much that caches hold little of it.
  int64_t buffer_bytes = 0;
  double seconds = 0.3;  // of each measurement
  // Called with a line for each result of this rank.
  std::function<void(const std::string&)> progress = {};
};

// All ranks make the call and work at the same time, as in training; each rate
// is the least of any rank. The rates have no name. Throws OutOfMemory when
// there is no room for the buffers.
Rates MeasureRates(const CalibrationOptions& options);

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_CALIBRATION_H_
