// grad_stats, step_record, lr_schedule, update_loss_scaling.
#include "operators/step_record.h"

#include <cmath>
#include <limits>

#include "tests/operators/test_util.h"

namespace plo::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// --- grad_stats ---

OpCase GradStats(Array x, bool sliced, int64_t slice, int rank,
                 std::vector<int64_t> begins, std::vector<int64_t> numels,
                 double scale = 1) {
  OpCase c;
  c.type = "grad_stats";
  c.inputs = {{"x", {std::move(x)}}};
  if (scale != 1) {
    c.inputs.push_back({"scale", {ScalarArray(DType::kFp32, scale)}});
  }
  c.outputs = {"stats"};
  c.attrs = Attrs({{"sliced", Attr(sliced)},
                   {"slice_numel", Int(slice)},
                   {"segment_begins", Ints(std::move(begins))},
                   {"segment_numels", Ints(std::move(numels))}});
  c.env.rank = rank;
  c.env.world_size = 2;
  return c;
}

TEST(GradStatsTest, SlicesAndWholeBucketsAgree) {
  // A segment across both slices, one in each, padding at the ends.
  constexpr int64_t kSlice = 70000;
  const std::vector<int64_t> begins = {0, 128, 69888, 100096};
  const std::vector<int64_t> numels = {100, 60000, 30001, 39000};
  for (const DType dtype : kFloatTypes) {
    Array bucket = RandomArray(dtype, {2 * kSlice}, 1, -3, 3);
    bucket.values[200] = kInf;
    bucket.values[99000] = NAN;
    bucket.values[99001] = -kInf;
    for (int rank = 0; rank < 2; ++rank) {
      const auto from = bucket.values.begin() + rank * kSlice;
      const Array slice{dtype, {kSlice}, {from, from + kSlice}};
      const OpCase sliced =
          GradStats(slice, true, kSlice, rank, begins, numels);
      const OpCase whole =
          GradStats(bucket, false, kSlice, rank, begins, numels);
      const Array stats = RunOp(sliced)["stats"][0];
      ExpectSame(RunOp(whole)["stats"][0], stats, "whole");
      EXPECT_EQ(stats[4], rank == 0 ? 1 : 2);
      for (size_t s = 0; s < 4; ++s) {
        double want = 0;
        for (int64_t i = begins[s]; i < begins[s] + numels[s]; ++i) {
          if (i / kSlice != rank) continue;
          want += bucket[i] * bucket[i];
        }
        const double got = stats[static_cast<int64_t>(s)];
        if (std::isfinite(want)) {
          EXPECT_NEAR(got, want, 1e-6 * want) << s;
        } else {
          EXPECT_FALSE(std::isfinite(got)) << s;
        }
      }
      ExpectSameForAnyThreads(sliced);
    }
  }
}

// On a GPU: more segments than one launch takes, one of many blocks, some
// empty.
TEST(GradStatsTest, ManySegmentsHaveTheBitsOfTheCpu) {
  constexpr int64_t kLong = 40 * 32768 + 5;
  std::vector<int64_t> begins, numels;
  int64_t end = 0;
  for (int64_t s = 0; s < 300; ++s) {
    begins.push_back(end);
    numels.push_back(s == 150 ? kLong : s % 7 * 100);
    end += numels.back() + s % 3;
  }
  Array x = RandomArray(DType::kBf16, {end}, 1, -3, 3);
  for (const size_t s : {1u, 127u, 128u, 150u, 299u}) {
    x.values[static_cast<size_t>(begins[s])] = s % 2 == 0 ? NAN : kInf;
  }
  const OpCase c = GradStats(x, true, end, 0, begins, numels, 0x1p10);
  const Array stats = RunOp(c)["stats"][0];
  EXPECT_EQ(stats[300], 5);
  ExpectSame(stats, RunOp(c, DeviceKind::kCpu)["stats"][0], "stats");
}

// Squares of scaled gradients would overflow or vanish in fp32.
TEST(GradStatsTest, ScalesOfAnySizeAreTakenOut) {
  constexpr int64_t kNumel = 40000;
  const Array grads = RandomArray(DType::kFp32, {kNumel}, 5, -3, 3);
  const Array plain =
      RunOp(GradStats(grads, true, kNumel, 0, {0}, {kNumel}))["stats"][0];
  for (const double scale : {0x1p-120, 0x1p-60, 0x1p16, 0x1p100, 0x1p120}) {
    Array scaled = grads;
    for (double& x : scaled.values) x *= scale;
    ExpectSame(RunOp(GradStats(scaled, true, kNumel, 0, {0}, {kNumel},
                               scale))["stats"][0],
               plain, StrCat("scale ", scale));
  }
}

TEST(GradStatsTest, EmptySlice) {
  const Array stats = RunOp(GradStats(RandomArray(DType::kFp32, {0}, 1), true,
                                      0, 0, {0}, {0}))["stats"][0];
  EXPECT_EQ(stats.values, (std::vector<double>{0, 0}));
  EXPECT_THAT(ErrorOf(GradStats(RandomArray(DType::kFp32, {9}, 1), true, 9, 0,
                                {0, 3}, {4, 5})),
              ::testing::HasSubstr("disjoint"));
}

// --- step_record ---

struct RecordCase {
  std::string clip_mode = "none";
  double clip_norm = 0;
  std::vector<double> stats;  // sums of squares and counters
  std::vector<int64_t> need_clip;
  int64_t applied = 0;
  double scale = 1;
};

OpCase StepRecord(const RecordCase& k) {
  OpCase c;
  c.type = "step_record";
  c.inputs = {{"stats",
               {MakeArray(DType::kFp32, {static_cast<int64_t>(k.stats.size())},
                          k.stats)}},
              {"applied_step",
               {ScalarArray(DType::kInt64, static_cast<double>(k.applied))}},
              {"lr", {ScalarArray(DType::kFp32, 0.25)}}};
  if (k.scale != 1) {
    c.inputs.push_back({"scale", {ScalarArray(DType::kFp32, k.scale)}});
  }
  c.outputs = {"record", "applied_step"};
  c.same_var = {{"applied_step", "applied_step"}};
  c.attrs = Attrs({{"clip_mode", Str(k.clip_mode.c_str())},
                   {"clip_norm", k.clip_norm},
                   {"need_clip", Ints(k.need_clip)},
                   {"beta1", 0.9},
                   {"beta2", 0.999}});
  return c;
}

struct RecordRow {
  const char* why;
  RecordCase given;
  double skip, norm, multiplier, applied;
};

TEST(StepRecordTest, Table) {
  const std::vector<RecordRow> rows = {
      {"two buckets, no clipping",
       {"none", 0, {9, 0, 16, 0}, {1, -1, 1, -1}, 0, 1},
       0,
       5,
       1,
       1},
      {"unscaling",
       {"none", 0, {9, 0, 16, 0}, {1, -1, 1, -1}, 4, 8},
       0,
       5,
       0.125,
       5},
      {"clipped",
       {"global_norm", 1.0, {9, 0, 16, 0}, {1, -1, 1, -1}, 0, 1},
       0,
       5,
       1 / (5 + 1e-6),
       1},
      {"clipped and unscaled",
       {"global_norm", 0.5, {1, 0}, {1, -1}, 0, 8},
       0,
       1,
       0.125 * 0.5 / (1 + 1e-6),
       1},
      {"below the bound",
       {"global_norm", 10, {9, 16, 0}, {1, 1, -1}, 0, 1},
       0,
       5,
       1,
       1},
      {"a param that is not clipped does not count",
       {"global_norm", 10, {9, 16, 0}, {1, 0, -1}, 0, 1},
       0,
       3,
       1,
       1},
      {"clipping by value leaves the multiplier",
       {"value", 0.1, {9, 16, 0}, {1, 1, -1}, 0, 1},
       0,
       5,
       1,
       1},
      {"a non-finite element anywhere skips",
       {"global_norm", 1, {9, 0, 16, 1}, {1, -1, 1, -1}, 7, 1},
       1,
       5,
       1 / (5 + 1e-6),
       7},
      {"in the first step too", {"none", 0, {9, 3}, {1, -1}, 0, 1}, 1, 3, 1, 0},
      {"zero gradients", {"global_norm", 1, {0, 0}, {1, -1}, 0, 1}, 0, 0, 1, 1},
  };
  for (const RecordRow& row : rows) {
    SCOPED_TRACE(row.why);
    SlotArrays out = RunOp(StepRecord(row.given));
    const Array& record = out["record"][0];
    EXPECT_EQ(record.shape, Shape{kStepRecordSize});
    EXPECT_EQ(record[kRecordSkip], row.skip);
    EXPECT_EQ(record[kRecordLr], 0.25);
    const double update = static_cast<double>(row.given.applied) + 1;
    EXPECT_NEAR(record[kRecordBiasCorrection1], 1 - std::pow(0.9, update),
                1e-7);
    EXPECT_NEAR(record[kRecordBiasCorrection2], 1 - std::pow(0.999, update),
                1e-9);
    EXPECT_FLOAT_EQ(record[kRecordMultiplier], row.multiplier);
    EXPECT_FLOAT_EQ(record[kRecordUnclipped], 1 / row.given.scale);
    EXPECT_FLOAT_EQ(record[kRecordNorm], row.norm);
    EXPECT_EQ(record[kRecordLossScale], row.given.scale);
    EXPECT_EQ(record[kRecordAppliedStep], row.applied);
    EXPECT_EQ(out["applied_step"][0][0], row.applied);
    for (int64_t i = kRecordNonfinite + 1; i < kStepRecordSize; ++i) {
      EXPECT_EQ(record[i], 0);
    }
  }
}

// An update of zeros, step after step, would look like training.
TEST(StepRecordTest, WhatFp32DoesNotHoldSkips) {
  const auto skips = [](const RecordCase& k) {
    return RunOp(StepRecord(k))["record"][0][kRecordSkip];
  };
  // Finite gradients whose squares overflow.
  for (const char* mode : {"none", "global_norm", "norm"}) {
    EXPECT_EQ(skips({mode, 1, {kInf, 0}, {1, -1}, 0, 1}), 1) << mode;
    EXPECT_EQ(skips({mode, 1, {NAN, 0}, {1, -1}, 0, 1}), 1) << mode;
    EXPECT_EQ(skips({mode, 1, {3e38, 3e38, 0}, {1, 1, -1}, 0, 1}), 0) << mode;
  }
  // Not part of the norm.
  EXPECT_EQ(skips({"global_norm", 1, {4, kInf, 0}, {1, 0, -1}, 0, 1}), 0);
  // A multiplier of zero, and an infinite one.
  EXPECT_EQ(skips({"global_norm", 1e-20, {4, 0}, {1, -1}, 0, 0x1p126}), 1);
  EXPECT_EQ(skips({"none", 0, {4, 0}, {1, -1}, 0, 0x1p-140}), 1);
  EXPECT_EQ(skips({"none", 0, {4, 0}, {1, -1}, 0, 0x1p126}), 0);
  EXPECT_EQ(skips({"none", 0, {4, 0}, {1, -1}, 0, 0x1p-126}), 0);
}

TEST(StepRecordTest, AttributesAreChecked) {
  EXPECT_THAT(ErrorOf(StepRecord({"median", 1, {0}, {1}, 0, 1})),
              ::testing::HasSubstr("median"));
  EXPECT_THAT(ErrorOf(StepRecord({"norm", -1, {0}, {1}, 0, 1})),
              ::testing::HasSubstr("clip_norm must be positive"));
  EXPECT_THAT(ErrorOf(StepRecord({"none", 0, {0, 1}, {1}, 0, 1})),
              ::testing::HasSubstr("1 entries for 2 stats"));
}

// --- lr_schedule ---

OpCase LrSchedule(const char* kind, int64_t applied, int64_t warmup,
                  int64_t total, double ratio) {
  OpCase c;
  c.type = "lr_schedule";
  c.inputs = {{"applied_step",
               {ScalarArray(DType::kInt64, static_cast<double>(applied))}}};
  c.outputs = {"lr"};
  c.attrs = Attrs({{"kind", Str(kind)},
                   {"base_lr", 0.5},
                   {"warmup_steps", Int(warmup)},
                   {"total_steps", Int(total)},
                   {"min_ratio", ratio}});
  return c;
}

TEST(LrScheduleTest, Table) {
  struct Row {
    const char* kind;
    int64_t applied, warmup, total;
    double ratio, want;
  };
  for (const Row& r : std::vector<Row>{
           {"constant", 0, 0, 0, 0, 0.5},
           {"constant", 1000, 0, 0, 0, 0.5},
           {"constant", 0, 4, 0, 0, 0.125},
           {"constant", 3, 4, 0, 0, 0.5},
           {"linear", 0, 2, 10, 0, 0.25},
           {"linear", 1, 2, 10, 0, 0.5},
           {"linear", 5, 2, 10, 0, 0.25},
           {"linear", 9, 2, 10, 0.1, 0.05},
           {"linear", 99, 2, 10, 0.1, 0.05},
           {"cosine", 5, 2, 10, 0, 0.25},
           {"cosine", 3, 2, 10, 0, 0.25 * (1 + std::cos(M_PI / 4))},
           {"cosine", 9, 2, 10, 0.2, 0.1},
           {"cosine", 99, 2, 10, 0.2, 0.1}}) {
    EXPECT_NEAR(RunOp(LrSchedule(r.kind, r.applied, r.warmup, r.total,
                                 r.ratio))["lr"][0][0],
                r.want, 1e-7)
        << r.kind << " after " << r.applied;
  }
  EXPECT_THAT(ErrorOf(LrSchedule("step", 0, 0, 0, 0)),
              ::testing::HasSubstr("'step'"));
  EXPECT_THAT(ErrorOf(LrSchedule("cosine", 0, 5, 5, 0)),
              ::testing::HasSubstr("total_steps is 5"));
  OpCase bad = LrSchedule("constant", 0, 0, 0, 0);
  bad.attrs.Set("base_lr", std::nan(""));
  EXPECT_THAT(ErrorOf(bad), ::testing::HasSubstr("base_lr"));
  bad.attrs.Set("base_lr", -1.0);
  EXPECT_THAT(ErrorOf(bad), ::testing::HasSubstr("base_lr"));
}

// --- update_loss_scaling ---

struct ScalerState {
  double scale;
  double good, bad;
  bool operator==(const ScalerState&) const = default;
};

struct ScalerRule {
  double incr_ratio = 2, decr_ratio = 0.5;
  int64_t incr_every_n = 2, decr_every_n = 1;
  double min_scale = 1;
};

OpCase UpdateScale(const ScalerState& s, const ScalerRule& rule, bool skip) {
  std::vector<double> record(kStepRecordSize, 0.0);
  record[kRecordSkip] = skip;
  OpCase c;
  c.type = "update_loss_scaling";
  c.inputs = {{"record", {MakeArray(DType::kFp32, {kStepRecordSize}, record)}},
              {"scale", {ScalarArray(DType::kFp32, s.scale)}},
              {"good", {ScalarArray(DType::kInt32, s.good)}},
              {"bad", {ScalarArray(DType::kInt32, s.bad)}}};
  c.outputs = {"scale", "good", "bad"};
  c.same_var = {{"scale", "scale"}, {"good", "good"}, {"bad", "bad"}};
  c.attrs = Attrs({{"incr_ratio", rule.incr_ratio},
                   {"decr_ratio", rule.decr_ratio},
                   {"incr_every_n", Int(rule.incr_every_n)},
                   {"decr_every_n", Int(rule.decr_every_n)},
                   {"min_scale", rule.min_scale}});
  return c;
}

// Runs a trace of steps, "x" for a skipped one and "." for a good one, and
// returns the scale after each.
std::vector<double> Trace(double scale, const ScalerRule& rule,
                          const std::string& steps) {
  ScalerState s{scale, 0, 0};
  std::vector<double> scales;
  for (const char step : steps) {
    SlotArrays out = RunOp(UpdateScale(s, rule, step == 'x'));
    s = {out["scale"][0][0], out["good"][0][0], out["bad"][0][0]};
    scales.push_back(s.scale);
  }
  return scales;
}

TEST(UpdateLossScalingTest, Traces) {
  using Scales = std::vector<double>;
  EXPECT_EQ(Trace(8, {}, "...."), (Scales{8, 16, 16, 32}));
  // A bad step resets the count of good ones.
  EXPECT_EQ(Trace(8, {}, ".x.."), (Scales{8, 4, 4, 8}));
  EXPECT_EQ(Trace(8, {}, "xx"), (Scales{4, 2}));
  // decr_every_n bad steps in a row; a good one resets the count.
  ScalerRule patient;
  patient.decr_every_n = 2;
  patient.incr_every_n = 100;
  EXPECT_EQ(Trace(8, patient, "xx.xx"), (Scales{8, 4, 4, 4, 2}));
  EXPECT_EQ(Trace(8, patient, "x.x.x"), (Scales{8, 8, 8, 8, 8}));
  EXPECT_EQ(Trace(8, patient, "xxxx"), (Scales{8, 4, 4, 2}));
  // The floor.
  EXPECT_EQ(Trace(3, {}, "xxx"), (Scales{1.5, 1, 1}));
  ScalerRule floor;
  floor.min_scale = 6;
  EXPECT_EQ(Trace(8, floor, "xx"), (Scales{6, 6}));
  // Growth stops before infinity and does not get stuck.
  ScalerRule fast;
  fast.incr_every_n = 1;
  EXPECT_EQ(Trace(0x1p126, fast, "..x"), (Scales{0x1p127, 0x1p127, 0x1p126}));
  // No growth with a ratio of 1.
  ScalerRule flat;
  flat.incr_ratio = 1;
  EXPECT_EQ(Trace(8, flat, "...."), (Scales{8, 8, 8, 8}));
}

TEST(UpdateLossScalingTest, CountersAreConsecutive) {
  ScalerRule rule;
  rule.incr_every_n = 3;
  rule.decr_every_n = 3;
  struct Row {
    ScalerState before;
    bool skip;
    ScalerState after;
  };
  for (const Row& row : std::vector<Row>{{{8, 0, 0}, false, {8, 1, 0}},
                                         {{8, 1, 0}, false, {8, 2, 0}},
                                         {{8, 2, 0}, false, {16, 0, 0}},
                                         {{8, 2, 0}, true, {8, 0, 1}},
                                         {{8, 0, 1}, true, {8, 0, 2}},
                                         {{8, 0, 2}, true, {4, 0, 0}},
                                         {{8, 0, 2}, false, {8, 1, 0}}}) {
    SlotArrays out = RunOp(UpdateScale(row.before, rule, row.skip));
    const ScalerState after{out["scale"][0][0], out["good"][0][0],
                            out["bad"][0][0]};
    EXPECT_EQ(after, row.after);
  }
}

TEST(UpdateLossScalingTest, AttributesAreChecked) {
  const auto error = [](auto change) {
    ScalerRule rule;
    change(rule);
    return ErrorOf(UpdateScale({8, 0, 0}, rule, false));
  };
  EXPECT_THAT(error([](ScalerRule& r) { r.incr_ratio = 0.9; }),
              ::testing::HasSubstr("incr_ratio must be at least 1"));
  EXPECT_THAT(error([](ScalerRule& r) { r.decr_ratio = 0; }),
              ::testing::HasSubstr("decr_ratio"));
  EXPECT_THAT(error([](ScalerRule& r) { r.min_scale = 0; }),
              ::testing::HasSubstr("min_scale"));
  EXPECT_THAT(error([](ScalerRule& r) { r.incr_every_n = 0; }),
              ::testing::HasSubstr("incr_every_n"));
}

}  // namespace
}  // namespace plo::testing
