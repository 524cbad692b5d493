// schedule_transfers(depth=2)
//
// Puts what moves bytes on streams of its own and bounds how many gradient
// buckets and chunks of streamed optimizer state are alive at once. Changes
// nothing of what is computed.
//
// Streams, in micro and update (startup is serial):
//   collectives -> comm, copy_d2h -> d2h, copy_h2d -> h2d; in micro also what
//   consumes a reduced bucket (grad_stats, accumulate) -> comm, so that the
//   compute stream need not wait for the reduction; updates of streamed states
//   -> comm, where the gather of their params follows.
// Credit edges, over the blocks (top-level regions; without regions: buckets)
//   in the order in which backward completes them: the first op that writes a
//   bucket's gradient in block k+depth starts after the last micro op that
//   touches a gradient of block k; where copies to the host are what frees the
//   shards, the reductions of block k+depth start after block k's copies. So
//   the gradients of `depth` blocks are in flight, however large their buckets
//   are, and none waits for a reduction that has only just started. A bucket
//   whose first writer comes before that point (a tied weight's) lies outside
//   the ring.
// Drain edge, with accumulation: the op that stands `depth` blocks into forward
//   starts after the last reduction, which belongs to the micro-step before:
//   gradient buckets do not outlive the start of forward.
// Staging ring: chunks of streamed states share slots and are uploaded ahead of
//   their update; see passes/staging_ring.h.
//
// Runs last.
#include <algorithm>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "framework/ir/op_registry.h"
#include "passes/passes.h"
#include "passes/rewrite_utils.h"
#include "passes/staging_ring.h"

namespace plo {
namespace {

constexpr int64_t kMaxDepth = 1 << 20;

struct StreamChange {
  OpId op = kNoId;
  StreamKind stream = StreamKind::kCompute;
};

struct Edge {
  OpId waiter = kNoId;
  OpId op = kNoId;
};

// Uses of one storage by the micro section, as positions in it.
struct Uses {
  size_t first_write = 0;
  size_t last = 0;
  bool in_micro = false;
  bool in_update = false;
};

// A bucket's gradient on its way through micro.
struct Passage {
  Uses grad;               // the storage that backward writes
  size_t reduction = 0;    // the op that writes the shard
  size_t shard_last = 0;   // the last op that reads the shard
  bool has_shard = false;  // a storage of its own that dies in micro
  std::string_view block;
};

// Buckets of one block that are let go one after the other.
struct Group {
  std::vector<Passage> passages;
  size_t grad_last = 0;
  size_t shard_last = 0;  // 0: no shard dies in micro
};

std::string_view Block(std::string_view region) {
  return region.substr(0, region.find('/'));
}

bool ReadsAny(const Program& program, const Op& op,
              const std::unordered_set<VarId>& storages) {
  for (const Slot& slot : op.inputs) {
    for (VarId v : slot.vars) {
      if (storages.count(program.StorageOf(v)) > 0) return true;
    }
  }
  return false;
}

class ScheduleTransfers : public Pass {
 public:
  explicit ScheduleTransfers(int64_t depth) : depth_(depth) {
    PLO_ENFORCE(depth >= 1 && depth <= kMaxDepth, kInvalidArgument,
                "depth must be in [1, ", kMaxDepth, "], got ", depth);
  }
  std::string_view name() const override { return "schedule_transfers"; }

  bool Run(Program& program) override {
    const std::vector<StagedChunk> chunks = CollectStagedChunks(program);
    std::unordered_set<VarId> staging;
    for (const StagedChunk& chunk : chunks) staging.insert(chunk.storage);
    std::vector<StreamChange> changes;
    CollectStreams(program, Section::kMicro, staging, changes);
    CollectStreams(program, Section::kUpdate, staging, changes);
    std::unordered_map<OpId, StreamKind> new_stream;
    for (const StreamChange& change : changes) {
      new_stream.emplace(change.op, change.stream);
    }
    std::vector<Edge> edges = CollectEdges(program, new_stream);
    std::erase_if(edges, [&](const Edge& edge) {
      const std::vector<OpId>& after = program.op(edge.waiter).after;
      return std::find(after.begin(), after.end(), edge.op) != after.end();
    });

    if (chunks.empty()) {
      Apply(program, changes, edges);
      return !changes.empty() || !edges.empty();
    }
    // The ring is planned on what all the rest makes of the program.
    Program scheduled = program.Clone();
    Apply(scheduled, changes, edges);
    ApplyStagingRing(scheduled, chunks,
                     PlanStagingRing(scheduled, chunks, depth_));
    program = std::move(scheduled);
    return true;
  }

 private:
  static void CollectStreams(const Program& program, Section section,
                             const std::unordered_set<VarId>& staging,
                             std::vector<StreamChange>& changes);
  static void Apply(Program& program, const std::vector<StreamChange>& changes,
                    const std::vector<Edge>& edges) {
    for (const StreamChange& change : changes) {
      program.mutable_op(change.op).stream = change.stream;
    }
    for (const Edge& edge : edges) AddAfter(program, edge.waiter, edge.op);
  }
  std::vector<Edge> CollectEdges(
      const Program& program,
      const std::unordered_map<OpId, StreamKind>& new_stream) const;
  static std::vector<Passage> CollectPassages(const Program& program);
  static std::vector<Group> GroupByBlock(const std::vector<Passage>& passages);

  const int64_t depth_;
};

void ScheduleTransfers::CollectStreams(const Program& program, Section section,
                                       const std::unordered_set<VarId>& staging,
                                       std::vector<StreamChange>& changes) {
  const OpRegistry& registry = OpRegistry::Global();
  std::unordered_map<VarId, StreamKind> written_on;  // by var
  for (const auto& op : program.ops(section)) {
    StreamKind stream = op->stream;
    if (op->type == "copy_d2h") {
      stream = StreamKind::kD2H;
    } else if (op->type == "copy_h2d") {
      stream = StreamKind::kH2D;
    } else if (registry.Get(op->type).collective) {
      stream = StreamKind::kComm;
    } else if (section == Section::kUpdate && ReadsAny(program, *op, staging)) {
      stream = StreamKind::kComm;
    } else if (section == Section::kMicro &&
               (op->type == "grad_stats" || op->type == "accumulate")) {
      const auto it = written_on.find(op->In1("x"));
      if (it != written_on.end() && it->second == StreamKind::kComm) {
        stream = StreamKind::kComm;
      }
    }
    for (const Slot& slot : op->outputs) {
      for (VarId v : slot.vars) written_on[v] = stream;
    }
    if (stream != op->stream) changes.push_back({op->id, stream});
  }
}

std::vector<Passage> ScheduleTransfers::CollectPassages(
    const Program& program) {
  std::unordered_map<VarId, Uses> uses;  // of gradient storages and shards
  const auto& micro = program.ops(Section::kMicro);
  // The var that micro reduces a bucket into, by the bucket's storage.
  std::unordered_map<VarId, VarId> shard_of;
  for (const Bucket& bucket : program.buckets) {
    if (bucket.grad != kNoId) uses[program.StorageOf(bucket.grad)] = {};
  }
  for (const auto& op : micro) {
    if (op->type != "reduce_scatter") continue;
    const VarId from = program.StorageOf(op->In1("x"));
    const VarId to = program.StorageOf(op->Out1("out"));
    if (from == to || uses.count(from) == 0) continue;
    shard_of[from] = to;
    uses[to] = {};
  }
  const auto visit = [&](const Op& op, auto&& record) {
    for (const Slot& slot : op.inputs) {
      for (VarId v : slot.vars) {
        const auto it = uses.find(program.StorageOf(v));
        if (it != uses.end()) record(it->second, false);
      }
    }
    for (const Slot& slot : op.outputs) {
      for (VarId v : slot.vars) {
        const auto it = uses.find(program.StorageOf(v));
        if (it != uses.end()) record(it->second, true);
      }
    }
  };
  for (size_t i = 0; i < micro.size(); ++i) {
    visit(*micro[i], [i](Uses& use, bool write) {
      if (write && !use.in_micro) {
        use.first_write = i;
        use.in_micro = true;
      }
      use.last = i;
    });
  }
  for (const auto& op : program.ops(Section::kUpdate)) {
    visit(*op, [](Uses& use, bool) { use.in_update = true; });
  }

  std::vector<Passage> passages;
  for (const Bucket& bucket : program.buckets) {
    if (bucket.grad == kNoId) continue;
    const VarId storage = program.StorageOf(bucket.grad);
    const Uses& grad = uses.at(storage);
    if (!grad.in_micro || grad.in_update) continue;
    Passage passage;
    passage.grad = grad;
    passage.block = Block(micro[grad.last]->region);
    const auto shard = shard_of.find(storage);
    if (shard != shard_of.end()) {
      const Uses& use = uses.at(shard->second);
      passage.has_shard = !use.in_update;
      passage.reduction = use.first_write;
      passage.shard_last = use.last;
    }
    passages.push_back(passage);
  }
  std::sort(passages.begin(), passages.end(),
            [](const Passage& a, const Passage& b) {
              return a.grad.last < b.grad.last;
            });
  return passages;
}

std::vector<Group> ScheduleTransfers::GroupByBlock(
    const std::vector<Passage>& passages) {
  std::vector<Group> groups;
  for (const Passage& passage : passages) {
    if (groups.empty() || passage.block.empty() ||
        passage.block != groups.back().passages.back().block) {
      groups.emplace_back();
    }
    Group& group = groups.back();
    group.passages.push_back(passage);
    group.grad_last = std::max(group.grad_last, passage.grad.last);
    if (passage.has_shard) {
      group.shard_last = std::max(group.shard_last, passage.shard_last);
    }
  }
  return groups;
}

std::vector<Edge> ScheduleTransfers::CollectEdges(
    const Program& program,
    const std::unordered_map<OpId, StreamKind>& new_stream) const {
  const auto& micro = program.ops(Section::kMicro);
  const auto stream_of = [&](size_t position) {
    const auto it = new_stream.find(micro[position]->id);
    return it == new_stream.end() ? micro[position]->stream : it->second;
  };
  std::vector<Edge> edges;
  // An earlier op of the same stream is waited for anyway.
  const auto add = [&](size_t waiter, size_t position) {
    if (position < waiter && stream_of(position) != stream_of(waiter)) {
      edges.push_back({micro[waiter]->id, micro[position]->id});
    }
  };
  const std::vector<Passage> passages = CollectPassages(program);
  const std::vector<Group> groups = GroupByBlock(passages);
  for (size_t k = 0; k + depth_ < groups.size(); ++k) {
    const Group& freed = groups[k];
    for (const Passage& next : groups[k + depth_].passages) {
      add(next.grad.first_write, freed.grad_last);
      if (freed.shard_last > 0 && next.has_shard) {
        add(next.reduction, freed.shard_last);
      }
    }
  }

  if (program.accumulate_steps > 1 && !passages.empty()) {
    size_t drained = 0;
    for (const Passage& passage : passages) {
      drained = std::max({drained, passage.grad.last, passage.shard_last});
    }
    int64_t blocks = 0;
    size_t waiter = 0;
    while (waiter + 1 < micro.size() && blocks < depth_ &&
           micro[waiter]->role == Role::kForward) {
      ++waiter;
      const std::string_view left = Block(micro[waiter - 1]->region);
      if (!left.empty() && left != Block(micro[waiter]->region)) ++blocks;
    }
    if (stream_of(drained) != stream_of(waiter)) {
      edges.push_back({micro[waiter]->id, micro[drained]->id});
    }
  }
  return edges;
}

}  // namespace

std::unique_ptr<Pass> MakeScheduleTransfers(PassOptions& options) {
  return std::make_unique<ScheduleTransfers>(options.Int("depth", 2));
}

}  // namespace plo
