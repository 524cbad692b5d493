#include <cstring>

#include "tests/framework/device_tasks.h"

namespace plo {

void CopyInTask(void* dst, const void* src, int64_t bytes, void*) {
  std::memcpy(dst, src, static_cast<size_t>(bytes));
}

}  // namespace plo
