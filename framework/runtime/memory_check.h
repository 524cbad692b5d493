// Measures what a run does to the arenas, independently of the planner.
#ifndef PLO_FRAMEWORK_RUNTIME_MEMORY_CHECK_H_
#define PLO_FRAMEWORK_RUNTIME_MEMORY_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "framework/runtime/executor_core.h"

namespace plo {

// Fills memory with the 16-bit pattern 0x7FFE: NaN in every float type, and as
// an index out of any range, so that reads of unwritten memory show.
void FillCanary(Device& device, std::byte* data, int64_t bytes);
// Highest byte without the canary, plus one.
int64_t TouchedBytes(Device& device, const std::byte* data, int64_t bytes);

// Most device bytes live at once, from the operands and waits of the launches
// issued so far; the plan's own live ranges are not looked at. Lifetimes are
// measured as in plan.h.
struct LivePeak {
  int64_t bytes = 0;
  CategoryBytes by_category{};
};
LivePeak MeasureLivePeak(const ExecutorCore& core);

// Checks around each launch of a serial run (ExecutorOptions::verify_writes and
// poison_freed). With verify_writes it keeps a copy of both arenas and, for
// every kArenaAlignment bytes, the storage through which they were last
// written.
class MemoryCheck {
 public:
  explicit MemoryCheck(ExecutorCore& core);

  // Throws Internal if an input's bytes were last written through another
  // storage: its lifetime is declared too short.
  void Before(const BoundLaunch& bound);
  // Throws Internal if bytes outside the declared writes changed.
  void After(const BoundLaunch& bound);
  // The caller wrote a range of a storage: a feed, a param.
  void NoteWrite(const BoundRange& range);

 private:
  struct Arena {
    Place place;
    std::byte* data = nullptr;
    int64_t bytes = 0;                  // with the guard
    std::vector<std::byte> copy;        // empty without verify_writes
    std::vector<StorageIndex> writers;  // -1: nobody
  };

  Arena& ArenaOf(const BoundRange& range);
  void CheckReads(const BoundLaunch& bound);
  void CheckWrites(const BoundLaunch& bound, Arena& arena);
  [[noreturn]] void FailWrite(const BoundLaunch& bound, Arena& arena,
                              int64_t offset);
  // Overwrites what is no longer live at an event of the compute axis.
  void PoisonDead(const BoundLaunch& bound, int32_t event);
  void Poison(Arena& arena, int64_t begin, int64_t end);
  void Refresh(Arena& arena, int64_t begin, int64_t end);

  ExecutorCore& core_;
  Arena arenas_[2];  // by Place
  std::vector<std::byte> buffer_;
  std::vector<bool> written_;  // by storage, since it was last poisoned
};

}  // namespace plo

#endif  // PLO_FRAMEWORK_RUNTIME_MEMORY_CHECK_H_
