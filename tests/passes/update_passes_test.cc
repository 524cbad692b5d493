// Properties of the distributed and update passes on whole models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "framework/ir/program_text.h"
#include "framework/ir/verifier.h"
#include "operators/register_ops.h"
#include "paddle_lite_offload/graph_builder.h"
#include "paddle_lite_offload/models.h"
#include "passes/pass.h"
#include "passes/pipeline.h"

namespace plo {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

GptConfig SmallGpt() {
  return {.layers = 4,
          .hidden = 64,
          .heads = 4,
          .seq_len = 16,
          .vocab_size = 96,
          .micro_batch = 2};
}

void Apply(Program& program, const std::string& pipeline) {
  PassManager::Parse(pipeline).Run(program);
}

Program TrainGpt(const DefaultPipelineOptions& options,
                 const GptConfig& config = SmallGpt()) {
  Program program = BuildGpt(config);
  Apply(program, DefaultPipeline(options));
  return program;
}

DefaultPipelineOptions Options(DType dtype, double offload_fraction,
                               const std::string& mode = "overlap") {
  DefaultPipelineOptions o;
  o.dtype = dtype;
  o.sharding_degree = 2;
  o.bucket_mb = 0.1;
  o.clip_norm = 1;
  o.offload_optimizer = offload_fraction > 0;
  o.offload_fraction = offload_fraction;
  o.offload_mode = mode;
  return o;
}

// Bytes of persistent storages by place and category.
std::map<std::pair<Place, MemoryCategory>, int64_t> StateBytes(
    const Program& program) {
  std::map<std::pair<Place, MemoryCategory>, int64_t> bytes;
  for (VarId v : program.vars()) {
    const Var& var = program.var(v);
    if (var.is_view() || var.kind == VarKind::kTemp ||
        var.kind == VarKind::kFeed) {
      continue;
    }
    bytes[{var.place, var.category}] += var.bytes();
  }
  return bytes;
}

int64_t OptimizerBytes(const Program& program, Place place) {
  auto bytes = StateBytes(program);
  return bytes[{place, MemoryCategory::kOptimizerState}];
}

int64_t ShardNumel(const Program& program) {
  int64_t numel = 0;
  for (const Bucket& bucket : program.buckets) numel += bucket.shard_numel;
  return numel;
}

std::vector<const Op*> OpsOf(const Program& program, std::string_view type) {
  std::vector<const Op*> found;
  for (Section section : {Section::kMicro, Section::kUpdate}) {
    for (const auto& op : program.ops(section)) {
      if (op->type == type) found.push_back(op.get());
    }
  }
  return found;
}

class UpdatePassesTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    RegisterBuiltinOps();
    RegisterBuiltinPasses();
  }
};

// --- M5: what is where ---

TEST_F(UpdatePassesTest, FullOffloadLeavesNoOptimizerStateOnTheDevice) {
  for (DType dtype : {DType::kFp32, DType::kBf16, DType::kFp16}) {
    const Program base = TrainGpt(Options(dtype, 0));
    const Program full = TrainGpt(Options(dtype, 1));
    const int64_t per_param = dtype == DType::kFp32 ? 8 : 12;
    EXPECT_EQ(OptimizerBytes(base, Place::kDevice),
              per_param * ShardNumel(base));
    EXPECT_EQ(OptimizerBytes(base, Place::kPinned), 0);
    EXPECT_EQ(OptimizerBytes(full, Place::kDevice), 0);
    EXPECT_EQ(OptimizerBytes(full, Place::kPinned), 12 * ShardNumel(full));
  }
}

TEST_F(UpdatePassesTest, AFractionIsReachedWithinOneBucket) {
  for (double fraction : {0.1, 0.25, 0.5, 0.75, 0.9}) {
    const Program program = TrainGpt(Options(DType::kBf16, fraction));
    int64_t largest = 0;
    for (const Bucket& bucket : program.buckets) {
      largest = std::max(largest, 12 * bucket.shard_numel);
    }
    const double total = 12.0 * ShardNumel(program);
    EXPECT_LE(
        std::abs(OptimizerBytes(program, Place::kPinned) - fraction * total),
        largest)
        << fraction;
    EXPECT_EQ(OptimizerBytes(program, Place::kPinned) +
                  OptimizerBytes(program, Place::kDevice),
              total);
  }
}

TEST_F(UpdatePassesTest, HostBytesPerOwnedParam) {
  const auto host_bytes = [](const Program& program) {
    int64_t sum = 0;
    for (const auto& [key, bytes] : StateBytes(program)) {
      if (key.first == Place::kPinned) sum += bytes;
    }
    return static_cast<double>(sum) / ShardNumel(program);
  };
  EXPECT_LE(host_bytes(TrainGpt(Options(DType::kBf16, 1))), 14.5);
  EXPECT_LE(host_bytes(TrainGpt(Options(DType::kFp32, 1))), 16.5);
}

TEST_F(UpdatePassesTest, TransfersOncePerOwnedParam) {
  for (int64_t steps : {1, 3}) {
    DefaultPipelineOptions options = Options(DType::kBf16, 1);
    options.accumulate_steps = steps;
    const Program program = TrainGpt(options);
    const auto bytes = [&](std::string_view type, Section section) {
      int64_t sum = 0;
      for (const Op* op : OpsOf(program, type)) {
        if (op->section == section) {
          sum += program.var(op->Out1("out")).bytes();
        }
      }
      return sum;
    };
    const int64_t grads = 2 * ShardNumel(program);
    const int64_t record = 16 * 4;
    const Section section = steps == 1 ? Section::kMicro : Section::kUpdate;
    EXPECT_EQ(bytes("copy_d2h", section),
              grads + (section == Section::kUpdate ? record : 0));
    EXPECT_EQ(bytes("copy_h2d", Section::kUpdate), grads);
    EXPECT_EQ(bytes("copy_h2d", Section::kMicro), 0);
  }
}

// M5, for streamed states: 12 bytes each way in 16 bit, nothing else.
TEST_F(UpdatePassesTest, StreamedStatesTravelOnceUpAndOnceDown) {
  for (DType dtype : {DType::kFp32, DType::kBf16}) {
    for (double share : {0.3, 1.0}) {
      DefaultPipelineOptions options = Options(dtype, 1);
      options.offload_streamed_fraction = share;
      options.offload_streamed_chunk = 1024;
      const Program program = TrainGpt(options);
      int64_t streamed = 0, host = 0;
      for (const Bucket& bucket : program.buckets) {
        const bool on_host =
            program.FindVar(bucket.name + "@grad@host") != kNoId;
        (on_host ? host : streamed) += bucket.shard_numel;
        for (VarId v : {bucket.moment1, bucket.moment2}) {
          EXPECT_EQ(program.var(v).place, Place::kPinned);
        }
      }
      EXPECT_GT(streamed, 0);
      EXPECT_EQ(host == 0, share == 1);
      const int64_t param = SizeOf(dtype);
      const int64_t states = dtype == DType::kFp32 ? 8 : 12;
      const auto bytes = [&](std::string_view type) {
        int64_t sum = 0;
        for (const Op* op : OpsOf(program, type)) {
          for (VarId v : op->Out("out")) sum += program.var(v).bytes();
        }
        return sum;
      };
      const int64_t record = share == 1 ? 0 : 16 * 4;
      EXPECT_EQ(bytes("copy_h2d"), states * streamed + param * host);
      EXPECT_EQ(bytes("copy_d2h"), states * streamed + param * host + record);
    }
  }
}

TEST_F(UpdatePassesTest, StreamedBucketsAlternateWithTheHosts) {
  DefaultPipelineOptions options = Options(DType::kBf16, 1);
  const int64_t total = ShardNumel(TrainGpt(options));
  for (double share : {0.2, 0.5, 0.8}) {
    options.offload_streamed_fraction = share;
    const Program program = TrainGpt(options);
    double all = 0, streamed = 0;
    int64_t largest = 0;
    for (const Bucket& bucket : program.buckets) {
      const auto own = static_cast<double>(bucket.shard_numel);
      largest = std::max(largest, bucket.shard_numel);
      all += own;
      if (program.FindVar(bucket.name + "@grad@host") == kNoId) streamed += own;
      EXPECT_LE(std::abs(streamed - share * all), largest) << share;
    }
    EXPECT_EQ(all, total);
  }
}

// The ring: more depth or room never moves what is computed; each slot's first
// upload starts in backward, and forward waits for each slot's last write-back.
TEST_F(UpdatePassesTest, StreamedStatesPassThroughSlots) {
  DefaultPipelineOptions options = Options(DType::kBf16, 1);
  options.offload_streamed_fraction = 1;
  options.offload_streamed_chunk = 1024;
  const Program program = TrainGpt(options);
  std::map<VarId, std::vector<const Op*>> touching;  // by slot
  for (const auto& op : program.ops(Section::kUpdate)) {
    for (const auto* slots : {&op->inputs, &op->outputs}) {
      for (const Slot& slot : *slots) {
        for (VarId v : slot.vars) {
          const VarId storage = program.StorageOf(v);
          if (program.var(storage).category == MemoryCategory::kCommunication &&
              program.var(storage).place == Place::kDevice) {
            touching[storage].push_back(op.get());
          }
        }
      }
    }
  }
  EXPECT_GE(touching.size(), 2u);
  std::set<OpId> awaited;
  for (const auto& op : program.ops(Section::kMicro)) {
    awaited.insert(op->after.begin(), op->after.end());
  }
  for (const auto& [slot, ops] : touching) {
    EXPECT_EQ(ops.front()->type, "copy_h2d");
    ASSERT_EQ(ops.front()->after.size(), 1u);
    EXPECT_EQ(program.op(ops.front()->after[0]).section, Section::kMicro);
    EXPECT_EQ(ops.back()->type, "copy_d2h");
    EXPECT_TRUE(awaited.count(ops.back()->id) > 0);
  }
  for (const Op* op : OpsOf(program, "adamw")) {
    EXPECT_EQ(op->stream, StreamKind::kComm);
  }
}

TEST_F(UpdatePassesTest, AccumulatorsAreFp32Shards) {
  DefaultPipelineOptions options = Options(DType::kBf16, 1);
  const Program once = TrainGpt(options);
  options.accumulate_steps = 2;
  const Program twice = TrainGpt(options);
  const auto device_grads = [](const Program& program) {
    auto bytes = StateBytes(program);
    return bytes[{Place::kDevice, MemoryCategory::kGrads}];
  };
  EXPECT_EQ(device_grads(once), 0);
  EXPECT_EQ(device_grads(twice), 4 * ShardNumel(twice));
}

// --- Collectives ---

TEST_F(UpdatePassesTest, OffloadLeavesTheCollectivesAlone) {
  for (int64_t stage : {0, 1, 2}) {
    const auto hash = [&](double fraction, const std::string& mode) {
      DefaultPipelineOptions options = Options(DType::kBf16, fraction, mode);
      options.sharding_stage = stage;
      options.accumulate_steps = 2;
      return CollectiveHash(TrainGpt(options));
    };
    const uint64_t base = hash(0, "overlap");
    EXPECT_EQ(hash(1, "overlap"), base);
    EXPECT_EQ(hash(1, "sync"), base);
    EXPECT_EQ(hash(0.5, "overlap"), base);
  }
}

TEST_F(UpdatePassesTest, EachBucketIsReducedAndGatheredOnce) {
  for (int64_t stage : {0, 1, 2}) {
    DefaultPipelineOptions options = Options(DType::kBf16, 1);
    options.sharding_stage = stage;
    const Program program = TrainGpt(options);
    const size_t buckets = program.buckets.size();
    EXPECT_GT(buckets, 5u);
    // Two of the all_reduces are of scalars: the count and the loss; one is
    // of the stats.
    EXPECT_EQ(OpsOf(program, "all_reduce").size(),
              3 + (stage == 0 ? buckets : 0));
    EXPECT_EQ(OpsOf(program, "reduce_scatter").size(),
              stage == 0 ? 0 : buckets);
    EXPECT_EQ(OpsOf(program, "all_gather").size(), stage == 0 ? 0 : buckets);
    EXPECT_EQ(OpsOf(program, "grad_stats").size(), buckets);
    EXPECT_EQ(OpsOf(program, "adamw").size(), buckets);
  }
}

TEST_F(UpdatePassesTest, TheCountIsReducedBeforeTheForward) {
  for (const int64_t steps : {1, 3}) {
    DefaultPipelineOptions o = Options(DType::kBf16, 0);
    o.accumulate_steps = steps;
    const Program program = TrainGpt(o);
    std::vector<std::string> types;
    for (const auto& op : program.ops(Section::kMicro)) {
      if (op->type == "slice_micro") continue;
      if (op->type == "embedding") break;
      types.push_back(op->type + (op->region.empty() ? "" : " in a region"));
    }
    EXPECT_THAT(types, ElementsAre("count_valid", "all_reduce"));
  }
}

TEST_F(UpdatePassesTest, OneRankReducesNothing) {
  DefaultPipelineOptions options = Options(DType::kBf16, 1);
  options.sharding_degree = 1;
  const Program program = TrainGpt(options);
  for (const char* type : {"all_reduce", "reduce_scatter", "all_gather"}) {
    EXPECT_TRUE(OpsOf(program, type).empty()) << type;
  }
  for (const Bucket& bucket : program.buckets) {
    EXPECT_FALSE(bucket.sliced);
    EXPECT_EQ(bucket.param_slice, bucket.param);
  }
}

TEST_F(UpdatePassesTest, StagesShareTheLayout) {
  std::vector<std::vector<Bucket::Member>> layouts;
  for (int64_t stage : {0, 1, 2}) {
    DefaultPipelineOptions options = Options(DType::kBf16, 0);
    options.sharding_stage = stage;
    std::vector<Bucket::Member> members;
    for (const Bucket& bucket : TrainGpt(options).buckets) {
      members.insert(members.end(), bucket.members.begin(),
                     bucket.members.end());
    }
    layouts.push_back(members);
  }
  EXPECT_EQ(layouts[0], layouts[1]);
  EXPECT_EQ(layouts[0], layouts[2]);
}

TEST_F(UpdatePassesTest, MoreRanksThanParams) {
  DefaultPipelineOptions options = Options(DType::kBf16, 0.5);
  options.sharding_degree = 999;
  options.accumulate_steps = 2;
  const Program program = TrainGpt(options);  // verified after each pass
  for (const Bucket& bucket : program.buckets) {
    EXPECT_EQ(bucket.numel, 999 * bucket.shard_numel);
  }
}

// --- What sets params apart ---

// y = ((x w0 + frozen) w1) with an unused param; w1 takes no part in clipping.
Program OddParams() {
  GraphBuilder g("odd");
  const Value x = g.Feed("x", DType::kFp32, {4, 3});
  const Value y = g.Feed("y", DType::kFp32, {4, 5});
  const Value w0 = g.Param("w0", {3, 7}, Init::Normal(0.1), {.lr_scale = 0.25});
  const Value frozen =
      g.Param("frozen", {7}, Init::Constant(1), {.trainable = false});
  const Value w1 = g.Param("w1", {7, 5}, Init::Normal(0.1),
                           {.need_clip = false, .weight_decay = false});
  g.Param("unused", {9}, Init::Constant(1));
  const Value out = g.Matmul(g.Add(g.Matmul(x, w0), frozen), w1);
  g.SetLoss(g.SumSquaredError(out, y), g.CountElements(y));
  return g.Build();
}

TEST_F(UpdatePassesTest, SegmentsCarryTheParamsAttributes) {
  Program program = OddParams();
  DefaultPipelineOptions options;
  options.sharding_degree = 2;
  options.clip_norm = 1;
  options.offload_optimizer = true;
  Apply(program, DefaultPipeline(options));
  ASSERT_EQ(program.buckets.size(), 2u);
  EXPECT_TRUE(program.buckets[0].trainable);
  EXPECT_FALSE(program.buckets[1].trainable);
  EXPECT_EQ(program.buckets[1].grad, kNoId);
  EXPECT_EQ(program.buckets[1].moment1, kNoId);

  const auto updates = OpsOf(program, "adamw");
  ASSERT_EQ(updates.size(), 1u);  // the frozen bucket has none
  const AttrMap& attrs = updates[0]->attrs;
  EXPECT_EQ(attrs.GetInts("segment_begins"),
            (std::vector<int64_t>{0, 128, 256}));
  EXPECT_EQ(attrs.GetInts("segment_numels"), (std::vector<int64_t>{21, 35, 9}));
  EXPECT_EQ(attrs.GetInts("segment_need_clip"),
            (std::vector<int64_t>{1, 0, 1}));
  EXPECT_EQ(attrs.GetFloats("segment_weight_decay"),
            (std::vector<double>{1, 0, 1}));
  EXPECT_EQ(attrs.GetFloats("segment_lr_scale"),
            (std::vector<double>{0.25, 1, 1}));
  const auto records = OpsOf(program, "step_record");
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0]->attrs.GetInts("need_clip"),
            (std::vector<int64_t>{1, 0, 1, -1}));
  EXPECT_EQ(records[0]->attrs.GetString("clip_mode"), "global_norm");
}

TEST_F(UpdatePassesTest, PerParamClippingReadsTheStatsWhereTheUpdateRuns) {
  for (bool offload : {false, true}) {
    DefaultPipelineOptions options = Options(DType::kBf16, offload ? 1 : 0);
    options.clip_mode = "norm";
    const Program program = TrainGpt(options);
    int64_t offset = 0;
    size_t i = 0;
    for (const Op* op : OpsOf(program, "adamw")) {
      ASSERT_TRUE(op->HasIn("stats"));
      EXPECT_EQ(program.var(op->In1("stats")).place,
                offload ? Place::kPinned : Place::kDevice);
      EXPECT_EQ(op->attrs.GetInt("stats_offset"), offset);
      offset += program.buckets[i++].members.size() + 1;
    }
    EXPECT_EQ(program.var(program.GetVar("grad_stats")).shape.numel(), offset);
  }
}

TEST_F(UpdatePassesTest, WiderGradsAreCastOnTheirWayIntoTheBucket) {
  DefaultPipelineOptions options = Options(DType::kBf16, 1);
  options.grad_dtype = "fp32";
  const Program program = TrainGpt(options);
  for (const Bucket& bucket : program.buckets) {
    EXPECT_EQ(program.var(bucket.grad).dtype, DType::kFp32);
    EXPECT_EQ(program.var(bucket.final_grad).dtype, DType::kFp32);
  }
  for (VarId param : program.Params()) {
    const Var& grad = program.var(program.Related(param, Relation::kGradOf));
    EXPECT_EQ(grad.dtype, DType::kFp32);
    EXPECT_TRUE(grad.is_view());
  }
}

// --- The ring ---

TEST_F(UpdatePassesTest, CreditEdgesBoundTheBlocksInFlight) {
  for (size_t depth : {1, 2, 4}) {
    DefaultPipelineOptions options = Options(DType::kBf16, 1);
    options.prefetch_depth = depth;
    const Program program = TrainGpt(options);
    const auto& micro = program.ops(Section::kMicro);
    std::map<VarId, const Op*> first_writer;  // by storage
    for (const auto& op : micro) {
      for (const Slot& slot : op->outputs) {
        for (VarId v : slot.vars) {
          first_writer.emplace(program.StorageOf(v), op.get());
        }
      }
    }
    // Blocks in the order of backward, with their reductions and copies.
    const auto reductions = OpsOf(program, "reduce_scatter");
    const auto copies = OpsOf(program, "copy_d2h");
    std::vector<std::vector<size_t>> blocks;
    std::string last;
    for (size_t i = 0; i < reductions.size(); ++i) {
      const std::string& region = reductions[i]->region;
      const std::string block = region.substr(0, region.find('/'));
      if (blocks.empty() || block != last) blocks.emplace_back();
      blocks.back().push_back(i);
      last = block;
    }
    ASSERT_EQ(blocks.size(), 6u);  // head, four layers, embedding
    for (size_t k = depth; k < blocks.size(); ++k) {
      const size_t freed = blocks[k - depth].back();
      for (size_t i : blocks[k]) {
        EXPECT_THAT(reductions[i]->after, Contains(copies[freed]->id));
        const VarId grad = reductions[i]->In1("x");
        const Op* first = first_writer.at(program.StorageOf(grad));
        if (program.var(grad).name == "bucket0@grad") {
          EXPECT_TRUE(first->after.empty());  // the tied table
        } else {
          EXPECT_THAT(first->after, Contains(reductions[freed]->id));
        }
      }
    }
  }
}

TEST_F(UpdatePassesTest, EveryTransferHasItsStream) {
  DefaultPipelineOptions options = Options(DType::kBf16, 0.5);
  options.accumulate_steps = 2;
  const Program program = TrainGpt(options);
  const std::map<std::string, StreamKind> streams = {
      {"reduce_scatter", StreamKind::kComm},
      {"all_reduce", StreamKind::kComm},
      {"all_gather", StreamKind::kComm},
      {"copy_d2h", StreamKind::kD2H},
      {"copy_h2d", StreamKind::kH2D}};
  for (const auto& [type, stream] : streams) {
    const auto ops = OpsOf(program, type);
    EXPECT_FALSE(ops.empty()) << type;
    for (const Op* op : ops) EXPECT_EQ(op->stream, stream) << Describe(*op);
  }
  std::set<StreamKind> updates;
  for (const Op* op : OpsOf(program, "adamw")) updates.insert(op->stream);
  EXPECT_EQ(updates,
            (std::set<StreamKind>{StreamKind::kCompute, StreamKind::kHost}));
}

TEST_F(UpdatePassesTest, SyncModeIsOneChain) {
  const Program program = TrainGpt(Options(DType::kBf16, 1, "sync"));
  const auto& update = program.ops(Section::kUpdate);
  for (size_t i = 1; i < update.size(); ++i) {
    EXPECT_THAT(update[i]->after, Contains(update[i - 1]->id));
  }
  EXPECT_THAT(program.ops(Section::kMicro).front()->after,
              Contains(update.back()->id));
}

// --- Order and repetition ---

TEST_F(UpdatePassesTest, MissingPredecessorsAreNamed) {
  const std::vector<std::array<std::string, 3>> cases = {
      {"", "shard_optimizer", "append_backward must run before"},
      {"append_backward", "accumulate_micro_steps(steps=2)",
       "needs shard_optimizer"},
      {"append_backward", "check_gradients", "needs shard_optimizer"},
      {"append_backward,shard_optimizer", "insert_loss_scaling",
       "needs check_gradients"},
      {"append_backward,shard_optimizer", "clip_gradients",
       "needs check_gradients"},
      {"append_backward,shard_optimizer", "insert_optimizer",
       "needs check_gradients"},
      {"append_backward,shard_optimizer,check_gradients", "offload_optimizer",
       "needs insert_optimizer"},
  };
  for (const auto& [before, pass, message] : cases) {
    Program program = OddParams();
    Apply(program, before);
    const std::string text = PrintProgram(program);
    try {
      Apply(program, pass);
      FAIL() << pass;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
      EXPECT_THAT(error.message(), HasSubstr(message));
    }
    EXPECT_EQ(PrintProgram(program), text) << pass << " left traces";
  }
}

TEST_F(UpdatePassesTest, ASecondApplicationIsRefusedOrChangesNothing) {
  const std::string all =
      "append_backward,shard_optimizer(degree=2),"
      "accumulate_micro_steps(steps=2),check_gradients,insert_loss_scaling,"
      "clip_gradients,insert_optimizer,offload_optimizer,schedule_transfers";
  for (const char* pass :
       {"shard_optimizer", "accumulate_micro_steps(steps=2)", "check_gradients",
        "insert_loss_scaling", "clip_gradients", "insert_optimizer",
        "offload_optimizer"}) {
    Program program = OddParams();
    Apply(program, all);
    try {
      Apply(program, pass);
      FAIL() << pass;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition) << pass;
    }
  }
  Program program = OddParams();
  Apply(program, all);
  PassManager again = PassManager::Parse("schedule_transfers");
  again.Run(program);
  EXPECT_FALSE(again.records()[0].changed);
}

TEST_F(UpdatePassesTest, NeutralOptionsChangeNothing) {
  Program program = OddParams();
  PassManager passes = PassManager::Parse(
      "append_backward,shard_optimizer,accumulate_micro_steps(steps=1),"
      "check_gradients,insert_optimizer,offload_optimizer(fraction=0)");
  passes.Run(program);
  EXPECT_FALSE(passes.records()[2].changed);
  EXPECT_FALSE(passes.records()[5].changed);
}

}  // namespace
}  // namespace plo
