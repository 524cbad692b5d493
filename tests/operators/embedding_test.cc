#include "tests/operators/gradient_check.h"
#include "tests/operators/test_util.h"

namespace plo::testing {
namespace {

OpCase Embedding(Array ids, Array weight) {
  OpCase c;
  c.type = "embedding";
  c.inputs = {{"ids", {std::move(ids)}}, {"weight", {std::move(weight)}}};
  c.outputs = {"out"};
  return c;
}

OpCase EmbeddingGrad(Array ids, Array dout, int64_t rows) {
  OpCase c;
  c.type = "embedding_grad";
  c.inputs = {{"ids", {std::move(ids)}}, {"dout", {std::move(dout)}}};
  c.outputs = {"dweight"};
  c.attrs = Attrs({{"num_rows", Int(rows)}});
  return c;
}

TEST(EmbeddingTest, PicksRows) {
  for (const DType dtype : kFloatTypes) {
    const Array ids = RandomInts(DType::kInt32, {3, 5}, 1, 0, 11);
    const Array weight = RandomArray(dtype, {11, 7}, 2);
    const Array out = RunOp(Embedding(ids, weight))["out"][0];
    EXPECT_EQ(out.shape, (Shape{3, 5, 7}));
    for (int64_t i = 0; i < 15; ++i) {
      for (int64_t j = 0; j < 7; ++j) {
        EXPECT_EQ(out[i * 7 + j], weight[static_cast<int64_t>(ids[i]) * 7 + j]);
      }
    }
  }
}

TEST(EmbeddingTest, GradientSumsPositionsInOrder) {
  for (const DType dtype : kFloatTypes) {
    constexpr int64_t kRows = 6, kHidden = 1030, kCount = 29;
    const Array ids = RandomInts(DType::kInt32, {kCount}, 1, 0, kRows - 1);
    const Array dout = RandomArray(dtype, {kCount, kHidden}, 2);
    OpCase c = EmbeddingGrad(ids, dout, kRows);
    std::vector<double> want(kRows * kHidden);
    for (int64_t i = 0; i < kCount; ++i) {
      for (int64_t j = 0; j < kHidden; ++j) {
        want[static_cast<size_t>(ids[i]) * kHidden + j] +=
            dout[i * kHidden + j];
      }
    }
    // The last row has no position and is written all the same.
    ExpectNear(RunOp(c)["dweight"][0], want, RelativeBound(dtype), 1e-5, "sum");

    const Array acc = RandomArray(dtype, {kRows, kHidden}, 3);
    c.inputs.push_back({"acc", {acc}});
    c.attrs.Set("accumulate", true);
    for (size_t i = 0; i < want.size(); ++i) want[i] += acc.values[i];
    ExpectNear(RunOp(c)["dweight"][0], want, RelativeBound(dtype), 1e-5, "acc");
    ExpectSameForAnyThreads(c);
  }
}

TEST(EmbeddingTest, GradientMatchesDifferences) {
  CheckGradient(Embedding(RandomInts(DType::kInt32, {2, 4}, 1, 0, 5),
                          RandomArray(DType::kFp32, {5, 3}, 2)),
                {"weight"}, {"out"});
}

TEST(EmbeddingTest, NoIds) {
  const Array ids = RandomInts(DType::kInt32, {0}, 1, 0, 5);
  RunOp(Embedding(ids, RandomArray(DType::kFp32, {5, 3}, 1)));
  const Array dweight = RunOp(EmbeddingGrad(
      ids, RandomArray(DType::kFp32, {0, 3}, 1), 5))["dweight"][0];
  ExpectNear(dweight, std::vector<double>(15, 0.0), 0, 0, "zeros");
}

TEST(EmbeddingTest, IdsOutOfRangeAreNamed) {
  std::vector<double> ids(9, 1.0);
  ids[7] = 300;
  const Array bad = MakeArray(DType::kInt32, {3, 3}, ids);
  const std::string want =
      "token id 300 at position 7 is out of range [0, 256)";
  EXPECT_THAT(
      RunErrorOf(Embedding(bad, RandomArray(DType::kFp32, {256, 2}, 1))),
      ::testing::HasSubstr(want));
  EXPECT_THAT(RunErrorOf(EmbeddingGrad(
                  bad, RandomArray(DType::kFp32, {3, 3, 2}, 1), 256)),
              ::testing::HasSubstr(want));
  ids[7] = -1;
  EXPECT_THAT(RunErrorOf(Embedding(MakeArray(DType::kInt32, {9}, ids),
                                   RandomArray(DType::kFp32, {4, 2}, 1))),
              ::testing::HasSubstr("token id -1 at position 7"));
}

TEST(EmbeddingTest, BadTypesAreNamed) {
  EXPECT_THAT(ErrorOf(Embedding(RandomInts(DType::kInt64, {2}, 1, 0, 3),
                                RandomArray(DType::kFp32, {4, 2}, 1))),
              ::testing::HasSubstr("int32"));
  EXPECT_THAT(ErrorOf(Embedding(RandomInts(DType::kInt32, {2}, 1, 0, 3),
                                RandomArray(DType::kFp32, {4}, 1))),
              ::testing::HasSubstr("[rows, hidden]"));
}

// --- Dropout ---

OpCase Dropout(Array x, double p) {
  OpCase c;
  c.type = "dropout";
  c.inputs = {{"x", {std::move(x)}}};
  c.outputs = {"out"};
  c.attrs = Attrs({{"p", p}});
  c.random_id = 17;
  c.env.seed = 42;
  return c;
}

Array Ones(DType dtype, Shape shape) {
  const size_t n = static_cast<size_t>(shape.numel());
  return MakeArray(dtype, std::move(shape), std::vector<double>(n, 1.0));
}

TEST(DropoutTest, KeepsTheExpectedShareAndScale) {
  const Array out =
      RunOp(Dropout(Ones(DType::kFp32, {64, 1500}), 0.25))["out"][0];
  int64_t kept = 0;
  for (double v : out.values) {
    ASSERT_TRUE(v == 0 || v == static_cast<float>(1 / 0.75));
    kept += v != 0;
  }
  EXPECT_NEAR(static_cast<double>(kept) / (64 * 1500), 0.75, 0.01);
  const Array x = RandomArray(DType::kBf16, {3, 5}, 1);
  ExpectSame(RunOp(Dropout(x, 0.0))["out"][0], x, "p = 0");
}

// The same global batch of 12 samples, split among ranks and micro-steps.
TEST(DropoutTest, MaskDoesNotDependOnTheRankCount) {
  constexpr int64_t kLength = 37;
  const auto mask = [&](int ranks, int micro_steps) {
    std::vector<double> all;
    const int64_t local = 12 / (ranks * micro_steps);
    for (int micro = 0; micro < micro_steps; ++micro) {
      for (int rank = 0; rank < ranks; ++rank) {
        OpCase c = Dropout(Ones(DType::kFp32, {local, kLength}), 0.5);
        c.env.rank = rank;
        c.env.world_size = ranks;
        c.env.accumulate_steps = micro_steps;
        c.step = {3, micro};
        const Array out = RunOp(c)["out"][0];
        all.insert(all.end(), out.values.begin(), out.values.end());
      }
    }
    return all;
  };
  const std::vector<double> one = mask(1, 1);
  EXPECT_EQ(mask(2, 1), one);
  EXPECT_EQ(mask(3, 1), one);
  EXPECT_EQ(mask(3, 2), one);
  EXPECT_EQ(mask(1, 4), one);
}

TEST(DropoutTest, MaskChangesWithStepOpAndSeed) {
  OpCase c = Dropout(Ones(DType::kFp32, {4, 100}), 0.5);
  const std::vector<double> first = RunOp(c)["out"][0].values;
  EXPECT_EQ(RunOp(c)["out"][0].values, first);
  OpCase step = c;
  step.step.data_step = 1;
  EXPECT_NE(RunOp(step)["out"][0].values, first);
  OpCase other = c;
  other.random_id = 18;
  EXPECT_NE(RunOp(other)["out"][0].values, first);
  OpCase seed = c;
  seed.env.seed = 43;
  EXPECT_NE(RunOp(seed)["out"][0].values, first);
}

TEST(DropoutTest, GradientUsesTheSameMask) {
  for (const DType dtype : kFloatTypes) {
    for (const Shape& shape : {Shape{3, 2049}, Shape{5}, Shape{0, 4}}) {
      OpCase c = Dropout(Ones(dtype, shape), 0.3);
      c.step = {5, 1};
      c.env.accumulate_steps = 2;
      const Array out = RunOp(c)["out"][0];
      const Array dx = RunGrad(c, {{"out", Ones(dtype, shape)}}, {"x"})["x"];
      ExpectSame(dx, out, "mask");
      c.inplace = true;
      ExpectSame(RunOp(c)["out"][0], out, "in place");
    }
  }
  ExpectSameForAnyThreads(Dropout(Ones(DType::kFp32, {33, 2000}), 0.3));
}

TEST(DropoutTest, ProbabilityIsChecked) {
  EXPECT_THAT(ErrorOf(Dropout(Ones(DType::kFp32, {2}), 1.0)),
              ::testing::HasSubstr("[0, 1)"));
  EXPECT_THAT(ErrorOf(Dropout(Ones(DType::kFp32, {2}), -0.1)),
              ::testing::HasSubstr("[0, 1)"));
}

}  // namespace
}  // namespace plo::testing
