// Appends one JSON object per step to a file, under torchtitan's key names.
#ifndef PLO_PADDLE_LITE_OFFLOAD_METRICS_LOG_H_
#define PLO_PADDLE_LITE_OFFLOAD_METRICS_LOG_H_

#include <cstdint>
#include <fstream>
#include <string>

#include "paddle_lite_offload/engine.h"

namespace plo {

struct StepMetrics {
  int64_t step = 0;  // counted from 1
  StepResult result;
  double step_ms = 0;
  double tokens_per_second = 0;  // of this rank
  int64_t tokens_seen = 0;       // by all ranks
  int64_t peak_bytes = 0;        // of the device arena
};

class MetricsLog {
 public:
  // Makes DIR and DIR/metrics.jsonl. Throws NotFound when it cannot.
  explicit MetricsLog(const std::string& dir);
  void Write(const StepMetrics& metrics);

 private:
  std::ofstream file_;
};

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_METRICS_LOG_H_
