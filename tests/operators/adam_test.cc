#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "framework/ir/float16.h"
#include "framework/runtime/host_pool.h"
#include "operators/adam_kernels.h"
#include "operators/step_record.h"
#include "tests/operators/test_util.h"

namespace plo::testing {
namespace {

// --- The versions of the kernels agree ---

uint32_t Bits(float x) { return std::bit_cast<uint32_t>(x); }

bool SameBits(float a, float b) {
  return Bits(a) == Bits(b) || (std::isnan(a) && std::isnan(b));
}

// Ordinary values, subnormals, huge ones and, rarely, NaN and infinities.
float Nasty(std::mt19937& rng) {
  switch (rng() % 8) {
    case 0:
      return std::bit_cast<float>(static_cast<uint32_t>(rng()));
    case 1:
      return std::bit_cast<float>(static_cast<uint32_t>(rng() % 0x00800000));
    case 2:
      return 0.0f;
    case 3:
      return std::ldexp(1.0f + static_cast<float>(rng() % 1000),
                        static_cast<int>(rng() % 200) - 120);
    default:
      return std::ldexp(static_cast<float>(rng() % 20001) - 10000, -14);
  }
}

struct Buffers {
  DType grad_dtype, param_dtype;
  bool with_param, alias;
  std::vector<float> master, moment1, moment2, grad32, param32;
  std::vector<uint16_t> grad16, param16;

  Buffers(DType grad, DType param, bool has_param, bool aliased, int64_t n,
          uint32_t seed)
      : grad_dtype(grad),
        param_dtype(param),
        with_param(has_param),
        alias(aliased) {
    std::mt19937 rng(seed);
    const size_t count = static_cast<size_t>(n);
    for (size_t i = 0; i < count; ++i) {
      master.push_back(Nasty(rng));
      moment1.push_back(Nasty(rng));
      moment2.push_back(std::abs(Nasty(rng)));
      grad32.push_back(Nasty(rng));
      grad16.push_back(grad == DType::kFp16 ? FloatToFp16Bits(grad32.back())
                                            : FloatToBf16Bits(grad32.back()));
    }
    // 64-byte aligned targets are streamed; see the `offset` of the test.
    param16.assign(count + 64, 0xABCD);
    param32.assign(count, 42.0f);
  }

  uint16_t* AlignedParam() {
    void* start = param16.data();
    size_t space = param16.size() * 2;
    return static_cast<uint16_t*>(
        std::align(64, master.size() * 2, start, space));
  }

  UpdateOperands Bind() {
    UpdateOperands o;
    o.grad_dtype = grad_dtype;
    o.grad = grad_dtype == DType::kFp32 ? static_cast<void*>(grad32.data())
                                        : grad16.data();
    o.master = master.data();
    o.moment1 = moment1.data();
    o.moment2 = moment2.data();
    o.param_dtype = param_dtype;
    if (!with_param) return o;
    if (alias) {
      o.param = const_cast<void*>(o.grad);
    } else {
      o.param = param_dtype == DType::kFp32 ? static_cast<void*>(param32.data())
                                            : AlignedParam();
    }
    return o;
  }
};

void ExpectSameBuffers(Buffers& a, Buffers& b, const std::string& what) {
  for (size_t i = 0; i < a.master.size(); ++i) {
    ASSERT_TRUE(SameBits(a.master[i], b.master[i]))
        << what << " master " << i << ": " << a.master[i] << " and "
        << b.master[i];
    ASSERT_TRUE(SameBits(a.moment1[i], b.moment1[i])) << what << " m " << i;
    ASSERT_TRUE(SameBits(a.moment2[i], b.moment2[i])) << what << " v " << i;
    ASSERT_TRUE(SameBits(a.param32[i], b.param32[i])) << what << " p " << i;
    // Which NaN a master holds may differ, and so its upper bits.
    if (std::isnan(a.master[i])) continue;
    ASSERT_EQ(a.AlignedParam()[i], b.AlignedParam()[i]) << what << " p " << i;
    if (a.alias) {
      ASSERT_EQ(a.grad16[i], b.grad16[i]) << what << " p " << i;
    }
  }
}

AdamScalars SomeScalars(bool clip_value, bool l2) {
  AdamScalars s;
  s.grad_multiplier = 0.37f;
  s.clip_value = clip_value ? 0.25f : std::numeric_limits<float>::infinity();
  s.l2 = l2 ? 0.01f : 0.0f;
  s.decay = l2 ? 0.0f : 1e-5f;
  s.beta1 = 0.9f;
  s.one_minus_beta1 = 0.1f;
  s.beta2 = 0.999f;
  s.one_minus_beta2 = 0.001f;
  s.inv_sqrt_bias2 = 3.1f;
  s.eps = 1e-8f;
  s.step_size = 0.003f;
  return s;
}

std::vector<const UpdateKernels*> WideVersions() {
  std::vector<const UpdateKernels*> versions;
  if (Avx2UpdateKernels()) versions.push_back(Avx2UpdateKernels());
  if (Avx512UpdateKernels()) versions.push_back(Avx512UpdateKernels());
  return versions;
}

TEST(UpdateKernelsTest, VersionsAgreeBitForBit) {
  if (WideVersions().empty()) GTEST_SKIP() << "this CPU has no AVX2";
  std::vector<int64_t> lengths;
  for (int64_t n = 0; n <= 67; ++n) lengths.push_back(n);
  lengths.push_back(5000);
  struct Param {
    DType dtype;
    bool present, alias;
  };
  uint32_t seed = 1;
  for (const UpdateKernels* wide : WideVersions()) {
    for (const DType grad : kFloatTypes) {
      for (const Param param :
           {Param{DType::kBf16, false, false}, Param{DType::kBf16, true, false},
            Param{DType::kFp16, true, false}, Param{DType::kFp32, true, false},
            Param{grad, true, true}}) {
        if (param.alias && !Is16Bit(grad)) continue;
        for (const int64_t n : lengths) {
          const bool clips = n % 2 == 0;
          const AdamScalars adam = SomeScalars(clips, n % 3 == 0);
          SgdScalars sgd{0.5f, adam.clip_value, adam.l2,   adam.decay,
                         0.9f, 0.01f,           n % 5 == 0};
          // An offset of 1 makes every access unaligned.
          const int64_t begin = n % 4 == 1 ? 1 : 0;
          Buffers a(grad, param.dtype, param.present, param.alias, n, ++seed);
          Buffers b(grad, param.dtype, param.present, param.alias, n, seed);
          const std::string what =
              std::string(wide->name) + " n=" + std::to_string(n);
          ScalarUpdateKernels().adam(adam, a.Bind(), begin, n);
          wide->adam(adam, b.Bind(), begin, n);
          ExpectSameBuffers(a, b, what + " adam");
          Buffers c(grad, param.dtype, param.present, param.alias, n, ++seed);
          Buffers d(grad, param.dtype, param.present, param.alias, n, seed);
          ScalarUpdateKernels().sgd(sgd, c.Bind(), begin, n);
          wide->sgd(sgd, d.Bind(), begin, n);
          ExpectSameBuffers(c, d, what + " sgd");
        }
      }
    }
  }
}

// --- The ops ---

constexpr double kLr = 0.01, kBeta1 = 0.9, kBeta2 = 0.99, kEps = 1e-8;
constexpr double kDecay = 0.1;

Array Record(bool skip, int64_t update, double multiplier, double unclipped) {
  std::vector<double> r(kStepRecordSize, 0.0);
  r[kRecordSkip] = skip;
  r[kRecordLr] = kLr;
  r[kRecordBiasCorrection1] = 1 - std::pow(kBeta1, update);
  r[kRecordBiasCorrection2] = 1 - std::pow(kBeta2, update);
  r[kRecordMultiplier] = multiplier;
  r[kRecordUnclipped] = unclipped;
  return MakeArray(DType::kFp32, {kStepRecordSize}, r);
}

// Three segments with gaps: decayed and clipped; neither, at half the rate;
// another.
struct Bucket {
  static constexpr int64_t kNumel = 1024;
  std::vector<int64_t> begins = {0, 384, 640};
  std::vector<int64_t> numels = {300, 256, 129};
  std::vector<double> decay = {1, 0, 1};
  std::vector<double> lr_scale = {1, 0.5, 1};
  std::vector<int64_t> need_clip = {1, 0, 1};

  int SegmentOf(int64_t i) const {
    for (size_t s = 0; s < begins.size(); ++s) {
      if (i >= begins[s] && i < begins[s] + numels[s]) {
        return static_cast<int>(s);
      }
    }
    return -1;
  }
  Array Values(DType dtype, uint64_t seed, double low, double high) const {
    Array a = RandomArray(dtype, {kNumel}, seed, low, high);
    for (int64_t i = 0; i < kNumel; ++i) {
      if (SegmentOf(i) < 0) a.values[static_cast<size_t>(i)] = 0;
    }
    return a;
  }
};

struct UpdateRun {
  std::string type = "adamw";
  DType dtype = DType::kBf16;  // of grad and param
  bool decoupled = true;
  bool nesterov = false;
  std::string clip_mode = "none";
  double clip = 0;
  Array record;
  int rank = -1;                 // -1: the whole bucket; else a slice of two
  int64_t begin = 0, numel = 0;  // part of the slice; numel 0: all of it
  bool alias = false;
  Place place = Place::kDevice;
  HostPool* pool = nullptr;
};

struct UpdateResult {
  Array master, moment1, moment2, param;
};

Array Part(const Array& a, int rank) {
  if (rank < 0) return a;
  const int64_t n = a.shape[0] / 2;
  return {a.dtype,
          {n},
          {a.values.begin() + rank * n, a.values.begin() + (rank + 1) * n}};
}
Array Part(const Array& a, const UpdateRun& run) {
  const Array slice = Part(a, run.rank);
  if (run.numel == 0) return slice;
  const auto begin = slice.values.begin() + run.begin;
  return {a.dtype, {run.numel}, {begin, begin + run.numel}};
}

const Bucket kBucket;

UpdateResult RunUpdate(const UpdateRun& run) {
  OpHarness harness;
  const auto add = [&](const char* name, const Array& value) {
    return harness.AddInput(name, value, run.place);
  };
  const bool adam = run.type == "adamw";
  const Array grad_values = kBucket.Values(run.dtype, 1, -2, 2);
  const VarId grad = add("grad", Part(grad_values, run));
  const VarId master =
      add("master", Part(kBucket.Values(DType::kFp32, 2, -1, 1), run));
  const VarId m = add("m", Part(kBucket.Values(DType::kFp32, 3, -1, 1), run));
  const VarId v = add("v", Part(kBucket.Values(DType::kFp32, 4, 0, 1), run));
  Array fresh = Part(grad_values, run);
  for (double& x : fresh.values) x = 77;
  const VarId param = run.alias ? grad : add("param", fresh);
  OpSpec spec;
  spec.type = run.type;
  if (run.place == Place::kPinned) spec.stream = StreamKind::kHost;
  spec.inputs = {{"grad", {grad}},
                 {"record", {add("record", run.record)}},
                 {"master", {master}},
                 {"moment1", {m}}};
  spec.outputs = {{"master", {master}}, {"moment1", {m}}, {"param", {param}}};
  if (adam) {
    spec.inputs.push_back({"moment2", {v}});
    spec.outputs.push_back({"moment2", {v}});
    spec.attrs = Attrs({{"beta1", kBeta1}, {"beta2", kBeta2}, {"eps", kEps}});
  } else {
    spec.attrs = Attrs({{"momentum", kBeta1}, {"nesterov", run.nesterov}});
  }
  if (run.clip_mode == "norm") {
    // One unused entry in front.
    std::vector<double> stats = {-1, 0, 0, 0, 0};
    for (int64_t i = 0; i < Bucket::kNumel; ++i) {
      const int s = kBucket.SegmentOf(i);
      if (s >= 0) {
        const double g = grad_values[i] * run.record[kRecordUnclipped];
        stats[static_cast<size_t>(s) + 1] += g * g;
      }
    }
    spec.inputs.push_back(
        {"stats", {add("stats", MakeArray(DType::kFp32, {5}, stats))}});
  }
  for (auto& [name, value] :
       Attrs({{"weight_decay", kDecay},
              {"decoupled", run.decoupled},
              {"sliced", Attr(run.rank >= 0)},
              {"slice_begin", Int(run.begin)},
              {"slice_numel",
               Int(run.numel == 0 ? 0 : Part(grad_values, run.rank).shape[0])},
              {"segment_begins", Ints(kBucket.begins)},
              {"segment_numels", Ints(kBucket.numels)},
              {"segment_weight_decay", Floats(kBucket.decay)},
              {"segment_lr_scale", Floats(kBucket.lr_scale)},
              {"segment_need_clip", Ints(kBucket.need_clip)},
              {"clip_mode", Str(run.clip_mode.c_str())},
              {"clip_norm", run.clip},
              {"stats_offset", Int(1)}})) {
    spec.attrs.Set(name, value);
  }
  const Op& op = harness.AddOp(std::move(spec));
  KernelEnv env;
  env.rank = std::max(run.rank, 0);
  env.world_size = run.rank < 0 ? 1 : 2;
  env.pool = run.pool;
  harness.Run(op, {}, env);
  return {harness.Read(master), harness.Read(m), harness.Read(v),
          harness.Read(param)};
}

// The textbook formulas in double.
void ExpectTextbook(const UpdateRun& run, int64_t update, double multiplier,
                    double unclipped) {
  const UpdateResult got = RunUpdate(run);
  const Array grad = kBucket.Values(run.dtype, 1, -2, 2);
  const Array p0 = kBucket.Values(DType::kFp32, 2, -1, 1);
  const Array m0 = kBucket.Values(DType::kFp32, 3, -1, 1);
  const Array v0 = kBucket.Values(DType::kFp32, 4, 0, 1);
  std::vector<double> norms(3, 0.0);
  for (int64_t i = 0; i < Bucket::kNumel; ++i) {
    const int s = kBucket.SegmentOf(i);
    if (s >= 0) norms[static_cast<size_t>(s)] += grad[i] * grad[i];
  }
  for (int64_t i = 0; i < Bucket::kNumel; ++i) {
    const int segment = kBucket.SegmentOf(i);
    if (segment < 0) {
      EXPECT_EQ(got.master[i], 0) << i;
      EXPECT_EQ(got.moment1[i], 0) << i;
      EXPECT_EQ(got.param[i], 0) << i;
      continue;
    }
    const auto s = static_cast<size_t>(segment);
    double g = grad[i] * unclipped;
    if (kBucket.need_clip[s]) {
      if (run.clip_mode == "global_norm") g = grad[i] * multiplier;
      if (run.clip_mode == "value") g = std::clamp(g, -run.clip, run.clip);
      if (run.clip_mode == "norm") {
        const double norm = std::sqrt(norms[s]) * unclipped;
        g *= std::min(1.0, run.clip / (norm + 1e-6));
      }
    }
    const double lr = kLr * kBucket.lr_scale[s];
    const double wd = kDecay * kBucket.decay[s];
    double p = p0[i];
    if (!run.decoupled) g += wd * p;
    if (run.decoupled) p -= lr * wd * p;
    double m, v = v0[i];
    if (run.type == "adamw") {
      m = kBeta1 * m0[i] + (1 - kBeta1) * g;
      v = kBeta2 * v0[i] + (1 - kBeta2) * g * g;
      const double bc1 = 1 - std::pow(kBeta1, static_cast<double>(update));
      const double bc2 = 1 - std::pow(kBeta2, static_cast<double>(update));
      p -= lr * (m / bc1) / (std::sqrt(v / bc2) + kEps);
    } else {
      m = kBeta1 * m0[i] + g;
      p -= lr * (run.nesterov ? kBeta1 * m + g : m);
    }
    EXPECT_NEAR(got.master[i], p, 2e-6) << i;
    EXPECT_NEAR(got.moment1[i], m, 2e-6) << i;
    EXPECT_NEAR(got.moment2[i], v, 2e-6) << i;
    EXPECT_EQ(got.param[i], RoundTo(run.dtype, got.master[i])) << i;
  }
}

TEST(AdamTest, MatchesTheTextbook) {
  for (const DType dtype : kFloatTypes) {
    for (const bool decoupled : {true, false}) {
      for (const char* mode : {"none", "global_norm", "norm", "value"}) {
        SCOPED_TRACE(std::string(DTypeName(dtype)) + " " + mode);
        UpdateRun run;
        run.dtype = dtype;
        run.decoupled = decoupled;
        run.clip_mode = mode;
        run.clip = 0.3;
        run.record = Record(false, 3, 0.2, 0.5);
        ExpectTextbook(run, 3, 0.2, 0.5);
      }
    }
  }
}

TEST(SgdTest, MatchesTheTextbook) {
  for (const bool nesterov : {false, true}) {
    for (const bool decoupled : {false, true}) {
      UpdateRun run;
      run.type = "sgd_momentum";
      run.nesterov = nesterov;
      run.decoupled = decoupled;
      run.record = Record(false, 1, 1, 1);
      ExpectTextbook(run, 1, 1, 1);
    }
  }
}

TEST(AdamTest, SlicesGiveTheBitsOfTheWhole) {
  UpdateRun run;
  run.record = Record(false, 2, 0.7, 1);
  run.clip_mode = "global_norm";
  run.clip = 1;
  const UpdateResult whole = RunUpdate(run);
  for (int rank = 0; rank < 2; ++rank) {
    run.rank = rank;
    const UpdateResult slice = RunUpdate(run);
    ExpectSame(slice.master, Part(whole.master, rank), "master");
    ExpectSame(slice.moment1, Part(whole.moment1, rank), "moment1");
    ExpectSame(slice.moment2, Part(whole.moment2, rank), "moment2");
    ExpectSame(slice.param, Part(whole.param, rank), "param");
  }
}

TEST(AdamTest, HostPoolAndSharedBufferChangeNoBit) {
  UpdateRun run;
  run.record = Record(false, 2, 0.7, 1);
  const UpdateResult want = RunUpdate(run);
  HostPoolOptions options;
  options.threads = 3;
  options.pin = false;
  HostPool pool(options);
  for (const bool alias : {false, true}) {
    run.place = Place::kPinned;
    run.pool = &pool;
    run.alias = alias;
    const UpdateResult got = RunUpdate(run);
    ExpectSame(got.master, want.master, "master");
    ExpectSame(got.moment2, want.moment2, "moment2");
    ExpectSame(got.param, want.param, "param");
  }
}

TEST(AdamTest, SkippedStepsLeaveTheStateAndWriteTheParam) {
  for (const char* type : {"adamw", "sgd_momentum"}) {
    for (const bool alias : {false, true}) {
      UpdateRun run;
      run.type = type;
      run.record = Record(true, 2, NAN, NAN);
      run.alias = alias;
      const UpdateResult got = RunUpdate(run);
      const Array master = kBucket.Values(DType::kFp32, 2, -1, 1);
      ExpectSame(got.master, master, "master");
      ExpectSame(got.moment1, kBucket.Values(DType::kFp32, 3, -1, 1), "m");
      ExpectSame(got.moment2, kBucket.Values(DType::kFp32, 4, 0, 1), "v");
      for (int64_t i = 0; i < Bucket::kNumel; ++i) {
        ASSERT_EQ(got.param[i], RoundTo(DType::kBf16, master[i]));
      }
    }
  }
}

TEST(AdamTest, PartsOfASliceAddUpToIt) {
  for (int rank : {-1, 0, 1}) {
    UpdateRun run;
    run.rank = rank;
    run.record = Record(false, 0.75, 0.1, 0.05);
    const UpdateResult slice = RunUpdate(run);
    const int64_t numel = slice.master.shape[0];
    for (int64_t begin = 0; begin < numel; begin += run.numel) {
      run.begin = begin;
      run.numel = std::min<int64_t>(384, numel - begin);
      const UpdateResult part = RunUpdate(run);
      UpdateRun whole = run;
      whole.rank = -1;
      const auto cut = [&](const Array& a) { return Part(a, whole); };
      ExpectSame(part.master, cut(slice.master), "master");
      ExpectSame(part.moment1, cut(slice.moment1), "moment1");
      ExpectSame(part.moment2, cut(slice.moment2), "moment2");
      ExpectSame(part.param, cut(slice.param), "param");
    }
  }
}

TEST(AdamTest, BadOperandsAreNamed) {
  OpCase c;
  c.type = "adamw";
  const Array x = RandomArray(DType::kFp32, {8}, 1);
  c.inputs = {{"grad", {x}},
              {"record", {Record(false, 1, 1, 1)}},
              {"master", {x}},
              {"moment1", {x}},
              {"moment2", {RandomArray(DType::kFp32, {9}, 1)}}};
  c.outputs = {"master", "moment1", "moment2"};
  c.attrs = Attrs({{"segment_begins", Ints({0})},
                   {"segment_numels", Ints({8})},
                   {"segment_weight_decay", Floats({1})},
                   {"segment_lr_scale", Floats({1})},
                   {"segment_need_clip", Ints({1})}});
  EXPECT_THAT(ErrorOf(c), ::testing::HasSubstr("moment2"));
  c.inputs[4].second = {x};
  EXPECT_EQ(ErrorOf(c), "");
  c.attrs.Set("slice_begin", 4);
  EXPECT_THAT(ErrorOf(c), ::testing::HasSubstr("8 elements from 4 on"));
  c.attrs.Set("slice_numel", 16);
  EXPECT_EQ(ErrorOf(c), "");
  c.attrs.Set("segment_need_clip", std::vector<int64_t>{1, 1});
  EXPECT_THAT(ErrorOf(c), ::testing::HasSubstr("differ in length"));
  c.attrs.Set("segment_need_clip", std::vector<int64_t>{1});
  c.attrs.Set("clip_mode", "norm");
  EXPECT_THAT(ErrorOf(c), ::testing::HasSubstr("needs stats"));
  c.attrs.Set("clip_mode", "sometimes");
  EXPECT_THAT(ErrorOf(c), ::testing::HasSubstr("sometimes"));
}

}  // namespace
}  // namespace plo::testing
