// Fills, casts, micro-step slices, counts, accumulation, copies, collectives.
#include <cmath>
#include <thread>

#include "framework/runtime/comm.h"
#include "operators/random.h"
#include "tests/operators/gradient_check.h"
#include "tests/operators/test_util.h"

namespace plo::testing {
namespace {

OpCase Case(const std::string& type,
            std::vector<std::pair<std::string, Arrays>> inputs,
            std::vector<std::string> outputs,
            std::vector<std::pair<std::string, Attr>> attrs = {}) {
  OpCase c;
  c.type = type;
  c.inputs = std::move(inputs);
  c.outputs = std::move(outputs);
  c.attrs = Attrs(std::move(attrs));
  return c;
}

// --- Fills ---

TEST(FillTest, ConstantOfEveryType) {
  for (const DType dtype : {DType::kFp32, DType::kBf16, DType::kFp16,
                            DType::kInt32, DType::kInt64, DType::kBool}) {
    OpCase c = Case("fill_constant", {}, {"out"},
                    {{"value", 1.0},
                     {"shape", Ints({3, 5})},
                     {"dtype", Str(std::string(DTypeName(dtype)).c_str())}});
    ExpectNear(RunOp(c)["out"][0], std::vector<double>(15, 1.0), 0, 0, "ones");
  }
  EXPECT_THAT(
      ErrorOf(Case(
          "fill_constant", {}, {"out"},
          {{"value", 1.0}, {"shape", Ints({3, -5})}, {"dtype", Str("fp32")}})),
      ::testing::HasSubstr("[3, -5]"));
}

OpCase Normal(const char* key, int64_t n, const char* dtype = "fp32") {
  return Case("fill_normal", {}, {"out"},
              {{"mean", 0.5},
               {"std", 0.02},
               {"key", Str(key)},
               {"shape", Ints({n})},
               {"dtype", Str(dtype)}});
}

TEST(FillTest, NormalDependsOnSeedKeyAndElementOnly) {
  OpCase c = Normal("w", 5000);
  c.env.seed = 7;
  const Array first = RunOp(c)["out"][0];
  double sum = 0, squares = 0;
  for (double v : first.values) {
    sum += v;
    squares += (v - 0.5) * (v - 0.5);
  }
  EXPECT_NEAR(sum / 5000, 0.5, 2e-3);
  EXPECT_NEAR(std::sqrt(squares / 5000), 0.02, 1e-3);
  const PhiloxBlock words = RandomWords(RandomKey(7, HashBytes("w", 1)), 0, 0);
  const NormalPair pair = NormalFromWords(words.word[0], words.word[1]);
  EXPECT_EQ(first[0], std::fma(pair.first, 0.02f, 0.5f));

  c.env.rank = 3;
  c.env.world_size = 4;
  ExpectSame(RunOp(c)["out"][0], first, "another rank");
  // A prefix of a longer tensor; the same values rounded in 16 bits.
  OpCase longer = Normal("w", 70001);
  longer.env.seed = 7;
  const Array more = RunOp(longer)["out"][0];
  for (int64_t i = 0; i < 5000; ++i) ASSERT_EQ(more[i], first[i]);
  OpCase half = Normal("w", 5000, "bf16");
  half.env.seed = 7;
  const Array rounded = RunOp(half)["out"][0];
  for (int64_t i = 0; i < 5000; ++i) {
    ASSERT_EQ(rounded[i], RoundTo(DType::kBf16, first[i]));
  }
  EXPECT_NE(RunOp(Normal("w", 5000))["out"][0].values, first.values);
  OpCase other = Normal("v", 5000);
  other.env.seed = 7;
  EXPECT_NE(RunOp(other)["out"][0].values, first.values);
  ExpectSameForAnyThreads(longer);
}

TEST(FillTest, UniformCoversItsRange) {
  const Array out = RunOp(Case("fill_uniform", {}, {"out"},
                               {{"low", -2.0},
                                {"high", 6.0},
                                {"key", Str("u")},
                                {"shape", Ints({100, 100})},
                                {"dtype", Str("fp32")}}))["out"][0];
  double sum = 0;
  for (double v : out.values) {
    ASSERT_GE(v, -2);
    ASSERT_LE(v, 6);
    sum += v;
  }
  EXPECT_NEAR(sum / 10000, 2.0, 0.1);
  EXPECT_THAT(
      ErrorOf(Case(
          "fill_uniform", {}, {"out"},
          {{"key", Str("u")}, {"shape", Ints({2})}, {"dtype", Str("int32")}})),
      ::testing::HasSubstr("float"));
}

// --- Casts ---

TEST(CastTest, RoundsOnce) {
  for (const DType from : kFloatTypes) {
    for (const DType to : kFloatTypes) {
      for (const Place place : {Place::kDevice, Place::kPinned}) {
        OpCase c =
            Case("cast", {{"x", {RandomArray(from, {3, 1111}, 1, -9, 9)}}},
                 {"out"}, {{"dtype", Str(std::string(DTypeName(to)).c_str())}});
        c.place = place;
        const Array out = RunOp(c)["out"][0];
        EXPECT_EQ(out.dtype, to);
        for (int64_t i = 0; i < 3333; ++i) {
          ASSERT_EQ(out[i], RoundTo(to, c.inputs[0].second[0][i]));
        }
      }
    }
  }
  const OpCase c = Case("cast", {{"x", {RandomArray(DType::kBf16, {4}, 1)}}},
                        {"out"}, {{"dtype", Str("fp32")}});
  const Array dout = RandomArray(DType::kFp32, {4}, 2);
  const Array dx = RunGrad(c, {{"out", dout}}, {"x"}).at("x");
  EXPECT_EQ(dx.dtype, DType::kBf16);
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(dx[i], RoundTo(DType::kBf16, dout[i]));
  }
  EXPECT_THAT(ErrorOf(Case("cast", {{"x", {RandomArray(DType::kFp32, {2}, 1)}}},
                           {"out"}, {{"dtype", Str("int32")}})),
              ::testing::HasSubstr("int32"));
}

// --- Micro-steps ---

TEST(MicroStepTest, SliceMicroPicksTheStep) {
  OpCase c =
      Case("slice_micro",
           {{"x", {RandomInts(DType::kInt32, {3, 2, 5}, 1, 0, 99)}}}, {"out"});
  for (int micro = 0; micro < 3; ++micro) {
    c.step.micro_index = micro;
    const Array out = RunOp(c)["out"][0];
    EXPECT_EQ(out.shape, (Shape{2, 5}));
    for (int64_t i = 0; i < 10; ++i) {
      EXPECT_EQ(out[i], c.inputs[0].second[0][micro * 10 + i]);
    }
  }
  c.step.micro_index = 3;
  EXPECT_THAT(RunErrorOf(c), ::testing::HasSubstr("micro-step 3"));
}

TEST(MicroStepTest, AccumulateOverwritesThenAdds) {
  for (const DType dtype : kFloatTypes) {
    const Array x = RandomArray(dtype, {40001}, 1);
    const Array acc = RandomArray(DType::kFp32, {40001}, 2);
    OpCase c = Case("accumulate", {{"x", {x}}, {"acc", {acc}}}, {"acc"});
    c.same_var = {{"acc", "acc"}};
    ExpectNear(RunOp(c)["acc"][0], x.values, 0, 0, "first");
    c.step.micro_index = 2;
    std::vector<double> want;
    for (int64_t i = 0; i < 40001; ++i) {
      want.push_back(static_cast<float>(x[i]) + static_cast<float>(acc[i]));
    }
    ExpectNear(RunOp(c)["acc"][0], want, 0, 0, "later");
  }
}

TEST(MicroStepTest, ZeroRanges) {
  OpCase c =
      Case("zero_ranges", {{"x", {RandomArray(DType::kBf16, {20}, 1, 1, 2)}}},
           {"x"}, {{"begins", Ints({3, 18})}, {"ends", Ints({5, 20})}});
  c.same_var = {{"x", "x"}};
  const Array out = RunOp(c)["x"][0];
  for (int64_t i = 0; i < 20; ++i) {
    const bool zero = i == 3 || i == 4 || i >= 18;
    EXPECT_EQ(out[i], zero ? 0 : c.inputs[0].second[0][i]);
  }
  c.attrs = Attrs({{"begins", Ints({3})}, {"ends", Ints({21})}});
  EXPECT_THAT(ErrorOf(c), ::testing::HasSubstr("[3, 21)"));
}

TEST(LossSeedTest, CountsAndSeeds) {
  const Array labels =
      MakeArray(DType::kInt32, {2, 3}, {1, -100, 2, -100, 0, 5});
  EXPECT_EQ(RunOp(Case("count_valid", {{"labels", {labels}}},
                       {"count"}))["count"][0][0],
            4);
  EXPECT_EQ(RunOp(Case("count_valid", {{"labels", {labels}}}, {"count"},
                       {{"ignore_index", Int(0)}}))["count"][0][0],
            5);
  EXPECT_EQ(RunOp(Case("count_elements", {{"x", {labels}}},
                       {"count"}))["count"][0][0],
            6);
  const auto seed = [](double count) {
    return Case("loss_seed", {{"count", {ScalarArray(DType::kFp32, count)}}},
                {"seed"});
  };
  EXPECT_EQ(RunOp(seed(4))["seed"][0][0], 0.25);
  EXPECT_EQ(RunOp(seed(0))["seed"][0][0], 1);
  OpCase scaled = seed(3);
  scaled.inputs.push_back({"scale", {ScalarArray(DType::kFp32, 65536)}});
  EXPECT_EQ(RunOp(scaled)["seed"][0][0], 65536.0f / 3.0f);
}

// --- Copies and collectives ---

TEST(CopyTest, BothWays) {
  for (const char* type : {"copy_d2h", "copy_h2d"}) {
    const Array x = RandomArray(DType::kFp16, {1001}, 1);
    ExpectSame(RunOp(Case(type, {{"x", {x}}}, {"out"}))["out"][0], x, type);
  }
}

TEST(CollectiveTest, OneRankCopies) {
  const Array x = RandomArray(DType::kBf16, {64}, 1);
  for (const char* type : {"all_reduce", "reduce_scatter", "all_gather"}) {
    ExpectSame(RunOp(Case(type, {{"x", {x}}}, {"out"}))["out"][0], x, type);
  }
  OpCase in_place = Case("all_reduce", {{"x", {x}}}, {"out"});
  in_place.same_var = {{"out", "x"}};
  ExpectSame(RunOp(in_place)["out"][0], x, "in place");
  EXPECT_THAT(ErrorOf(Case("all_reduce", {{"x", {x}}}, {"out"},
                           {{"reduction", Str("product")}})),
              ::testing::HasSubstr("product"));
}

// Runs fn(rank, harness, env) on three ranks.
template <typename Fn>
void OnRanks(const Fn& fn) {
  auto comms = CreateThreadComms(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      OpHarness harness;
      harness.program().world_size = 3;
      KernelEnv env;
      env.rank = rank;
      env.world_size = 3;
      env.comm = comms[static_cast<size_t>(rank)].get();
      fn(rank, harness, env);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

Array RunCollective(OpHarness& harness, const KernelEnv& env,
                    const std::string& type, const Array& x) {
  OpSpec spec;
  spec.type = type;
  spec.inputs = {{"x", {harness.AddInput("x", x)}}};
  spec.outputs = {{"out", {kNoId}}};
  const Op& op = harness.AddOp(std::move(spec));
  harness.Run(op, {}, env);
  return harness.Read(op.Out1("out"));
}

TEST(CollectiveTest, RanksExchangeSlices) {
  if (TestDevice() == DeviceKind::kCuda) {
    GTEST_SKIP() << "the ranks are threads and exchange host memory";
  }
  std::vector<Array> inputs, slices;
  for (uint64_t rank = 0; rank < 3; ++rank) {
    inputs.push_back(RandomArray(DType::kFp32, {12}, rank));
    slices.push_back(RandomArray(DType::kFp32, {4}, 10 + rank));
  }
  std::vector<double> sums, gathered;
  for (int64_t i = 0; i < 12; ++i) {
    sums.push_back(static_cast<float>(inputs[0][i]) +
                   static_cast<float>(inputs[1][i]) +
                   static_cast<float>(inputs[2][i]));
    gathered.push_back(slices[static_cast<size_t>(i / 4)][i % 4]);
  }
  OnRanks([&](int rank, OpHarness& harness, const KernelEnv& env) {
    const auto r = static_cast<size_t>(rank);
    EXPECT_EQ(RunCollective(harness, env, "all_reduce", inputs[r]).values,
              sums);
    const Array slice =
        RunCollective(harness, env, "reduce_scatter", inputs[r]);
    EXPECT_EQ(slice.values, std::vector<double>(sums.begin() + rank * 4,
                                                sums.begin() + rank * 4 + 4));
    EXPECT_EQ(RunCollective(harness, env, "all_gather", slices[r]).values,
              gathered);
  });
}

TEST(CollectiveTest, SlicesMustBeEven) {
  OpHarness harness;
  harness.program().world_size = 3;
  OpSpec spec;
  spec.type = "reduce_scatter";
  spec.inputs = {
      {"x", {harness.AddInput("x", RandomArray(DType::kFp32, {10}, 1))}}};
  spec.outputs = {{"out", {kNoId}}};
  try {
    harness.AddOp(std::move(spec));
    FAIL() << "10 elements do not divide among 3 ranks";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), ::testing::HasSubstr("the 3 ranks"));
  }
}

}  // namespace
}  // namespace plo::testing
