// Traces: what ran when on which stream.
#ifndef PLO_FRAMEWORK_RUNTIME_TRACE_H_
#define PLO_FRAMEWORK_RUNTIME_TRACE_H_

#include <string>
#include <vector>

#include "framework/runtime/executor.h"

namespace plo {

// Writes Chrome's JSON trace format, which Perfetto also reads: one process per
// rank, one row per stream.
void WriteChromeTrace(const std::string& path,
                      const std::vector<TraceEvent>& events, int rank);

}  // namespace plo

#endif  // PLO_FRAMEWORK_RUNTIME_TRACE_H_
