// The ring through which streamed optimizer states pass.
//
// stream_states gives every chunk a temp of its own and puts its upload, update
// and write-back one after the other. Here chunks come to share a few slots,
// and uploads move ahead: the first of a slot into the backward of the last
// micro-step, the others behind the write-back of the slot's chunk before.
//
// Memory: slot i may be in use from the completion of a backward op on, through
// the update, up to a forward op of the next step, which waits for the slot's
// last write-back. Both are chosen from the profile of the device so that slots
// 0..i fit below the peak that is there anyway. As many slots are made as find
// room, and at least `depth`.
#ifndef PLO_PASSES_STAGING_RING_H_
#define PLO_PASSES_STAGING_RING_H_

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "framework/ir/program.h"

namespace plo {

// A chunk of optimizer state on its way through the device.
struct StagedChunk {
  VarId storage = kNoId;     // the temp it has now
  std::vector<VarId> views;  // of the temp
  std::vector<OpId> uploads;
  OpId last = kNoId;    // op that touches it
  VarId param = kNoId;  // storage of the params that the update writes
};

struct StagingSlot {
  std::vector<size_t> chunks;  // in order
  OpId starts_after = kNoId;   // kNoId: nothing more than the data demands
  OpId gone_before = kNoId;
};

// Those of the update section that no earlier run has scheduled, in order.
std::vector<StagedChunk> CollectStagedChunks(const Program& program);

// `program` with all streams and edges but those of the ring.
std::vector<StagingSlot> PlanStagingRing(const Program& program,
                                         const std::vector<StagedChunk>& chunks,
                                         int64_t depth);

void ApplyStagingRing(Program& program, const std::vector<StagedChunk>& chunks,
                      const std::vector<StagingSlot>& slots);

}  // namespace plo

#endif  // PLO_PASSES_STAGING_RING_H_
