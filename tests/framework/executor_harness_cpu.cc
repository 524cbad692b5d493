#include "tests/framework/executor_harness.h"

namespace plo::harness {

void RegisterCudaTestOps() {}

}  // namespace plo::harness
