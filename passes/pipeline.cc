#include "passes/pipeline.h"

#include <mutex>

#include "passes/passes.h"

namespace plo {

void RegisterBuiltinPasses() {
  static std::once_flag once;
  std::call_once(once, [] {
    PassRegistry& registry = PassRegistry::Global();
    (void)registry;
  });
}

}  // namespace plo
