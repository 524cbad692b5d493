// Host memory in whole pages, and the limits that devices put on it.
#ifndef PLO_FRAMEWORK_RUNTIME_HOST_PAGES_H_
#define PLO_FRAMEWORK_RUNTIME_HOST_PAGES_H_

#include <cstddef>
#include <cstdint>

#include "framework/ir/types.h"

namespace plo {

struct HostPages {
  void* data = nullptr;
  size_t mapped = 0;  // bytes, whole pages
};

// Throws InvalidArgument unless `bytes` is positive, and OutOfMemory, naming
// all three numbers, when they would pass the limit; 0 means none.
void CheckMemoryLimit(Place place, int64_t bytes, int64_t used, int64_t limit);

// Zeroed pages, huge ones where they help; the system provides each when it is
// first touched. Throws OutOfMemory.
HostPages MapHostPages(int64_t bytes);
void UnmapHostPages(const HostPages& pages);
// Touches all pages from several threads: much faster than letting the driver
// touch them one by one when it pins them.
void TouchHostPages(const HostPages& pages);

}  // namespace plo

#endif  // PLO_FRAMEWORK_RUNTIME_HOST_PAGES_H_
