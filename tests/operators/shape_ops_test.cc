#include <cmath>
#include <limits>

#include "tests/operators/gradient_check.h"
#include "tests/operators/test_util.h"

namespace plo::testing {
namespace {

OpCase Unary(const std::string& type, Array x,
             std::vector<std::pair<std::string, Attr>> attrs) {
  OpCase c;
  c.type = type;
  c.inputs = {{"x", {std::move(x)}}};
  c.outputs = {"out"};
  c.attrs = Attrs(std::move(attrs));
  return c;
}

// Multi-index of element `index` of `shape`.
std::vector<int64_t> Unravel(const Shape& shape, int64_t index) {
  std::vector<int64_t> at(static_cast<size_t>(shape.rank()));
  for (int i = shape.rank() - 1; i >= 0; --i) {
    at[static_cast<size_t>(i)] = index % shape[i];
    index /= shape[i];
  }
  return at;
}

int64_t Ravel(const Shape& shape, const std::vector<int64_t>& at) {
  int64_t index = 0;
  for (int i = 0; i < shape.rank(); ++i) {
    index = index * shape[i] + at[static_cast<size_t>(i)];
  }
  return index;
}

TEST(ReshapeTest, KeepsTheElements) {
  const Array x = RandomArray(DType::kBf16, {2, 3, 4}, 1);
  const Array out =
      RunOp(Unary("reshape", x, {{"shape", Ints({4, -1})}}))["out"][0];
  EXPECT_EQ(out.shape, (Shape{4, 6}));
  EXPECT_EQ(out.values, x.values);
  CheckGradient(Unary("reshape", RandomArray(DType::kFp32, {2, 6}, 1),
                      {{"shape", Ints({-1})}}),
                {"x"}, {"out"});
  const Array copy =
      RunOp(Unary("reshape_copy", x, {{"shape", Ints({24})}}))["out"][0];
  EXPECT_EQ(copy.values, x.values);
}

TEST(ReshapeTest, BadShapesAreNamed) {
  const Array x = RandomArray(DType::kFp32, {2, 3}, 1);
  EXPECT_THAT(ErrorOf(Unary("reshape", x, {{"shape", Ints({4, 2})}})),
              ::testing::HasSubstr("[4, 2] has 8 elements, x has 6"));
  EXPECT_THAT(ErrorOf(Unary("reshape", x, {{"shape", Ints({-1, -1})}})),
              ::testing::HasSubstr("one dimension of -1"));
  EXPECT_THAT(ErrorOf(Unary("reshape", x, {{"shape", Ints({4, -1})}})),
              ::testing::HasSubstr("[4, -1]"));
}

TEST(TransposeTest, MatchesTheReference) {
  struct Case {
    Shape shape;
    std::vector<int64_t> perm;
  };
  for (const Case& k : std::vector<Case>{{{5, 7}, {1, 0}},
                                         {{130, 67}, {1, 0}},
                                         {{2, 3, 4, 5}, {0, 2, 1, 3}},
                                         {{2, 3, 4, 5}, {3, 1, 0, 2}},
                                         {{2, 3, 4}, {0, 1, 2}},
                                         {{3, 1, 4}, {2, 1, 0}},
                                         {{0, 4}, {1, 0}},
                                         {{1}, {0}},
                                         {{}, {}}}) {
    for (const DType dtype :
         {DType::kFp32, DType::kFp16, DType::kInt64, DType::kBool}) {
      const Array x = IsFloat(dtype) ? RandomArray(dtype, k.shape, 1)
                                     : RandomInts(dtype, k.shape, 1, 0, 2);
      const Array out =
          RunOp(Unary("transpose", x, {{"perm", Ints(k.perm)}}))["out"][0];
      for (int64_t i = 0; i < out.shape.numel(); ++i) {
        const auto at = Unravel(out.shape, i);
        std::vector<int64_t> from(at.size());
        for (size_t d = 0; d < at.size(); ++d) {
          from[static_cast<size_t>(k.perm[d])] = at[d];
        }
        ASSERT_EQ(out[i], x[Ravel(k.shape, from)]) << k.shape << " at " << i;
      }
    }
  }
  CheckGradient(Unary("transpose", RandomArray(DType::kFp32, {2, 3, 4}, 1),
                      {{"perm", Ints({2, 0, 1})}}),
                {"x"}, {"out"});
  EXPECT_THAT(ErrorOf(Unary("transpose", RandomArray(DType::kFp32, {2, 3}, 1),
                            {{"perm", Ints({0, 0})}})),
              ::testing::HasSubstr("permutation"));
}

TEST(SliceTest, TakesARangeAndGivesItBack) {
  const Array x = RandomArray(DType::kFp32, {3, 7, 2}, 1);
  for (const int64_t axis : {1, -2}) {
    const OpCase c = Unary(
        "slice", x, {{"axis", Int(axis)}, {"begin", Int(2)}, {"end", Int(6)}});
    const Array out = RunOp(c)["out"][0];
    EXPECT_EQ(out.shape, (Shape{3, 4, 2}));
    for (int64_t i = 0; i < 24; ++i) {
      auto at = Unravel(out.shape, i);
      at[1] += 2;
      EXPECT_EQ(out[i], x[Ravel(x.shape, at)]);
    }
    CheckGradient(c, {"x"}, {"out"});
  }
  const Array empty = RunOp(
      Unary("slice", x,
            {{"axis", Int(0)}, {"begin", Int(3)}, {"end", Int(3)}}))["out"][0];
  EXPECT_EQ(empty.shape, (Shape{0, 7, 2}));
  EXPECT_THAT(
      ErrorOf(Unary("slice", x,
                    {{"axis", Int(1)}, {"begin", Int(2)}, {"end", Int(8)}})),
      ::testing::HasSubstr("[2, 8)"));
  EXPECT_THAT(
      ErrorOf(Unary("slice", x,
                    {{"axis", Int(3)}, {"begin", Int(0)}, {"end", Int(1)}})),
      ::testing::HasSubstr("axis 3"));
}

TEST(ConcatTest, JoinsAndSplitsBack) {
  OpCase c;
  c.type = "concat";
  c.inputs = {{"x",
               {RandomArray(DType::kFp32, {2, 3, 2}, 1),
                RandomArray(DType::kFp32, {2, 0, 2}, 2),
                RandomArray(DType::kFp32, {2, 4, 2}, 3)}}};
  c.outputs = {"out"};
  c.attrs = Attrs({{"axis", Int(1)}});
  const Array out = RunOp(c)["out"][0];
  EXPECT_EQ(out.shape, (Shape{2, 7, 2}));
  CheckGradient(c, {"x", "x:2"}, {"out"});

  OpCase split =
      Unary("split", out, {{"axis", Int(-2)}, {"sizes", Ints({3, 0, 4})}});
  split.outputs = {"out*3"};
  const Arrays parts = RunOp(split)["out"];
  for (size_t i = 0; i < 3; ++i) {
    ExpectSame(parts[i], c.inputs[0].second[i], "part");
  }
  CheckGradient(split, {"x"}, {"out", "out:2"});
  split.attrs = Attrs({{"axis", Int(1)}, {"sizes", Ints({3, 0, 3})}});
  EXPECT_THAT(ErrorOf(split), ::testing::HasSubstr("do not add up"));
  c.inputs[0].second[1] = RandomArray(DType::kFp32, {2, 1, 3}, 1);
  EXPECT_THAT(ErrorOf(c), ::testing::HasSubstr("dimension 1 only"));
}

// --- Reductions ---

struct Reduction {
  Shape shape;
  std::vector<int64_t> axes;
};

class ReduceTest : public ::testing::TestWithParam<Reduction> {
 protected:
  // The reduced values of each output.
  static std::vector<std::vector<double>> Groups(const Array& x,
                                                 const Shape& kept,
                                                 std::vector<int64_t> axes) {
    std::vector<bool> reduced(static_cast<size_t>(x.shape.rank()),
                              axes.empty());
    for (int64_t a : axes) {
      reduced[static_cast<size_t>(a < 0 ? a + x.shape.rank() : a)] = true;
    }
    std::vector<std::vector<double>> groups(static_cast<size_t>(kept.numel()));
    for (int64_t i = 0; i < x.shape.numel(); ++i) {
      auto at = Unravel(x.shape, i);
      for (size_t d = 0; d < at.size(); ++d) {
        if (reduced[d]) at[d] = 0;
      }
      groups[static_cast<size_t>(Ravel(kept, at))].push_back(x[i]);
    }
    return groups;
  }
};

TEST_P(ReduceTest, MatchesTheReference) {
  const auto& [shape, axes] = GetParam();
  for (const DType dtype : kFloatTypes) {
    const Array x = RandomArray(dtype, shape, 1);
    const auto run = [&](const char* type, bool keepdims) {
      return RunOp(Unary(
          type, x,
          {{"axes", Ints(axes)}, {"keepdims", Attr(keepdims)}}))["out"][0];
    };
    const Array sum = run("reduce_sum", true);
    const Array mean = run("reduce_mean", true);
    const Array max = run("reduce_max", true);
    const auto groups = Groups(x, sum.shape, axes);
    std::vector<double> sums, means, maxima;
    for (const auto& group : groups) {
      double total = 0;
      double best = -std::numeric_limits<double>::infinity();
      for (double v : group) {
        total += v;
        best = std::max(best, v);
      }
      sums.push_back(total);
      means.push_back(total / static_cast<double>(group.size()));
      maxima.push_back(best);
    }
    ExpectNear(sum, sums, RelativeBound(dtype), kAbsoluteBound, "sum");
    if (shape.numel() > 0) {
      ExpectNear(mean, means, RelativeBound(dtype), kAbsoluteBound, "mean");
    }
    EXPECT_EQ(max.values, maxima);
    EXPECT_EQ(run("reduce_sum", false).values, sum.values);
  }
}

TEST_P(ReduceTest, GradientsMatchDifferences) {
  const auto& [shape, axes] = GetParam();
  if (shape.numel() > 500 || shape.numel() == 0) return;
  for (const char* type : {"reduce_sum", "reduce_mean", "reduce_max"}) {
    // Values far enough apart that a difference never changes the maximum.
    std::vector<double> values(static_cast<size_t>(shape.numel()));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<double>((i * 7919) % 997) / 100;
    }
    CheckGradient(Unary(type, MakeArray(DType::kFp32, shape, values),
                        {{"axes", Ints(axes)}}),
                  {"x"}, {"out"}, 1e-3, 5e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, ReduceTest,
    ::testing::Values(Reduction{{7}, {0}}, Reduction{{3, 5}, {0}},
                      Reduction{{3, 5}, {1}}, Reduction{{3, 5}, {}},
                      Reduction{{2, 3, 4, 5}, {1, 3}},
                      Reduction{{2, 3, 4, 5}, {0, 2}},
                      Reduction{{2, 3, 4}, {-1, 0}}, Reduction{{2, 1, 3}, {1}},
                      Reduction{{300, 700}, {0}}, Reduction{{17, 5000}, {1}},
                      Reduction{{0, 3}, {0}}, Reduction{{}, {}},
                      Reduction{{1, 1}, {0}}));

TEST(ReductionTest, NanIsKept) {
  const Array x = MakeArray(DType::kFp32, {2, 3}, {1, NAN, 9, 4, 5, 6});
  const Array rows =
      RunOp(Unary("reduce_max", x, {{"axes", Ints({1})}}))["out"][0];
  EXPECT_TRUE(std::isnan(rows[0]));
  EXPECT_EQ(rows[1], 6);
  const Array columns =
      RunOp(Unary("reduce_max", x, {{"axes", Ints({0})}}))["out"][0];
  EXPECT_EQ(columns[0], 4);
  EXPECT_TRUE(std::isnan(columns[1]));
}

TEST(ReductionTest, TiesShareTheGradient) {
  const Array x = MakeArray(DType::kFp32, {4}, {3, 1, 3, 2});
  const auto grads =
      RunGrad(Unary("reduce_max", x, {{"axes", Ints({0})}}),
              {{"out", MakeArray(DType::kFp32, {}, {1})}}, {"x"});
  EXPECT_EQ(grads.at("x").values, (std::vector<double>{0.5, 0, 0.5, 0}));
}

TEST(ReductionTest, ThreadsDoNotMatterAndAxesAreChecked) {
  const Array x = RandomArray(DType::kFp32, {301, 517}, 1);
  for (const int64_t axis : {0, 1}) {
    ExpectSameForAnyThreads(Unary("reduce_sum", x, {{"axes", Ints({axis})}}));
  }
  EXPECT_THAT(ErrorOf(Unary("reduce_sum", x, {{"axes", Ints({2})}})),
              ::testing::HasSubstr("axis 2"));
}

TEST(BroadcastTest, RepeatsAndReducesBack) {
  const Array x = RandomArray(DType::kFp32, {3, 1, 5}, 1);
  const OpCase c = Unary("broadcast_to", x, {{"shape", Ints({2, 3, 4, 5})}});
  const Array out = RunOp(c)["out"][0];
  for (int64_t i = 0; i < 120; ++i) {
    const auto at = Unravel(out.shape, i);
    EXPECT_EQ(out[i], x[at[1] * 5 + at[3]]);
  }
  CheckGradient(c, {"x"}, {"out"});
  const OpCase reduce =
      Unary("reduce_to_shape", out, {{"shape", Ints({3, 1, 5})}});
  std::vector<double> want;
  for (double v : x.values) want.push_back(8 * v);
  ExpectNear(RunOp(reduce)["out"][0], want, 1e-6, 0, "reduce_to_shape");
  CheckGradient(reduce, {"x"}, {"out"});
  ExpectSame(RunOp(Unary("reduce_to_shape", x,
                         {{"shape", Ints({3, 1, 5})}}))["out"][0],
             x, "same shape");
  EXPECT_THAT(ErrorOf(Unary("broadcast_to", x, {{"shape", Ints({3, 4, 6})}})),
              ::testing::HasSubstr("[3, 4, 6]"));
  EXPECT_THAT(ErrorOf(Unary("reduce_to_shape", x, {{"shape", Ints({2, 5})}})),
              ::testing::HasSubstr("[2, 5]"));
}

TEST(SquaredErrorTest, SumsSquares) {
  for (const DType dtype : kFloatTypes) {
    OpCase c;
    c.type = "sum_squared_error";
    c.inputs = {{"x", {RandomArray(dtype, {7, 301}, 1)}},
                {"y", {RandomArray(dtype, {7, 301}, 2)}}};
    c.outputs = {"loss_sum"};
    double want = 0;
    for (int64_t i = 0; i < 7 * 301; ++i) {
      const double d = c.inputs[0].second[0][i] - c.inputs[1].second[0][i];
      want += d * d;
    }
    ExpectNear(RunOp(c)["loss_sum"][0], {want}, 1e-6, 0, "loss");
  }
  OpCase small;
  small.type = "sum_squared_error";
  small.inputs = {{"x", {RandomArray(DType::kFp32, {3, 5}, 1)}},
                  {"y", {RandomArray(DType::kFp32, {3, 5}, 2)}}};
  small.outputs = {"loss_sum"};
  CheckGradient(small, {"x", "y"}, {"loss_sum"});
}

}  // namespace
}  // namespace plo::testing
