// The factories of the built-in passes; each pass's file explains it. They take
// their options from `options`, whose getters check the values.
#ifndef PLO_PASSES_PASSES_H_
#define PLO_PASSES_PASSES_H_

#include <memory>

#include "passes/pass.h"

namespace plo {

std::unique_ptr<Pass> MakeApplyAmp(PassOptions& options);
std::unique_ptr<Pass> MakeAppendBackward(PassOptions& options);
std::unique_ptr<Pass> MakeRecompute(PassOptions& options);
std::unique_ptr<Pass> MakeShardOptimizer(PassOptions& options);
std::unique_ptr<Pass> MakeAccumulateMicroSteps(PassOptions& options);
std::unique_ptr<Pass> MakeCheckGradients(PassOptions& options);
std::unique_ptr<Pass> MakeInsertLossScaling(PassOptions& options);
std::unique_ptr<Pass> MakeClipGradients(PassOptions& options);
std::unique_ptr<Pass> MakeInsertOptimizer(PassOptions& options);
std::unique_ptr<Pass> MakeOffloadOptimizer(PassOptions& options);
std::unique_ptr<Pass> MakeFuseOps(PassOptions& options);
std::unique_ptr<Pass> MakeScheduleTransfers(PassOptions& options);

}  // namespace plo

#endif  // PLO_PASSES_PASSES_H_
