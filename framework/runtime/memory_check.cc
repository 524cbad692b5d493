#include "framework/runtime/memory_check.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "framework/ir/error.h"

namespace plo {
namespace {

constexpr int64_t kChunk = 1 << 20;
constexpr int64_t kMostCopied = 8 << 20;
constexpr std::byte kCanary[2] = {std::byte{0xFE}, std::byte{0x7F}};
constexpr std::byte kPoison{0xFF};  // NaN in every float type, -1 as an index

std::vector<std::byte> CanaryChunk() {
  std::vector<std::byte> chunk(kChunk);
  for (size_t i = 0; i < chunk.size(); ++i) chunk[i] = kCanary[i % 2];
  return chunk;
}

bool LiveAt(const Storage& storage, int32_t event) {
  for (const LiveRange& range : storage.live) {
    if (range.begin <= event && event < range.end) return true;
  }
  return false;
}

// Pieces of [begin, end) that none of the ranges in `holes` covers.
using Pieces = std::vector<std::pair<int64_t, int64_t>>;
Pieces Without(int64_t begin, int64_t end, Pieces holes) {
  std::sort(holes.begin(), holes.end());
  Pieces result;
  for (const auto& [hole_begin, hole_end] : holes) {
    if (hole_begin >= end) break;
    if (hole_begin > begin) result.emplace_back(begin, hole_begin);
    begin = std::max(begin, hole_end);
  }
  if (begin < end) result.emplace_back(begin, end);
  return result;
}

}  // namespace

void FillCanary(Device& device, std::byte* data, int64_t bytes) {
  // From the host once, then from what is filled: an accelerator copies much
  // faster within its own memory.
  int64_t at = std::min(kChunk, bytes);
  device.Write(CanaryChunk().data(), data, at);
  while (at < bytes) {
    const int64_t count = std::min({at, kMostCopied, bytes - at});
    device.Write(data, data + at, count);
    at += count;
  }
}

int64_t TouchedBytes(Device& device, const std::byte* data, int64_t bytes) {
  const std::vector<std::byte> canary = CanaryChunk();
  std::vector<std::byte> chunk(kChunk);
  for (int64_t at = (bytes - 1) / kChunk * kChunk; at >= 0; at -= kChunk) {
    const int64_t count = std::min(kChunk, bytes - at);
    device.Read(data + at, chunk.data(), count);
    for (int64_t i = count; i-- > 0;) {
      const auto byte = static_cast<size_t>(i);
      if (chunk[byte] != canary[byte]) return at + i + 1;
    }
  }
  return 0;
}

MemoryCheck::MemoryCheck(ExecutorCore& core)
    : core_(core), buffer_(kChunk), written_(core.plan.storages.size(), false) {
  arenas_[0] = Arena{Place::kDevice,
                     core.device_arena,
                     core.plan.device.arena_bytes + core.guard_bytes,
                     {},
                     {}};
  arenas_[1] = Arena{
      Place::kPinned, core.pinned_arena, core.plan.pinned.arena_bytes, {}, {}};
  if (!core.options.verify_writes) return;
  for (Arena& arena : arenas_) {
    arena.copy.resize(static_cast<size_t>(arena.bytes));
    arena.writers.assign(static_cast<size_t>(arena.bytes / kArenaAlignment + 1),
                         -1);
    Refresh(arena, 0, arena.bytes);
  }
}

MemoryCheck::Arena& MemoryCheck::ArenaOf(const BoundRange& range) {
  const auto storage = static_cast<size_t>(range.storage);
  return arenas_[static_cast<size_t>(core_.plan.storages[storage].place)];
}

// Brings the copy up to date with what the arena holds.
void MemoryCheck::Refresh(Arena& arena, int64_t begin, int64_t end) {
  if (begin < end && !arena.copy.empty()) {
    core_.device.Read(arena.data + begin, arena.copy.data() + begin,
                      end - begin);
  }
}

void MemoryCheck::NoteWrite(const BoundRange& range) {
  written_[static_cast<size_t>(range.storage)] = true;
  Arena& arena = ArenaOf(range);
  if (arena.copy.empty() || range.bytes == 0) return;
  const int64_t begin = range.data - arena.data;
  const int64_t end = begin + range.bytes;
  Refresh(arena, begin, end);
  std::fill(arena.writers.begin() + begin / kArenaAlignment,
            arena.writers.begin() + (end - 1) / kArenaAlignment + 1,
            range.storage);
}

void MemoryCheck::Before(const BoundLaunch& bound) {
  if (core_.options.poison_freed &&
      (bound.launch->stream == StreamKind::kCompute ||
       bound.launch->section == Section::kStartup)) {
    PoisonDead(bound, 2 * bound.position);
  }
  if (core_.options.verify_writes) CheckReads(bound);
}

void MemoryCheck::After(const BoundLaunch& bound) {
  if (core_.options.verify_writes) {
    for (Arena& arena : arenas_) CheckWrites(bound, arena);
  }
  for (BoundRange range : bound.ranges) {
    if (!range.write) continue;
    range.data = bound.AddressOf(range, bound.runs - 1);
    NoteWrite(range);
  }
  if (core_.options.poison_freed &&
      (bound.launch->stream == StreamKind::kCompute ||
       bound.launch->section == Section::kStartup)) {
    PoisonDead(bound, 2 * bound.position + 1);
  }
}

void MemoryCheck::CheckReads(const BoundLaunch& bound) {
  for (const BoundRange& range : bound.ranges) {
    if (!range.read || range.var == kNoId || range.bytes == 0) continue;
    // Bytes updated in place may have gaps that nobody has written yet.
    const bool updated = std::any_of(
        bound.ranges.begin(), bound.ranges.end(), [&](const BoundRange& other) {
          return other.write && other.data < range.data + range.bytes &&
                 range.data < other.data + other.bytes;
        });
    if (updated) continue;
    const Storage& storage =
        core_.plan.storages[static_cast<size_t>(range.storage)];
    const Arena& arena = ArenaOf(range);
    const int64_t begin = range.data - arena.data;
    const int64_t last = begin + range.bytes - 1;
    for (int64_t i = begin / kArenaAlignment; i <= last / kArenaAlignment;
         ++i) {
      const StorageIndex writer = arena.writers[static_cast<size_t>(i)];
      if (writer == range.storage || (writer < 0 && storage.persistent)) {
        continue;
      }
      PLO_ENFORCE(writer >= 0, kInternal, "reads ",
                  Describe(bound.graph->program->var(range.var)),
                  ", which holds nothing written");
      PLO_THROW(kInternal, "reads ",
                Describe(bound.graph->program->var(range.var)),
                " after its bytes were overwritten through storage '",
                core_.plan.storages[static_cast<size_t>(writer)].name, "'");
    }
  }
}

void MemoryCheck::CheckWrites(const BoundLaunch& bound, Arena& arena) {
  Pieces writes;
  for (const BoundRange& range : bound.ranges) {
    if (!range.write || range.bytes == 0 || &ArenaOf(range) != &arena) continue;
    const int64_t begin = bound.AddressOf(range, bound.runs - 1) - arena.data;
    writes.emplace_back(begin, begin + range.bytes);
  }
  for (const auto& [begin, end] : Without(0, arena.bytes, std::move(writes))) {
    for (int64_t at = begin; at < end; at += kChunk) {
      const int64_t count = std::min(kChunk, end - at);
      core_.device.Read(arena.data + at, buffer_.data(), count);
      const std::byte* expected = arena.copy.data() + at;
      if (std::memcmp(buffer_.data(), expected, static_cast<size_t>(count)) ==
          0) {
        continue;
      }
      const auto different =
          std::mismatch(expected, expected + count, buffer_.data());
      FailWrite(bound, arena, at + (different.first - expected));
    }
  }
}

void MemoryCheck::FailWrite(const BoundLaunch& bound, Arena& arena,
                            int64_t offset) {
  Refresh(arena, 0, arena.bytes);  // so that it is reported once
  std::string where;
  for (const BoundRange& range : bound.ranges) {
    const int64_t end = range.data + range.bytes - arena.data;
    if (&ArenaOf(range) != &arena || !range.write || offset < end ||
        offset >= end + kArenaAlignment) {
      continue;
    }
    where += StrCat(", ", offset - end, " bytes past the end of ",
                    range.var == kNoId
                        ? "its workspace"
                        : Describe(bound.graph->program->var(range.var)));
  }
  for (const Storage& storage : core_.plan.storages) {
    if (storage.place == arena.place && offset >= storage.offset &&
        offset < storage.offset + storage.bytes) {
      where += StrCat(", in storage '", storage.name, "'");
    }
  }
  PLO_THROW(kInternal, "wrote byte ", offset, " of the ", Name(arena.place),
            " arena, which it does not declare", where);
}

void MemoryCheck::PoisonDead(const BoundLaunch& bound, int32_t event) {
  int graph = kStartupGraph;
  if (bound.launch->section != Section::kStartup) {
    graph = 0;
    while (core_.graphs[static_cast<size_t>(graph)].get() != bound.graph) {
      ++graph;
    }
  }
  const std::vector<Storage>& storages = core_.plan.storages;
  for (size_t i = 0; i < storages.size(); ++i) {
    const Storage& dead = storages[i];
    if (!written_[i] || dead.persistent || dead.graph != graph ||
        LiveAt(dead, event)) {
      continue;
    }
    Pieces live;
    for (const Storage& other : storages) {
      if (other.place == dead.place && &other != &dead &&
          (other.persistent ||
           (other.graph == graph && LiveAt(other, event)))) {
        live.emplace_back(other.offset, other.offset + other.bytes);
      }
    }
    Arena& arena = arenas_[static_cast<size_t>(dead.place)];
    for (const auto& [begin, end] :
         Without(dead.offset, dead.offset + dead.bytes, std::move(live))) {
      Poison(arena, begin, end);
    }
    written_[i] = false;
  }
}

void MemoryCheck::Poison(Arena& arena, int64_t begin, int64_t end) {
  const std::vector<std::byte> poison(
      static_cast<size_t>(std::min(kChunk, end - begin)), kPoison);
  for (int64_t at = begin; at < end; at += kChunk) {
    core_.device.Write(poison.data(), arena.data + at,
                       std::min(kChunk, end - at));
  }
  Refresh(arena, begin, end);
}

}  // namespace plo
