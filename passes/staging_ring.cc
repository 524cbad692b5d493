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

// More are not needed to keep the link busy.
constexpr size_t kMostSlots = 256;

class RingPlanner {
 public:
  RingPlanner(const Program& program, const std::vector<StagedChunk>& chunks)
      : program_(program), chunks_(chunks), profile_(Profile(program, chunks)) {
    std::unordered_map<VarId, size_t> readers;
    for (size_t i = 0; i < profile_.micro_count; ++i) {
      if (profile_.ops[i] == kNoId) continue;
      for (const Slot& slot : program.op(profile_.ops[i]).inputs) {
        for (VarId v : slot.vars) readers.emplace(program.StorageOf(v), i);
      }
    }
    for (const StagedChunk& chunk : chunks) {
      const auto it = readers.find(chunk.param);
      first_reader_.push_back(it == readers.end() ? 0 : it->second);
    }
  }

  // How many windows there were room for.
  size_t size() const { return profile_.windows.size(); }

  // Leaves out the windows of these slots of the last plan.
  void Drop(const std::vector<size_t>& slots) {
    std::unordered_set<size_t> dropped;
    for (size_t slot : slots) dropped.insert(window_of_[slot]);
    std::vector<RoomWindow> kept;
    for (size_t i = 0; i < profile_.windows.size(); ++i) {
      if (dropped.count(i) == 0) kept.push_back(profile_.windows[i]);
    }
    profile_.windows = std::move(kept);
  }

  std::vector<StagingSlot> Run(size_t depth) {
    MakeSlots(depth);
    std::vector<std::vector<size_t>> chunks(windows_.size());
    std::vector<std::optional<size_t>> last_chunk(windows_.size());
    for (size_t k = 0; k < chunks_.size(); ++k) {
      // The slot that is free for longest, of those that will not keep forward
      // waiting for chunks that it does not need yet.
      size_t best = 0;
      for (size_t i = 1; i < windows_.size(); ++i) {
        if (i >= depth && first_reader_[k] > windows_[i].end) continue;
        if (last_chunk[i] < last_chunk[best]) best = i;
      }
      chunks[best].push_back(k);
      last_chunk[best] = k;
    }
    const std::vector<OpId>& ops = profile_.ops;
    std::vector<StagingSlot> slots;
    window_of_.clear();
    for (size_t i = 0; i < windows_.size(); ++i) {
      if (chunks[i].empty()) continue;
      slots.push_back(
          {std::move(chunks[i]), ops[windows_[i].start], ops[windows_[i].end]});
      window_of_.push_back(i);
    }
    return slots;
  }

 private:
  static DeviceProfile Profile(const Program& program,
                               const std::vector<StagedChunk>& chunks) {
    std::unordered_set<VarId> staging;
    int64_t slot_bytes = 0;
    for (const StagedChunk& chunk : chunks) {
      staging.insert(chunk.storage);
      slot_bytes = std::max(slot_bytes, program.var(chunk.storage).bytes());
    }
    return ProfileDevice(program, staging, slot_bytes,
                         std::min(chunks.size(), kMostSlots));
  }

  void MakeSlots(size_t depth) {
    // Uploads are issued in this order.
    std::stable_sort(profile_.windows.begin(), profile_.windows.end(),
                     [](const RoomWindow& a, const RoomWindow& b) {
                       return a.start < b.start;
                     });
    windows_ = profile_.windows;
    // A ring that finds no room is as short-lived as costs no time.
    while (windows_.size() < std::min(depth, chunks_.size())) {
      windows_.push_back({LastOfMicro(), FirstEnd()});
    }
  }

  size_t LastOfMicro() const {
    size_t last = profile_.micro_count - 1;
    while (last > 0 && !profile_.RunsInLastMicro(program_, last)) --last;
    return last;
  }
  // Where forward waits for the last update anyway.
  size_t FirstEnd() const {
    const size_t last =
        *std::max_element(first_reader_.begin(), first_reader_.end());
    size_t end = std::max<size_t>(last, 1);
    while (end + 1 < profile_.micro_count && profile_.ops[end] == kNoId) ++end;
    return end;
  }

  const Program& program_;
  const std::vector<StagedChunk>& chunks_;
  DeviceProfile profile_;
  std::vector<size_t> first_reader_;  // by chunk: of its params
  std::vector<RoomWindow> windows_;   // those of the profile come first
  std::vector<size_t> window_of_;     // by slot of the last plan
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
      const VarId storage = program.StorageOf(op->Out("out").front());
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

namespace {

VarId ShareSlot(Program& program, const std::vector<StagedChunk>& chunks,
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
  }
  return shared;
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

// Returns the vars of the slots.
std::vector<VarId> Apply(Program& program,
                         const std::vector<StagedChunk>& chunks,
                         const std::vector<StagingSlot>& slots) {
  const bool serial = IsSerial(program, chunks);
  std::vector<VarId> vars;
  for (const StagingSlot& slot : slots) {
    vars.push_back(ShareSlot(program, chunks, slot));
  }
  std::vector<VarId> storages;
  for (const StagedChunk& chunk : chunks) storages.push_back(chunk.storage);
  program.EraseVars(storages);
  if (serial) return vars;
  MoveUploads(program, chunks, slots);
  for (const StagingSlot& slot : slots) {
    AddAfter(program, chunks[slot.chunks.front()].uploads.front(),
             slot.starts_after);
    AddAfter(program, slot.gone_before, chunks[slot.chunks.back()].last);
  }
  return vars;
}

}  // namespace

std::vector<StagingSlot> PlanStagingRing(const Program& program,
                                         const std::vector<StagedChunk>& chunks,
                                         int64_t depth) {
  if (IsSerial(program, chunks)) {
    StagingSlot only;
    for (size_t k = 0; k < chunks.size(); ++k) only.chunks.push_back(k);
    return {only};
  }
  // The ring's own edges change lifetimes a little, and with them the holes.
  constexpr int kMostRounds = 5;
  RingPlanner planner(program, chunks);
  std::vector<StagingSlot> slots;
  for (int round = 0; round < kMostRounds; ++round) {
    slots = planner.Run(static_cast<size_t>(depth));
    Program trial = program.Clone();
    const std::vector<VarId> vars = Apply(trial, chunks, slots);
    const std::unordered_set<VarId> homeless = TempsWithoutRoom(trial);
    std::vector<size_t> dropped;
    for (size_t i = 0; i < slots.size(); ++i) {
      if (homeless.count(vars[i]) > 0) dropped.push_back(i);
    }
    const size_t before = planner.size();
    planner.Drop(dropped);
    if (planner.size() == before) break;
  }
  return slots;
}

void ApplyStagingRing(Program& program, const std::vector<StagedChunk>& chunks,
                      const std::vector<StagingSlot>& slots) {
  Apply(program, chunks, slots);
}

}  // namespace plo
