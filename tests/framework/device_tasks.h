// Work for tasks of any device.
#ifndef PLO_TESTS_FRAMEWORK_DEVICE_TASKS_H_
#define PLO_TESTS_FRAMEWORK_DEVICE_TASKS_H_

#include <cstdint>

namespace plo {

// In a task: copies between device and pinned memory, on the task's native
// stream where it has one.
void CopyInTask(void* dst, const void* src, int64_t bytes, void* native_stream);

}  // namespace plo

#endif  // PLO_TESTS_FRAMEWORK_DEVICE_TASKS_H_
