// One number for all params of a program.
#ifndef PLO_PADDLE_LITE_OFFLOAD_PARAM_DIGEST_H_
#define PLO_PADDLE_LITE_OFFLOAD_PARAM_DIGEST_H_

#include <cstdint>

#include "framework/runtime/executor.h"

namespace plo {

// Hash of the params' names, dtypes, shapes and bits, in the order of their
// names. Padding and layout play no part: equal bits give equal digests under
// any sharding. Completes all pending work first.
uint64_t ParamDigest(Executor& executor);

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_PARAM_DIGEST_H_
