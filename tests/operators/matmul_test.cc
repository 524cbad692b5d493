#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "operators/kernel_util.h"
#include "operators/onednn_matmul.h"
#include "operators/onednn_utils.h"
#include "tests/operators/gradient_check.h"
#include "tests/operators/op_harness.h"
#include "tests/operators/reference.h"

namespace plo::testing {
namespace {

using ::testing::HasSubstr;

// One rounding of the result, and fp32 sums of k products of |values| <= 1.
double Absolute(int64_t k) {
  return 4 * static_cast<double>(k + 2) * UnitRoundoff(DType::kFp32);
}

class MatmulTest : public ::testing::TestWithParam<DType> {};

TEST_P(MatmulTest, MatchesPlainLoopsForEveryTranspose) {
  const DType t = GetParam();
  const int64_t sizes[][3] = {{1, 1, 1}, {5, 7, 3}, {33, 65, 129}, {2, 19, 1}};
  for (const auto& [m, n, k] : sizes) {
    for (int trans = 0; trans < 4; ++trans) {
      const bool tx = trans & 1, ty = trans & 2;
      const Array x = RandomArray(t, tx ? Shape{k, m} : Shape{m, k}, 1);
      const Array y = RandomArray(t, ty ? Shape{n, k} : Shape{k, n}, 2);
      const Array out =
          RunOp({.type = "matmul",
                 .inputs = {{"x", {x}}, {"y", {y}}},
                 .outputs = {"out"},
                 .attrs = Attrs({{"trans_x", tx}, {"trans_y", ty}})})["out"][0];
      EXPECT_EQ(out.shape, (Shape{m, n}));
      ExpectNear(
          out,
          ReferenceMatmul(x.values.data(), y.values.data(), tx, ty, m, n, k),
          UnitRoundoff(t), Absolute(k), "matmul");
    }
  }
}

TEST_P(MatmulTest, KeepsLeadingDimsAndAddsBias) {
  const DType t = GetParam();
  const Array x = RandomArray(t, {2, 3, 5}, 1);
  const Array y = RandomArray(t, {5, 4}, 2);
  const Array bias = RandomArray(t, {4}, 3);
  const Array out = RunOp({.type = "matmul",
                           .inputs = {{"x", {x}}, {"y", {y}}, {"bias", {bias}}},
                           .outputs = {"out"}})["out"][0];
  EXPECT_EQ(out.shape, (Shape{2, 3, 4}));
  Doubles want =
      ReferenceMatmul(x.values.data(), y.values.data(), false, false, 6, 4, 5);
  for (size_t i = 0; i < want.size(); ++i) want[i] += bias.values[i % 4];
  ExpectNear(out, want, UnitRoundoff(t), Absolute(6), "matmul with bias");
}

TEST_P(MatmulTest, BatchesBroadcast) {
  const DType t = GetParam();
  for (bool ty : {false, true}) {
    const Array x = RandomArray(t, {2, 1, 3, 5}, 1);
    const Array y = RandomArray(t, ty ? Shape{4, 6, 5} : Shape{4, 5, 6}, 2);
    const Array out = RunOp({.type = "matmul",
                             .inputs = {{"x", {x}}, {"y", {y}}},
                             .outputs = {"out"},
                             .attrs = Attrs({{"trans_y", ty}})})["out"][0];
    ASSERT_EQ(out.shape, (Shape{2, 4, 3, 6}));
    Doubles want;
    for (int b = 0; b < 2; ++b) {
      for (int c = 0; c < 4; ++c) {
        const Doubles part =
            ReferenceMatmul(x.values.data() + b * 15, y.values.data() + c * 30,
                            false, ty, 3, 6, 5);
        want.insert(want.end(), part.begin(), part.end());
      }
    }
    ExpectNear(out, want, UnitRoundoff(t), Absolute(5), "batched matmul");
  }
}

// A batch that no single step describes, in either operand.
TEST_P(MatmulTest, BatchesBroadcastInTheMiddle) {
  const DType t = GetParam();
  const Array x = RandomArray(t, {2, 1, 3, 4, 5}, 1);
  const Array y = RandomArray(t, {2, 1, 5, 6}, 2);
  const Array out = RunOp({.type = "matmul",
                           .inputs = {{"x", {x}}, {"y", {y}}},
                           .outputs = {"out"}})["out"][0];
  ASSERT_EQ(out.shape, (Shape{2, 2, 3, 4, 6}));
  Doubles want;
  for (int b = 0; b < 12; ++b) {
    const int xi = b / 6 * 3 + b % 3, yi = b / 3 % 2;
    const Doubles part =
        ReferenceMatmul(x.values.data() + xi * 20, y.values.data() + yi * 30,
                        false, false, 4, 6, 5);
    want.insert(want.end(), part.begin(), part.end());
  }
  ExpectNear(out, want, UnitRoundoff(t), Absolute(5), "batched matmul");
}

TEST_P(MatmulTest, AccumulatesOntoItsOutputWithOneRounding) {
  const DType t = GetParam();
  const Array x = RandomArray(t, {3, 4, 5}, 1);
  const Array dy = RandomArray(t, {3, 4, 6}, 2);
  const Array acc = RandomArray(t, {5, 6}, 3);
  const Array out =
      RunOp({.type = "matmul",
             .inputs = {{"x", {x}}, {"y", {dy}}, {"acc", {acc}}},
             .outputs = {"out"},
             .attrs = Attrs(
                 {{"trans_x", true}, {"collapse", true}, {"accumulate", true}}),
             .same_var = {{"out", "acc"}}})["out"][0];
  Doubles want =
      ReferenceMatmul(x.values.data(), dy.values.data(), true, false, 5, 6, 12);
  for (size_t i = 0; i < want.size(); ++i) want[i] += acc.values[i];
  ExpectNear(out, want, UnitRoundoff(t), Absolute(13), "accumulating matmul");
}

TEST_P(MatmulTest, BlocksOf16BitProductsAreInvisible) {
  const DType t = GetParam();
  // Several blocks in every dimension, with tails.
  const int64_t m = 1100, n = 1037, k = 700;
  const Array x = RandomArray(t, {m, k}, 1);
  const Array y = RandomArray(t, {n, k}, 2);
  const Array bias = RandomArray(t, {n}, 3);
  const Array out = RunOp({.type = "matmul",
                           .inputs = {{"x", {x}}, {"y", {y}}, {"bias", {bias}}},
                           .outputs = {"out"},
                           .attrs = Attrs({{"trans_y", true}})})["out"][0];
  for (int64_t i : {0, 551, 552, 1099}) {
    Doubles want = ReferenceMatmul(x.values.data() + i * k, y.values.data(),
                                   false, true, 1, n, k);
    for (size_t j = 0; j < want.size(); ++j) want[j] += bias.values[j];
    ExpectNear({t,
                {n},
                {out.values.begin() + i * n, out.values.begin() + (i + 1) * n}},
               want, UnitRoundoff(t), Absolute(k) / 4, "row of a large matmul");
  }
}

TEST_P(MatmulTest, TakesZeroSizes) {
  const DType t = GetParam();
  const auto run = [&](Shape x, Shape y) {
    return RunOp({.type = "matmul",
                  .inputs = {{"x", {RandomArray(t, std::move(x), 1)}},
                             {"y", {RandomArray(t, std::move(y), 2)}}},
                  .outputs = {"out"}})["out"][0];
  };
  EXPECT_EQ(run({0, 3}, {3, 2}).shape, (Shape{0, 2}));
  EXPECT_EQ(run({4, 3}, {3, 0}).shape, (Shape{4, 0}));
  EXPECT_EQ(run({0, 4, 3}, {0, 3, 5}).shape, (Shape{0, 4, 5}));
  EXPECT_EQ(run({2, 0}, {0, 3}).values, Doubles(6, 0.0));
}

INSTANTIATE_TEST_SUITE_P(DTypes, MatmulTest,
                         ::testing::Values(DType::kFp32, DType::kBf16,
                                           DType::kFp16),
                         [](const auto& test) {
                           return std::string(DTypeName(test.param));
                         });

TEST(Matmul, WorkspaceIsBounded) {
  GemmCall call;
  call.m = 50304;
  call.n = 2048;
  call.k = 4096;
  call.stride_a = 4096;
  call.stride_b = 2050;
  EXPECT_EQ(GemmWorkspaceBytes(call), 0);
  call.trans_a = true;
  call.stride_a = 50304 / 512 * 512;
  call.stride_b = 2048;
  EXPECT_LE(GemmWorkspaceBytes(call), (int64_t{4} << 20) + (64 << 10));
  EXPECT_GT(GemmWorkspaceBytes(call), 0);
  for (DType t : {DType::kBf16, DType::kFp16}) {
    call.dtype = t;
    EXPECT_LE(GemmWorkspaceBytes(call), (int64_t{8} << 20) + (64 << 10));
  }
}

// Bytes of an array in its dtype, with rows `stride` elements apart.
std::vector<std::byte> BytesOf(const Array& array, int64_t stride) {
  const int64_t cols = array.shape.dim(-1), size = SizeOf(array.dtype);
  const int64_t rows = array.shape.numel() / cols;
  std::vector<std::byte> bytes(static_cast<size_t>(rows * stride * size));
  const std::vector<float> values(array.values.begin(), array.values.end());
  for (int64_t row = 0; row < rows; ++row) {
    ConvertFromFloat(array.dtype, values.data() + row * cols,
                     bytes.data() + row * stride * size, cols);
  }
  return bytes;
}

class OnednnMatmulTest : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (GetParam() != DType::kFp32 && !UsesOnednnMatmul(GetParam())) {
      GTEST_SKIP() << "oneDNN does not multiply " << GetParam()
                   << " natively on this CPU";
    }
  }
};

void CheckOnednnMatmul(GemmCall call) {
  constexpr int64_t kGap = 3;  // between the rows of an operand
  constexpr std::byte kCanary{0xa5};
  const DType t = call.dtype;
  const int64_t m = call.m, n = call.n, k = call.k;
  const Array a = RandomArray(t, call.trans_a ? Shape{k, m} : Shape{m, k}, 1);
  const Array b = RandomArray(t, call.trans_b ? Shape{n, k} : Shape{k, n}, 2);
  const Array c = RandomArray(t, {m, n}, 3), bias = RandomArray(t, {n}, 4);
  call.stride_a = a.shape[1] + kGap;
  call.stride_b = b.shape[1] + kGap;
  call.stride_c = n + kGap;
  const auto a_bytes = BytesOf(a, call.stride_a);
  const auto b_bytes = BytesOf(b, call.stride_b);
  auto c_bytes = BytesOf(c, call.stride_c);
  const auto bias_bytes = BytesOf(bias, n);
  if (call.bias != nullptr) call.bias = bias_bytes.data();
  call.a = a_bytes.data();
  call.b = b_bytes.data();
  call.c = c_bytes.data();

  auto product = OnednnMatmul::Find(call);
  ASSERT_TRUE(product.has_value());
  const auto scratch = static_cast<size_t>(product->scratch_bytes());
  std::vector<std::byte> workspace(scratch + 64, kCanary);
  const auto first = workspace.begin();
  const auto untouched = [&](size_t from) {
    return std::all_of(first + static_cast<std::ptrdiff_t>(from),
                       workspace.end(),
                       [&](std::byte value) { return value == kCanary; });
  };
  // One byte too few: all of the scratch is elsewhere.
  const auto before = c_bytes;
  if (scratch > 0) {
    product->Run(call, workspace.data(), product->scratch_bytes() - 1);
    EXPECT_TRUE(untouched(0)) << "touches a workspace that is too small";
  }
  const auto elsewhere = std::exchange(c_bytes, before);
  call.c = c_bytes.data();
  product->Run(call, workspace.data(), product->scratch_bytes());
  EXPECT_TRUE(untouched(scratch)) << "touches what follows its workspace";
  if (scratch > 0) {
    EXPECT_EQ(elsewhere, c_bytes);
  }
  Doubles want = ReferenceMatmul(a.values.data(), b.values.data(), call.trans_a,
                                 call.trans_b, m, n, k);
  Array got{t, {m, n}, {}};
  for (int64_t i = 0; i < m * n; ++i) {
    if (call.accumulate) want[static_cast<size_t>(i)] += c[i];
    if (call.bias != nullptr) want[static_cast<size_t>(i)] += bias[i % n];
    float value;
    ConvertToFloat(t, ElementAt(t, call.c, i / n * call.stride_c + i % n),
                   &value, 1);
    got.values.push_back(value);
  }
  ExpectNear(got, want, UnitRoundoff(t), Absolute(k + 2), "oneDNN's matmul");
}

TEST_P(OnednnMatmulTest, MatchesPlainLoops) {
  const int64_t sizes[][3] = {
      {1, 1, 1}, {5, 7, 3}, {33, 65, 129}, {2, 19, 1}, {70, 130, 523}};
  for (const auto& [m, n, k] : sizes) {
    for (int form = 0; form < 16; ++form) {
      GemmCall call;
      call.dtype = GetParam();
      call.m = m;
      call.n = n;
      call.k = k;
      call.trans_a = form & 1;
      call.trans_b = form & 2;
      call.accumulate = form & 4;
      call.bias = form & 8 ? &call : nullptr;  // any address until it is known
      SCOPED_TRACE(::testing::Message()
                   << m << " x " << n << " x " << k << ", form " << form);
      CheckOnednnMatmul(call);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, OnednnMatmulTest,
                         ::testing::Values(DType::kFp32, DType::kBf16,
                                           DType::kFp16),
                         [](const auto& test) {
                           return std::string(DTypeName(test.param));
                         });

TEST(Matmul, RepackedProductsMatchPlainLoops) {
  const DType t = DType::kFp32;
  // Blocks of rows, columns and depth, the last one short.
  const int64_t k = 523;
  const int64_t sizes[][3] = {{1536, 130, 0}, {130, 1536, 0}, {512, 512, 1}};
  for (const auto& [m, n, trans] : sizes) {
    const bool ty = trans != 0;
    const Array x = RandomArray(t, {k, m}, 1);
    const Array y = RandomArray(t, ty ? Shape{n, k} : Shape{k, n}, 2);
    const Array acc = RandomArray(t, {m, n}, 3);
    const Array out =
        RunOp({.type = "matmul",
               .inputs = {{"x", {x}}, {"y", {y}}, {"acc", {acc}}},
               .outputs = {"out"},
               .attrs = Attrs(
                   {{"trans_x", true}, {"trans_y", ty}, {"accumulate", true}}),
               .same_var = {{"out", "acc"}}})["out"][0];
    Doubles want =
        ReferenceMatmul(x.values.data(), y.values.data(), true, ty, m, n, k);
    for (size_t i = 0; i < want.size(); ++i) want[i] += acc.values[i];
    // RunGemm() sums blocks of the depth one by one; libraries may take it at
    // once.
    const bool blocked =
        TestDevice() == DeviceKind::kCpu && !UsesOnednnMatmul(t);
    const double blocks = blocked ? 4 : 1;
    ExpectNear(out, want, UnitRoundoff(t), Absolute(k) / blocks,
               "repacked matmul");
  }
}

TEST(Matmul, GradientMatchesFiniteDifferences) {
  const DType t = DType::kFp32;
  for (int trans = 0; trans < 4; ++trans) {
    const bool tx = trans & 1, ty = trans & 2;
    OpCase c{
        .type = "matmul",
        .inputs = {{"x", {RandomArray(t, tx ? Shape{3, 4} : Shape{4, 3}, 1)}},
                   {"y", {RandomArray(t, ty ? Shape{5, 3} : Shape{3, 5}, 2)}},
                   {"bias", {RandomArray(t, {5}, 3)}}},
        .outputs = {"out"},
        .attrs = Attrs({{"trans_x", tx}, {"trans_y", ty}})};
    CheckGradient(c, {"x", "y", "bias"}, {"out"});
    // Batched.
    c.inputs = {
        {"x", {RandomArray(t, tx ? Shape{2, 3, 4} : Shape{2, 4, 3}, 1)}},
        {"y", {RandomArray(t, ty ? Shape{2, 5, 3} : Shape{2, 3, 5}, 2)}}};
    CheckGradient(c, {"x", "y"}, {"out"});
  }
  // Leading dims, as in every linear layer.
  for (bool ty : {false, true}) {
    CheckGradient(
        {.type = "matmul",
         .inputs = {{"x", {RandomArray(t, {2, 4, 3}, 1)}},
                    {"y", {RandomArray(t, ty ? Shape{5, 3} : Shape{3, 5}, 2)}}},
         .outputs = {"out"},
         .attrs = Attrs({{"trans_y", ty}})},
        {"x", "y"}, {"out"});
  }
}

TEST(Matmul, WeightGradientComesFirst) {
  OpHarness harness;
  const VarId x = harness.AddInput("x", RandomArray(DType::kFp32, {2, 3}, 1));
  const VarId y = harness.AddInput("y", RandomArray(DType::kFp32, {3, 4}, 2));
  OpSpec spec;
  spec.type = "matmul";
  spec.inputs = {{"x", {x}}, {"y", {y}}};
  spec.outputs = {{"out", {kNoId}}};
  const Op& op = harness.AddOp(spec);
  harness.Run(op, {}, {});
  Gradients(harness, op, {{"out", RandomArray(DType::kFp32, {2, 4}, 3)}},
            {"x", "y"}, {}, {});
  const auto& ops = harness.program().ops(Section::kMicro);
  ASSERT_EQ(ops.size(), 3u);
  EXPECT_EQ(harness.program().var(ops[1]->Out1("out")).shape, (Shape{3, 4}));
  EXPECT_EQ(harness.program().var(ops[2]->Out1("out")).shape, (Shape{2, 3}));
}

TEST(Matmul, ErrorsNameOpVarsAndShapes) {
  const auto error = [](Shape x, Shape y, AttrMap attrs = {}) {
    return ErrorOf({.type = "matmul",
                    .inputs = {{"x", {RandomArray(DType::kFp32, x, 1)}},
                               {"y", {RandomArray(DType::kFp32, y, 2)}}},
                    .outputs = {"out"},
                    .attrs = std::move(attrs)});
  };
  const std::string inner = error({4, 8}, {16, 32});
  EXPECT_THAT(inner, HasSubstr("InvalidArgument: op 'matmul'"));
  EXPECT_THAT(inner, HasSubstr("x [4, 8] and y [16, 32] do not match: inner "
                               "dimensions 8 and 16"));
  EXPECT_THAT(inner, HasSubstr("x = fp32 [4, 8] 'x'"));
  EXPECT_THAT(error({2, 4, 8}, {3, 8, 5}), HasSubstr("batches do not match"));
  EXPECT_THAT(error({8}, {8, 5}), HasSubstr("ranks 1 and 2"));
  EXPECT_THAT(error({4, 8}, {8, 5}, Attrs({{"accumulate", true}})),
              HasSubstr("acc is missing"));
  EXPECT_THAT(
      ErrorOf({.type = "matmul",
               .inputs = {{"x", {RandomArray(DType::kFp32, {4, 8}, 1)}},
                          {"y", {RandomArray(DType::kBf16, {8, 2}, 2)}}},
               .outputs = {"out"}}),
      HasSubstr("y is bf16 but x is fp32"));
  EXPECT_THAT(
      ErrorOf({.type = "matmul",
               .inputs = {{"x", {RandomArray(DType::kFp32, {4, 8}, 1)}},
                          {"y", {RandomArray(DType::kFp32, {8, 2}, 2)}},
                          {"bias", {RandomArray(DType::kFp32, {8}, 3)}}},
               .outputs = {"out"}}),
      HasSubstr("bias has shape [8], expected [2]"));
}

class ReduceRowsTest : public ::testing::TestWithParam<DType> {};

TEST_P(ReduceRowsTest, SumsAndAccumulates) {
  const DType t = GetParam();
  for (const Shape& shape :
       {Shape{3, 67, 5}, Shape{130, 515}, Shape{0, 4}, Shape{7}}) {
    const Array x = RandomArray(t, shape, 1);
    const int64_t n = shape.dim(-1);
    const Array acc = RandomArray(t, {n}, 2);
    Doubles want(static_cast<size_t>(n), 0.0);
    for (size_t i = 0; i < x.values.size(); ++i) {
      want[i % static_cast<size_t>(n)] += x.values[i];
    }
    ExpectNear(RunOp({.type = "reduce_rows",
                      .inputs = {{"x", {x}}},
                      .outputs = {"out"}})["out"][0],
               want, UnitRoundoff(t), 2e-5, "reduce_rows");
    for (size_t i = 0; i < want.size(); ++i) want[i] += acc.values[i];
    ExpectNear(RunOp({.type = "reduce_rows",
                      .inputs = {{"x", {x}}, {"acc", {acc}}},
                      .outputs = {"out"},
                      .attrs = Attrs({{"accumulate", true}}),
                      .same_var = {{"out", "acc"}}})["out"][0],
               want, UnitRoundoff(t), 2e-5, "accumulating reduce_rows");
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, ReduceRowsTest,
                         ::testing::Values(DType::kFp32, DType::kBf16,
                                           DType::kFp16),
                         [](const auto& test) {
                           return std::string(DTypeName(test.param));
                         });

}  // namespace
}  // namespace plo::testing
