#include "passes/staging_ring.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "framework/plan/profile.h"
#include "passes/rewrite_utils.h"

namespace plo {
namespace {

bool IsStaging(const Var& var) {
  return var.kind == VarKind::kTemp && var.place == Place::kDevice &&
         var.category == MemoryCategory::kCommunication;
}

template <typename Visit>
void ForEachOperand(const Op& op, Visit visit) {
  for (const auto* slots : {&op.inputs, &op.outputs}) {
    for (const Slot& slot : *slots) {
      for (VarId v : slot.vars) visit(v);
    }
  }
}

// offload_optimizer(mode=sync) has put everything in one chain.
bool IsSerial(const Program& program, const std::vector<StagedChunk>& chunks) {
  return !program.op(chunks.front().uploads.front()).after.empty();
}

// When how many bytes fit below the peak.
class Room {
 public:
  Room(const Program& program, DeviceProfile profile)
      : program_(program), profile_(std::move(profile)) {
    const std::vector<int64_t>& room = profile_.room;
    from_ = room;
    for (size_t e = room.size() - 1; e-- > 0;) {
      from_[e] = std::min(from_[e], from_[e + 1]);
    }
    until_ = room;
    for (size_t e = 1; e < room.size(); ++e) {
      until_[e] = std::min(until_[e], until_[e - 1]);
    }
  }

  const DeviceProfile& profile() const { return profile_; }

  // The first op of micro after which `bytes` fit to the end of the update.
  std::optional<size_t> Start(int64_t bytes) const {
    std::optional<size_t> start;
    for (size_t i = profile_.micro_count; i-- > 0;) {
      if (from_[2 * i + 1] < bytes) break;
      if (RunsInLastMicro(i)) start = i;
    }
    return start;
  }
  // The last op of micro before which `bytes` fit from the start of the step.
  std::optional<size_t> End(int64_t bytes) const {
    std::optional<size_t> end;
    for (size_t i = 1; i < profile_.micro_count; ++i) {
      if (until_[2 * i - 1] < bytes) break;
      if (profile_.ops[i] != kNoId) end = i;
    }
    return end;
  }
  size_t LastOfMicro() const {
    size_t last = profile_.micro_count - 1;
    while (last > 0 && !RunsInLastMicro(last)) --last;
    return last;
  }

 private:
  bool RunsInLastMicro(size_t i) const {
    const OpId id = profile_.ops[i];
    return id != kNoId && !program_.op(id).first_micro_only;
  }

  const Program& program_;
  const DeviceProfile profile_;
  std::vector<int64_t> from_, until_;  // by event: least room from, until then
};

class RingPlanner {
 public:
  RingPlanner(const Program& program, const std::vector<StagedChunk>& chunks)
      : chunks_(chunks), room_(program, Profile(program, chunks)) {
    const DeviceProfile& profile = room_.profile();
    std::unordered_map<VarId, size_t> readers;
    for (size_t i = 0; i < profile.micro_count; ++i) {
      if (profile.ops[i] == kNoId) continue;
      for (const Slot& slot : program.op(profile.ops[i]).inputs) {
        for (VarId v : slot.vars) readers.emplace(program.StorageOf(v), i);
      }
    }
    for (const StagedChunk& chunk : chunks) {
      const auto it = readers.find(chunk.param);
      first_reader_.push_back(it == readers.end() ? 0 : it->second);
      slot_bytes_ = std::max(slot_bytes_, program.var(chunk.storage).bytes());
    }
  }

  std::vector<StagingSlot> Run(size_t depth) {
    MakeSlots(depth);
    std::vector<StagingSlot> slots(windows_.size());
    std::vector<std::optional<size_t>> last_chunk(windows_.size());
    for (size_t k = 0; k < chunks_.size(); ++k) {
      // The slot that is free for longest, of those that will not keep forward
      // waiting for chunks that it does not need yet.
      size_t best = 0;
      for (size_t i = 1; i < windows_.size(); ++i) {
        if (i >= depth && first_reader_[k] > windows_[i].end) continue;
        if (last_chunk[i] < last_chunk[best]) best = i;
      }
      slots[best].chunks.push_back(k);
      last_chunk[best] = k;
    }
    const std::vector<OpId>& ops = room_.profile().ops;
    for (size_t i = 0; i < slots.size(); ++i) {
      slots[i].starts_after = ops[windows_[i].start];
      slots[i].gone_before = ops[windows_[i].end];
    }
    std::erase_if(slots, [](const StagingSlot& s) { return s.chunks.empty(); });
    return slots;
  }

 private:
  // Positions in the profile.
  struct Window {
    size_t start = 0;
    size_t end = 0;
  };

  static DeviceProfile Profile(const Program& program,
                               const std::vector<StagedChunk>& chunks) {
    std::unordered_set<VarId> staging;
    for (const StagedChunk& chunk : chunks) staging.insert(chunk.storage);
    return ProfileDevice(program, staging);
  }

  void MakeSlots(size_t depth) {
    for (size_t i = 0; i < chunks_.size(); ++i) {
      const int64_t bytes = static_cast<int64_t>(i + 1) * slot_bytes_;
      const std::optional<size_t> start = room_.Start(bytes);
      const std::optional<size_t> end = room_.End(bytes);
      if ((!start || !end) && i >= depth) return;
      // A ring that finds no room is as short-lived as costs no time.
      windows_.push_back(
          {start.value_or(room_.LastOfMicro()), end.value_or(FirstEnd())});
    }
  }

  // Where forward waits for the last update anyway.
  size_t FirstEnd() const {
    const size_t last =
        *std::max_element(first_reader_.begin(), first_reader_.end());
    size_t end = std::max<size_t>(last, 1);
    const DeviceProfile& profile = room_.profile();
    while (end + 1 < profile.micro_count && profile.ops[end] == kNoId) ++end;
    return end;
  }

  const std::vector<StagedChunk>& chunks_;
  const Room room_;
  std::vector<size_t> first_reader_;  // by chunk: of its params
  int64_t slot_bytes_ = 0;
  std::vector<Window> windows_;  // by slot; each within the one before
};

}  // namespace

std::vector<StagedChunk> CollectStagedChunks(const Program& program) {
  std::vector<StagedChunk> chunks;
  std::unordered_map<VarId, size_t> index;  // by storage
  for (const auto& op : program.ops(Section::kUpdate)) {
    const bool upload = op->type == "copy_h2d";
    // An earlier run has scheduled it.
    if (upload && op->stream != StreamKind::kCompute) continue;
    if (upload) {
      const VarId storage = program.StorageOf(op->Out1("out"));
      if (!IsStaging(program.var(storage))) continue;
      if (index.emplace(storage, chunks.size()).second) {
        chunks.emplace_back().storage = storage;
      }
      chunks[index.at(storage)].uploads.push_back(op->id);
    }
    std::optional<size_t> chunk;
    ForEachOperand(*op, [&](VarId v) {
      const auto it = index.find(program.StorageOf(v));
      if (it == index.end()) return;
      chunk = it->second;
      std::vector<VarId>& views = chunks[*chunk].views;
      if (std::count(views.begin(), views.end(), v) == 0) views.push_back(v);
    });
    if (!chunk) continue;
    chunks[*chunk].last = op->id;
    ForEachOperand(*op, [&](VarId v) {
      const Var& storage = program.var(program.StorageOf(v));
      if (storage.category == MemoryCategory::kParams) {
        chunks[*chunk].param = storage.id;
      }
    });
  }
  return chunks;
}

std::vector<StagingSlot> PlanStagingRing(const Program& program,
                                         const std::vector<StagedChunk>& chunks,
                                         int64_t depth) {
  if (IsSerial(program, chunks)) {
    StagingSlot only;
    for (size_t k = 0; k < chunks.size(); ++k) only.chunks.push_back(k);
    return {only};
  }
  return RingPlanner(program, chunks).Run(static_cast<size_t>(depth));
}

namespace {

void ShareSlot(Program& program, const std::vector<StagedChunk>& chunks,
               const StagingSlot& slot) {
  int64_t bytes = 0;
  for (size_t k : slot.chunks) {
    bytes = std::max(bytes, program.var(chunks[k].storage).bytes());
  }
  const VarId shared =
      AddTemp(program, "staging_slot", DType::kFp32,
              {bytes / SizeOf(DType::kFp32)}, MemoryCategory::kCommunication);
  for (size_t k : slot.chunks) {
    for (VarId view : chunks[k].views) {
      program.mutable_var(view).view_of = shared;
    }
    program.EraseVar(chunks[k].storage);
  }
}

// Uploads go to the front of the section, or behind the last op of the chunk
// that had their slot before.
void MoveUploads(Program& program, const std::vector<StagedChunk>& chunks,
                 const std::vector<StagingSlot>& slots) {
  std::unordered_map<OpId, size_t> follower;  // chunk, by last op of another
  std::unordered_set<OpId> uploads;
  std::vector<size_t> first;
  for (const StagingSlot& slot : slots) {
    first.push_back(slot.chunks.front());
    for (size_t i = 1; i < slot.chunks.size(); ++i) {
      follower.emplace(chunks[slot.chunks[i - 1]].last, slot.chunks[i]);
    }
  }
  for (const StagedChunk& chunk : chunks) {
    uploads.insert(chunk.uploads.begin(), chunk.uploads.end());
  }
  std::vector<OpId> order;
  const auto emit = [&](size_t k) {
    order.insert(order.end(), chunks[k].uploads.begin(),
                 chunks[k].uploads.end());
  };
  for (size_t k : first) emit(k);
  for (const auto& op : program.ops(Section::kUpdate)) {
    if (uploads.count(op->id) > 0) continue;
    order.push_back(op->id);
    const auto it = follower.find(op->id);
    if (it != follower.end()) emit(it->second);
  }
  program.Reorder(Section::kUpdate, order);
}

}  // namespace

void ApplyStagingRing(Program& program, const std::vector<StagedChunk>& chunks,
                      const std::vector<StagingSlot>& slots) {
  const bool serial = IsSerial(program, chunks);
  for (const StagingSlot& slot : slots) ShareSlot(program, chunks, slot);
  if (serial) return;
  MoveUploads(program, chunks, slots);
  for (const StagingSlot& slot : slots) {
    AddAfter(program, chunks[slot.chunks.front()].uploads.front(),
             slot.starts_after);
    AddAfter(program, slot.gone_before, chunks[slot.chunks.back()].last);
  }
}

}  // namespace plo
