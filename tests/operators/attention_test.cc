#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>

#include "operators/attention_core.h"
#include "operators/attention_cuda.h"
#include "tests/operators/gradient_check.h"
#include "tests/operators/op_harness.h"
#include "tests/operators/reference.h"

namespace plo::testing {
namespace {

using ::testing::HasSubstr;

struct Sizes {
  int64_t batch, seq, heads, kv_heads, dim;
};

// Odd lengths and head sizes, groups, several tiles with a tail.
constexpr Sizes kSizes[] = {{1, 1, 1, 1, 1},   {2, 5, 3, 3, 12},
                            {2, 33, 3, 1, 12}, {1, 33, 4, 2, 33},
                            {1, 300, 2, 1, 8}, {1, 129, 2, 2, 16}};

struct Operands {
  Array q, k, v;
};

Operands MakeOperands(DType t, const Sizes& s) {
  return {RandomArray(t, {s.batch, s.seq, s.heads, s.dim}, 1, -2, 2),
          RandomArray(t, {s.batch, s.seq, s.kv_heads, s.dim}, 2, -2, 2),
          RandomArray(t, {s.batch, s.seq, s.kv_heads, s.dim}, 3, -2, 2)};
}

OpCase Case(const Operands& o, bool causal, double scale = 0) {
  return {.type = "attention",
          .inputs = {{"q", {o.q}}, {"k", {o.k}}, {"v", {o.v}}},
          .outputs = {"out", "lse"},
          .attrs = Attrs({{"causal", causal}, {"scale", scale}})};
}

// q, k and v side by side: [B, S, (H + 2 G) * D].
Array Pack(const Array& q, const Array& k, const Array& v) {
  const int64_t tokens = q.shape[0] * q.shape[1];
  Array packed{q.dtype, {q.shape[0], q.shape[1], 0}, {}};
  int64_t width = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    for (const Array* part : {&q, &k, &v}) {
      const int64_t n = part->shape[2] * part->shape[3];
      const auto begin = part->values.begin() + t * n;
      packed.values.insert(packed.values.end(), begin, begin + n);
      width += t == 0 ? n : 0;
    }
  }
  packed.shape = {q.shape[0], q.shape[1], width};
  return packed;
}

class AttentionTest : public ::testing::TestWithParam<DType> {};

TEST_P(AttentionTest, MatchesPlainLoops) {
  const DType t = GetParam();
  for (const Sizes& s : kSizes) {
    for (bool causal : {false, true}) {
      const Operands o = MakeOperands(t, s);
      const double scale = s.dim == 12 ? 0.3 : 0;
      SlotArrays got = RunOp(Case(o, causal, scale));
      const AttentionResult want = ReferenceAttention(
          o.q, o.k, o.v, causal,
          scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(s.dim)));
      ExpectNear(got["out"][0], want.out, UnitRoundoff(t), 5e-6, "out");
      ExpectNear(got["lse"][0], want.lse, 2e-6, 2e-6, "lse");
    }
  }
}

TEST_P(AttentionTest, PackedFormHasTheSameBits) {
  const DType t = GetParam();
  for (const Sizes& s : kSizes) {
    const Operands o = MakeOperands(t, s);
    OpCase plain = Case(o, true);
    OpCase packed{
        .type = "attention_qkv",
        .inputs = {{"qkv", {Pack(o.q, o.k, o.v)}}},
        .outputs = {"out", "lse"},
        .attrs = Attrs(
            {{"heads", s.heads}, {"kv_heads", s.kv_heads}, {"causal", true}})};
    SlotArrays a = RunOp(plain), b = RunOp(packed);
    EXPECT_EQ(a["out"][0].values, b["out"][0].values);
    EXPECT_EQ(a["lse"][0].values, b["lse"][0].values);

    const Array dout = RandomArray(t, a["out"][0].shape, 4);
    Array joined = dout;
    joined.shape = b["out"][0].shape;
    auto grads = RunGrad(plain, {{"out", dout}}, {"q", "k", "v"});
    auto packed_grads = RunGrad(packed, {{"out", joined}}, {"qkv"});
    EXPECT_EQ(Pack(grads["q"], grads["k"], grads["v"]).values,
              packed_grads["qkv"].values);
  }
}

// The gradient formula on plain loops, reading the rounded out.
struct Grads {
  Doubles dq, dk, dv;
};
Grads ReferenceGrads(const Operands& o, const Array& out, const Array& dout,
                     bool causal) {
  const int64_t batch = o.q.shape[0], seq = o.q.shape[1], heads = o.q.shape[2],
                dim = o.q.shape[3], groups = o.k.shape[2];
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  const AttentionResult forward =
      ReferenceAttention(o.q, o.k, o.v, causal, scale);
  Grads r{Doubles(o.q.values.size()), Doubles(o.k.values.size()),
          Doubles(o.v.values.size())};
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t g = h / (heads / groups);
      for (int64_t i = 0; i < seq; ++i) {
        const int64_t qi = ((b * seq + i) * heads + h) * dim;
        double delta = 0;
        for (int64_t d = 0; d < dim; ++d) delta += out[qi + d] * dout[qi + d];
        for (int64_t j = 0; j < (causal ? i + 1 : seq); ++j) {
          const int64_t kj = ((b * seq + j) * groups + g) * dim;
          double score = 0, dp = 0;
          for (int64_t d = 0; d < dim; ++d) {
            score += o.q[qi + d] * o.k[kj + d];
            dp += dout[qi + d] * o.v[kj + d];
          }
          const double p = std::exp(
              score * scale -
              forward.lse[static_cast<size_t>((b * heads + h) * seq + i)]);
          const double ds = p * (dp - delta) * scale;
          for (int64_t d = 0; d < dim; ++d) {
            r.dq[static_cast<size_t>(qi + d)] += ds * o.k[kj + d];
            r.dk[static_cast<size_t>(kj + d)] += ds * o.q[qi + d];
            r.dv[static_cast<size_t>(kj + d)] += p * dout[qi + d];
          }
        }
      }
    }
  }
  return r;
}

TEST_P(AttentionTest, GradMatchesPlainLoops) {
  const DType t = GetParam();
  for (const Sizes& s : kSizes) {
    for (bool causal : {false, true}) {
      const Operands o = MakeOperands(t, s);
      const OpCase c = Case(o, causal);
      const Array out = RunOp(c)["out"][0];
      const Array dout = RandomArray(t, out.shape, 4);
      auto got = RunGrad(c, {{"out", dout}}, {"q", "k", "v"});
      const Grads want = ReferenceGrads(o, out, dout, causal);
      ExpectNear(got["q"], want.dq, UnitRoundoff(t), 3e-5, "dq");
      ExpectNear(got["k"], want.dk, UnitRoundoff(t), 3e-5, "dk");
      ExpectNear(got["v"], want.dv, UnitRoundoff(t), 3e-5, "dv");
    }
  }
}

// Sizes of the flash kernels: sequences that are and are not multiples of
// their tiles, shared key heads, and every kind of head size they take.
constexpr Sizes kFlashSizes[] = {{2, 128, 2, 2, 64},
                                 {1, 192, 2, 2, 128},
                                 {1, 200, 4, 2, 64},
                                 {3, 65, 2, 1, 128},
                                 {1, 129, 2, 2, 80}};

// Relative error in the Euclidean norm.
double NormError(const Array& got, const Doubles& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got.values[i] - want[i]) * (got.values[i] - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(error / norm);
}

TEST_P(AttentionTest, FlashSizesMatchPlainLoops) {
  const DType t = GetParam();
  // A kernel may round weights and their grads to the operands' dtype before
  // it multiplies with them.
  const double u = UnitRoundoff(t), norm = 2 * u + 1e-5;
  for (const Sizes& s : kFlashSizes) {
    for (bool causal : {false, true}) {
      const Operands o{RandomArray(t, {s.batch, s.seq, s.heads, s.dim}, 1),
                       RandomArray(t, {s.batch, s.seq, s.kv_heads, s.dim}, 2),
                       RandomArray(t, {s.batch, s.seq, s.kv_heads, s.dim}, 3)};
      const OpCase c = Case(o, causal);
      SlotArrays got = RunOp(c);
      const Array& out = got["out"][0];
      const AttentionResult want = ReferenceAttention(
          o.q, o.k, o.v, causal, 1 / std::sqrt(static_cast<double>(s.dim)));
      ExpectNear(got["lse"][0], want.lse, 1e-5, 1e-5, "lse");
      ExpectNear(out, want.out, u, 2 * u + 1e-5, "out");
      EXPECT_LE(NormError(out, want.out), norm);

      const Array dout = RandomArray(t, out.shape, 4);
      auto grads = RunGrad(c, {{"out", dout}}, {"q", "k", "v"});
      const Grads want_grads = ReferenceGrads(o, out, dout, causal);
      EXPECT_LE(NormError(grads["q"], want_grads.dq), norm) << s.seq;
      EXPECT_LE(NormError(grads["k"], want_grads.dk), norm) << s.seq;
      EXPECT_LE(NormError(grads["v"], want_grads.dv), norm) << s.seq;
      auto again = RunGrad(c, {{"out", dout}}, {"q", "k", "v"});
      for (const auto& [name, grad] : grads) {
        ExpectSame(again[name], grad, name + " of a second run");
      }
    }
  }
}

TEST(Attention, CudaPlansCutWhatGrowsWithTheSquare) {
  AttentionShape s{.batch = 8,
                   .seq = 1024,
                   .heads = 16,
                   .kv_heads = 16,
                   .dim = 128,
                   .dtype = DType::kBf16,
                   .causal = true};
  EXPECT_EQ(CudnnForwardPart(s).batch, 8);
  EXPECT_EQ(CudnnBackwardPart(s).batch, 4);
  EXPECT_EQ(CudnnBackwardPart(s).kv_heads, 16);
  EXPECT_LE(CudaAttentionBackwardWorkspace(s), int64_t{132} << 20);
  s.seq = 4096;  // 32 MiB a head
  EXPECT_EQ(CudnnBackwardPart(s).batch, 1);
  EXPECT_EQ(CudnnBackwardPart(s).kv_heads, 4);
  EXPECT_LE(CudaAttentionBackwardWorkspace(s), int64_t{132} << 20);
  s.seq = 65536;  // one head would take 8 GiB: our own kernels
  EXPECT_EQ(CudnnBackwardPart(s).batch, 0);
  EXPECT_EQ(CudaAttentionBackwardWorkspace(s), 8 * 16 * s.seq * 4);
  s.dtype = DType::kFp32;
  EXPECT_EQ(CudnnForwardPart(s).batch, 0);
  EXPECT_EQ(CudaAttentionForwardWorkspace(s), 0);
}

TEST(Attention, GradientMatchesFiniteDifferences) {
  for (bool causal : {false, true}) {
    const Sizes s{1, 5, 2, 1, 3};
    CheckGradient(Case(MakeOperands(DType::kFp32, s), causal), {"q", "k", "v"},
                  {"out"}, 1e-2, 4e-3);
    CheckGradient(Case(MakeOperands(DType::kFp32, s), causal), {"k"}, {"out"},
                  1e-2, 4e-3);
  }
}

TEST(Attention, BitsDoNotDependOnTheNumberOfThreads) {
  const OpCase c = Case(MakeOperands(DType::kFp32, {2, 150, 3, 3, 16}), true);
  const int kept = omp_get_max_threads();
  std::vector<std::map<std::string, Array>> grads;
  for (int threads : {1, 3}) {
    omp_set_num_threads(threads);
    SlotArrays out = RunOp(c);
    grads.push_back(
        RunGrad(c, {{"out", RandomArray(DType::kFp32, {2, 150, 3, 16}, 4)}},
                {"q", "k", "v"}));
    grads.back()["out"] = out["out"][0];
  }
  omp_set_num_threads(kept);
  for (const auto& [name, array] : grads[0]) {
    ExpectSame(array, grads[1][name], name);
  }
}

TEST(Attention, TakesAnEmptyBatch) {
  const Operands o = MakeOperands(DType::kBf16, {0, 5, 2, 2, 4});
  EXPECT_EQ(RunOp(Case(o, true))["out"][0].shape, (Shape{0, 5, 2, 4}));
}

TEST(Attention, WorkspaceIsBoundedByTilesAndLanes) {
  AttentionShape s{.batch = 4,
                   .seq = 1024,
                   .heads = 16,
                   .kv_heads = 16,
                   .dim = 128,
                   .dtype = DType::kBf16,
                   .causal = true};
  EXPECT_LE(AttentionForwardWorkspace(s), int64_t{16} << 20);
  EXPECT_LE(AttentionBackwardWorkspace(s), int64_t{16} << 20);
  // Nothing grows with the square of the sequence.
  s.seq = 65536;
  EXPECT_LE(AttentionForwardWorkspace(s), int64_t{16} << 20);
  EXPECT_LE(AttentionBackwardWorkspace(s), s.seq * s.dim * 4 * 2);
}

TEST(Attention, CausalSkipsWholeTiles) {
  AttentionShape s{
      .batch = 1, .seq = 1280, .heads = 1, .kv_heads = 1, .dim = 8};
  const double full = AttentionProductFlops(s);
  s.causal = true;
  EXPECT_DOUBLE_EQ(AttentionProductFlops(s) / full, 0.525);
  // What lies above the diagonal tiles is not even read: NaNs stay out.
  OpCase c = Case(MakeOperands(DType::kFp32, {1, 300, 1, 1, 8}), true);
  SlotArrays clean = RunOp(c);
  for (int slot : {1, 2}) {
    for (int64_t i = 260 * 8; i < 300 * 8; ++i) {
      c.inputs[static_cast<size_t>(slot)]
          .second[0]
          .values[static_cast<size_t>(i)] = std::nan("");
    }
  }
  SlotArrays poisoned = RunOp(c);
  for (int64_t i = 0; i < 256 * 8; ++i) {
    ASSERT_EQ(clean["out"][0][i], poisoned["out"][0][i]) << i;
  }
}

TEST(Attention, ErrorsNameOpVarsAndShapes) {
  Operands o = MakeOperands(DType::kFp32, {1, 4, 3, 2, 8});
  EXPECT_THAT(ErrorOf(Case(o, true)),
              ::testing::AllOf(HasSubstr("op 'attention'"),
                               HasSubstr("2 kv heads do not divide 3 heads"),
                               HasSubstr("q = fp32 [1, 4, 3, 8] 'q'")));
  o.v.shape = {1, 4, 1, 16};
  EXPECT_THAT(ErrorOf(Case(o, true)),
              HasSubstr("v has shape [1, 4, 1, 16], expected [1, 4, 2, 8]"));
  EXPECT_THAT(
      ErrorOf(
          {.type = "attention_qkv",
           .inputs = {{"qkv", {RandomArray(DType::kFp32, {1, 2, 36}, 1)}}},
           .outputs = {"out", "lse"},
           .attrs = Attrs({{"heads", int64_t{5}}, {"kv_heads", int64_t{5}}})}),
      HasSubstr("heads + 2 * kv_heads = 15 does not divide the last dimension "
                "36"));
}

INSTANTIATE_TEST_SUITE_P(DTypes, AttentionTest,
                         ::testing::Values(DType::kFp32, DType::kBf16,
                                           DType::kFp16),
                         [](const auto& test) {
                           return std::string(DTypeName(test.param));
                         });

}  // namespace
}  // namespace plo::testing
