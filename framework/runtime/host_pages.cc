#include "framework/runtime/host_pages.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "framework/ir/error.h"

namespace plo {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kHugePageBytes = 2 << 20;
// Below this many bytes each, threads do not pay.
constexpr size_t kTouchBytes = 64 << 20;
constexpr size_t kMostTouchThreads = 16;

size_t UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return static_cast<size_t>(CPU_COUNT(&set));
}

void Touch(char* begin, char* end) {
  for (char* page = begin; page < end; page += kPageBytes) {
    *static_cast<volatile char*>(page) = 0;
  }
}

}  // namespace

void CheckMemoryLimit(Place place, int64_t bytes, int64_t used, int64_t limit) {
  PLO_ENFORCE(bytes > 0, kInvalidArgument, "allocation of ", bytes, " bytes");
  PLO_ENFORCE(limit == 0 || bytes <= limit - used, kOutOfMemory, Name(place),
              " memory: ", bytes, " bytes asked for, ", used,
              " in use, the limit is ", limit);
}

HostPages MapHostPages(int64_t bytes) {
  HostPages pages;
  pages.mapped =
      (static_cast<size_t>(bytes) + kPageBytes - 1) / kPageBytes * kPageBytes;
  pages.data = mmap(nullptr, pages.mapped, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  PLO_ENFORCE(pages.data != MAP_FAILED, kOutOfMemory, "host memory: ", bytes,
              " bytes asked for, the system has no more");
  if (pages.mapped >= kHugePageBytes) {
    madvise(pages.data, pages.mapped, MADV_HUGEPAGE);
  }
  return pages;
}

void UnmapHostPages(const HostPages& pages) {
  munmap(pages.data, pages.mapped);
}

void TouchHostPages(const HostPages& pages) {
  char* const begin = static_cast<char*>(pages.data);
  char* const end = begin + pages.mapped;
  const size_t count = std::min(
      {UsableCores(), kMostTouchThreads, pages.mapped / kTouchBytes + 1});
  // Pieces of whole huge pages, so that no two threads fault the same one in.
  const size_t piece =
      (pages.mapped / count / kHugePageBytes + 1) * kHugePageBytes;
  std::vector<std::thread> threads;
  for (size_t at = 0; at < pages.mapped; at += piece) {
    char* const from = begin + at;
    char* const to = begin + std::min(at + piece, pages.mapped);
    if (to == end) {
      Touch(from, to);
    } else {
      threads.emplace_back([from, to] { Touch(from, to); });
    }
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace plo
