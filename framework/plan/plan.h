// The plan: everything decided about a run before a byte is allocated.
//
// BuildPlan is pure: no device, no allocation, no clock. A plan holds one graph
// for the training program and one per eval program; all graphs share the
// persistent storages (params, states) and reuse one temp area.
//
// Note: the compute axis. Lifetimes are measured along the compute stream of
// one cycle, micro followed by update: 2i is the start and 2i + 1 the
// completion of its i-th launch. A storage is live from the last of these
// events known to precede its first access to the first one known to follow its
// last access, both by the waits of the plan. So two storages may share bytes
// exactly when their live ranges do not overlap, and sharing never adds a wait.
// The cycle closes: update(t) runs beside micro(t+1), and a range that is not
// released before the end of the cycle wraps around; so does one of the micro
// section when micro repeats.
#ifndef PLO_FRAMEWORK_PLAN_PLAN_H_
#define PLO_FRAMEWORK_PLAN_PLAN_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "framework/ir/op_registry.h"
#include "framework/ir/program.h"

namespace plo {

// All arena offsets are multiples of this.
inline constexpr int64_t kArenaAlignment = 256;

using StorageIndex = int32_t;
using LaunchIndex = int32_t;

// Bytes [offset, offset + bytes) of a storage, for rank 0; rank r adds
// r * rank_stride.
struct Operand {
  VarId var = kNoId;  // kNoId for a workspace or ring
  StorageIndex storage = -1;
  int64_t offset = 0;
  int64_t bytes = 0;
  int64_t rank_stride = 0;
  bool read = false;
  bool write = false;
};

enum class LaunchKind : uint8_t {
  kOp,
  kFeed,   // copies a feed from its pinned ring; first micro-step only
  kFetch,  // copies a fetched var to its pinned ring; end of the update
};

// One entry of the issue order. An op of the micro section has one launch,
// issued accumulate_steps times per step.
struct Launch {
  LaunchKind kind = LaunchKind::kOp;
  OpId op = kNoId;
  VarId var = kNoId;  // the feed or fetch
  Section section = Section::kMicro;
  StreamKind stream = StreamKind::kCompute;
  bool first_micro_only = false;
  // Inputs and outputs by slot, then the workspace. kFeed: slot 0 of the ring,
  // then the var; kFetch: the var, then slot 0 of the ring. Slot i of a ring
  // starts i * Operand::bytes further on.
  std::vector<Operand> operands;
  int64_t workspace_bytes = 0;
  // Launches of *other* streams whose latest issued instance must be complete
  // before this one starts. Minimal: nothing already implied by stream order
  // or by an earlier wait of the same stream. A launch never issued before is
  // not waited for.
  std::vector<LaunchIndex> waits;
};

// Live range [begin, end) on the compute axis; see the Note.
struct LiveRange {
  int32_t begin = 0;
  int32_t end = 0;
};

inline constexpr int kStartupGraph = -1;

struct Storage {
  // The owning var's name, "workspace#<launch>", "<feed>@feed_ring" or
  // "<var>@fetch_ring".
  std::string name;
  VarId var = kNoId;
  Place place = Place::kDevice;
  MemoryCategory category = MemoryCategory::kWorkspace;
  int64_t bytes = 0;
  int64_t offset = 0;  // in the arena of `place`
  bool persistent = false;
  // Which graph a temp belongs to, kStartupGraph for those of the startup
  // section (whose axis is the startup list); persistent ones: 0.
  int graph = 0;
  std::vector<LiveRange> live;  // ascending; empty when persistent
};

struct GraphPlan {
  std::string name;              // Program::name
  std::vector<Launch> startup;   // serial, in order
  std::vector<Launch> launches;  // micro, then update
  int32_t micro_count = 0;       // launches[0, micro_count) are micro
  int accumulate_steps = 1;
  std::vector<VarId> feeds;
  std::vector<VarId> fetches;
};

using CategoryBytes = std::array<int64_t, kMemoryCategoryCount>;

struct PlacePeak {
  int64_t arena_bytes = 0;      // exact end of the highest storage
  int64_t live_peak_bytes = 0;  // most bytes live at once
  CategoryBytes by_category{};  // at that moment; sums to live_peak_bytes
  std::string peak_op;          // Describe() of the op there; device only
  int64_t fragmentation_bytes() const { return arena_bytes - live_peak_bytes; }
};

struct Plan {
  std::vector<Storage> storages;
  std::vector<GraphPlan> graphs;  // [0] trains; the rest are eval programs
  PlacePeak device;
  PlacePeak pinned;
  // Bytes per optimizer step and rank over all micro-steps, of the copy ops
  // (the rings of feeds and fetches not counted).
  int64_t d2h_bytes_per_step = 0;
  int64_t h2d_bytes_per_step = 0;
  int64_t collective_bytes_per_step = 0;  // sent by this rank, ring algorithms
  // Bytes of pinned optimizer state and staging (masters, moments, grads).
  int64_t host_state_bytes = 0;
  double plan_seconds = 0;

  // Readable listing: storages with offsets and live ranges, launches with
  // streams and waits, the peak.
  std::string ToString(const Program& program) const;
};

struct PlanOptions {
  // Vars whose value each Run returns; they live to the end of the update.
  std::vector<VarId> fetches;
  // Programs that share the params by name and have only forward ops.
  std::vector<const Program*> eval_programs;
  // Fetches of each eval program, by its own var ids.
  std::vector<std::vector<VarId>> eval_fetches;
  int64_t device_memory_limit = 0;  // bytes; 0 means none
  int64_t host_memory_limit = 0;
  DeviceKind device = DeviceKind::kCpu;  // whose kernels need the workspaces
};

// Throws OutOfMemory when a limit cannot be met, naming the op at the peak, the
// largest live tensors and the smallest limit that would do.
Plan BuildPlan(const Program& program, const PlanOptions& options = {},
               const OpRegistry& registry = OpRegistry::Global());

// Proves from the plan alone that any two accesses of overlapping bytes, one
// of them a write, are ordered by streams and waits for `rank`, over enough
// unrolled steps, and that every read sees bytes last written through the same
// storage. Throws Internal naming both launches.
void CheckRaces(const Plan& plan, const Program& program, int rank = 0);

// Feeds and fetches keep this many steps in flight.
inline constexpr int kStepsInFlight = 2;
inline constexpr int kFetchSlots = kStepsInFlight + 1;

}  // namespace plo

#endif  // PLO_FRAMEWORK_PLAN_PLAN_H_
