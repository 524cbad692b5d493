// What all ranks must be told alike, compared before anything is built.
#ifndef PLO_PADDLE_LITE_OFFLOAD_RUN_CHECK_H_
#define PLO_PADDLE_LITE_OFFLOAD_RUN_CHECK_H_

#include <string>
#include <vector>

#include "framework/runtime/comm.h"
#include "paddle_lite_offload/batch_source.h"
#include "paddle_lite_offload/train_config.h"

namespace plo {

struct RunFact {
  std::string name;  // "--steps"
  std::string value;
};

// The version, the device, the flags and the data. Left out is what may be
// another on each host: paths (the data's contents stand for its path) and
// memory limits.
std::vector<RunFact> RunFacts(const TrainConfig& config, DeviceKind device,
                              const BatchSource& source);

// Throws FailedPrecondition on every rank unless all pass the same; the message
// names the first fact that differs, two ranks and their values.
void CheckSameRun(Comm& comm, const std::vector<RunFact>& facts);

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_RUN_CHECK_H_
