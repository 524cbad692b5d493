// What the passes that add state, views and update ops share.
#ifndef PLO_PASSES_REWRITE_UTILS_H_
#define PLO_PASSES_REWRITE_UTILS_H_

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "framework/ir/program.h"

namespace plo {

// --- Vars. Names are made unique by a suffix where they are taken. ---

VarId AddState(Program& program, const std::string& name, DType dtype,
               Shape shape, MemoryCategory category,
               Place place = Place::kDevice);
VarId AddTemp(Program& program, const std::string& name, DType dtype,
              Shape shape, MemoryCategory category);
// A view of `of` in its kind, place and category; byte_offset and
// rank_stride_bytes as in Var.
VarId AddView(Program& program, const std::string& name, VarId of, DType dtype,
              Shape shape, int64_t byte_offset, int64_t rank_stride_bytes);

// Appends the startup op that fills `out`, on the host stream if it is pinned.
void AppendFill(Program& program, VarId out, double value);
OpSpec FillSpec(const Program& program, VarId out, double value);

// --- Ops ---

// Where each op of a section stands. Valid until the section is edited.
std::unordered_map<OpId, size_t> PositionsOf(const Program& program,
                                             Section section);
// For each storage that the section writes (also through views), the last op
// that does.
std::unordered_map<VarId, OpId> LastWriters(const Program& program,
                                            Section section);
// The update op that writes `var` and has this type. Throws
// FailedPrecondition: "<needed_by> needs <made_by> to run before it".
OpId FindUpdateOp(const Program& program, VarId var, std::string_view type,
                  std::string_view needed_by, std::string_view made_by);

// Throws FailedPrecondition if `pass` is among the passes applied so far.
void RequireFirstRun(const Program& program, std::string_view pass);

// Adds `op` to the control edges of `waiter`, once.
void AddAfter(Program& program, OpId waiter, OpId op);

// The trainable ones of program.buckets, in order. Throws FailedPrecondition if
// there are none or shard_optimizer has not run.
std::vector<const Bucket*> TrainableBuckets(const Program& program,
                                            std::string_view needed_by);

}  // namespace plo

#endif  // PLO_PASSES_REWRITE_UTILS_H_
