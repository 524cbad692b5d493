// The built-in passes and their default order.
#ifndef PLO_PASSES_PIPELINE_H_
#define PLO_PASSES_PIPELINE_H_

namespace plo {

// Fills PassRegistry::Global(). Idempotent and thread-safe.
void RegisterBuiltinPasses();

}  // namespace plo

#endif  // PLO_PASSES_PIPELINE_H_
