// Appends one JSON object per step to a file, under torchtitan's key names.
#ifndef PLO_PADDLE_LITE_OFFLOAD_METRICS_LOG_H_
#define PLO_PADDLE_LITE_OFFLOAD_METRICS_LOG_H_

#include <cstdint>
#include <string>

#include "framework/runtime/socket_utils.h"
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
  // Makes DIR and an empty DIR/metrics.jsonl. The log of an earlier run becomes
  // metrics.jsonl.1, or .2 and so on. Errors: see framework/ir/file_io.h.
  explicit MetricsLog(const std::string& dir);
  // On error the file ends with the line before.
  void Write(const StepMetrics& metrics);

 private:
  const std::string path_;
  Fd fd_;
};

// Of a run with --log_dir=DIR.
std::string MetricsPath(const std::string& dir);

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_METRICS_LOG_H_
