// Registers the library's ops and kernels; see operators/CMakeLists.txt.
#ifndef PLO_OPERATORS_REGISTER_OPS_H_
#define PLO_OPERATORS_REGISTER_OPS_H_

#include "framework/ir/op_registry.h"
#include "framework/runtime/kernel.h"

namespace plo {

// Idempotent and thread-safe.
void RegisterBuiltinOps();

}  // namespace plo

#endif  // PLO_OPERATORS_REGISTER_OPS_H_
