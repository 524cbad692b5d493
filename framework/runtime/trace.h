// Traces: what ran when on which stream.
#ifndef PLO_FRAMEWORK_RUNTIME_TRACE_H_
#define PLO_FRAMEWORK_RUNTIME_TRACE_H_

#include <string>
#include <vector>

#include "framework/runtime/executor.h"

namespace plo {

// What a stream did in a step.
struct StreamUse {
  StreamKind stream = StreamKind::kCompute;
  double busy_ms = 0;
  // Of these, while the compute stream had nothing to do: what the stream costs
  // if compute could not have worked meanwhile.
  double exposed_ms = 0;            // compute: all of busy_ms
  double gigabytes_per_second = 0;  // TraceEvent::bytes while busy
};

// Means over the steps of `events`, but for the last, beside which no next one
// ran, unless there is no other. One entry for each stream that did something.
std::vector<StreamUse> SummarizeStreams(const std::vector<TraceEvent>& events);

// Writes Chrome's JSON trace format, which Perfetto also reads: one process per
// rank, one row per stream.
void WriteChromeTrace(const std::string& path,
                      const std::vector<TraceEvent>& events, int rank);

}  // namespace plo

#endif  // PLO_FRAMEWORK_RUNTIME_TRACE_H_
