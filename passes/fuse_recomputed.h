// Rule 4 of fuse_ops: what backward runs again comes out of the gradient op.
#ifndef PLO_PASSES_FUSE_RECOMPUTED_H_
#define PLO_PASSES_FUSE_RECOMPUTED_H_

#include "framework/ir/program.h"

namespace plo {

// Returns whether the program changed.
bool FuseRecomputed(Program& program);

}  // namespace plo

#endif  // PLO_PASSES_FUSE_RECOMPUTED_H_
