// Optimizer states that live in pinned memory and are updated on the device.
#ifndef PLO_PASSES_STREAM_STATES_H_
#define PLO_PASSES_STREAM_STATES_H_

#include <cstdint>
#include <vector>

#include "framework/ir/program.h"

namespace plo {

struct StreamStatesOptions {
  OpId optimizer = kNoId;
  OpId master_init = kNoId;  // the startup cast; kNoId for fp32
  std::vector<OpId> moment_inits;
  int64_t chunk = 0;  // elements, a multiple of 128
};

// Streams the states of one bucket of n elements through the device.
//
// Before:
//   startup: cast(bucket0@shard) -> bucket0@master         16-bit params
//   update:  adamw(final_grad, step_record, master, moment1, moment2)
//                -> master, moment1, moment2, bucket0@shard
// After:     master, moment1 and moment2 are pinned
//   startup: cast(bucket0@shard) -> bucket0@master@init
//            copy_d2h(bucket0@master@init) -> bucket0@master
//   update, for each chunk, with its part of every var:
//            copy_h2d(master, moment1, moment2)
//                -> views of bucket0@states, a temp of the chunk
//            adamw(final_grad, step_record, these) -> these, bucket0@shard
//            copy_d2h(these) -> master, moment1, moment2
// fp32 params are their own master, on the device, and only moments travel.
// schedule_transfers lets chunks share the bytes of a few slots.
//
// Leaves the optimizer op to the caller, and the ops that are to take its place
// at the end of the section: these are returned, in order.
std::vector<OpId> StreamStates(Program& program, const Bucket& bucket,
                               const StreamStatesOptions& options);

}  // namespace plo

#endif  // PLO_PASSES_STREAM_STATES_H_
