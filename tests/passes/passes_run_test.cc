// Runs programs before and after passes that must not change a bit.
#include <gmock/gmock.h>

#include <random>

#include "framework/ir/program_text.h"
#include "framework/plan/plan.h"
#include "framework/runtime/executor.h"
#include "operators/register_ops.h"
#include "tests/passes/pass_test_util.h"

namespace plo {
namespace {

using Values = std::map<std::string, std::vector<std::byte>>;

Feeds RandomFeeds(const Program& program) {
  std::mt19937 engine(7);
  Feeds feeds;
  for (VarId id : program.vars()) {
    const Var& var = program.var(id);
    if (var.kind != VarKind::kFeed) continue;
    if (var.dtype == DType::kInt32) {
      std::vector<int32_t> values(var.shape.numel());
      for (int32_t& v : values) v = static_cast<int32_t>(engine() % 37);
      if (var.name == "labels") values[1] = -100;  // ignored
      feeds[var.name] = HostTensor::Of(var.dtype, var.shape, values);
    } else {
      std::normal_distribution<float> normal;
      std::vector<float> values(var.shape.numel());
      for (float& v : values) v = normal(engine);
      feeds[var.name] = HostTensor::Of(var.dtype, var.shape, values);
    }
  }
  return feeds;
}

// The loss and the grads of all params after one micro-step, as bytes. Freed
// bytes are poisoned: a clone that reads what is gone changes the result.
Values LossAndGrads(Program program, const std::string& pipeline) {
  Apply(program, pipeline);
  std::vector<VarId> fetches = {program.loss};
  for (VarId param : program.Params()) {
    fetches.push_back(program.Related(param, Relation::kGradOf));
  }
  const Feeds feeds = RandomFeeds(program);
  const auto device = CreateCpuDevice();
  ExecutorOptions options;
  options.check_races = true;
  options.verify_writes = true;
  options.poison_freed = true;
  PlanOptions plan;
  plan.fetches = fetches;
  const auto executor = Executor::Create(program, BuildPlan(program, plan),
                                         *device, nullptr, options);
  executor->RunStartup();
  const std::vector<HostTensor> fetched = executor->Fetch(executor->Run(feeds));
  Values values;
  for (size_t i = 0; i < fetches.size(); ++i) {
    values[program.var(fetches[i]).name] = fetched[i].data;
  }
  return values;
}

void ExpectSameBits(const Values& expected, const Values& actual) {
  ASSERT_EQ(expected.size(), actual.size());
  for (const auto& [name, bytes] : expected) {
    ASSERT_EQ(actual.count(name), 1u) << name;
    EXPECT_TRUE(actual.at(name) == bytes) << name << " differs";
  }
}

GptConfig OddGpt(bool tied) {
  return {.layers = 2,
          .hidden = 36,
          .heads = 3,
          .seq_len = 33,
          .vocab_size = 37,
          .micro_batch = 2,
          .tied_head = tied,
          .dropout = 0.2,
          .seed = 3};
}

class PassesKeepBits
    : public testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(PassesKeepBits, OfGptLossesAndGrads) {
  const auto [dtype, pass] = GetParam();
  const std::string base =
      StrCat("apply_amp(dtype=", dtype, "),append_backward");
  for (bool tied : {true, false}) {
    const Values expected = LossAndGrads(SmallGpt(OddGpt(tied)), base);
    bool any_nonzero = false;
    for (std::byte b : expected.at("layer0/ln1/weight@grad")) {
      any_nonzero |= b != std::byte{0};
    }
    EXPECT_TRUE(any_nonzero);
    ExpectSameBits(expected, LossAndGrads(SmallGpt(OddGpt(tied)),
                                          StrCat(base, ",", pass)));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, PassesKeepBits,
    testing::Combine(testing::Values("fp32", "bf16", "fp16"),
                     testing::Values("recompute(policy=cheap)",
                                     "recompute(policy=selective)",
                                     "recompute(policy=full)", "fuse_ops",
                                     "recompute(policy=cheap),fuse_ops",
                                     "recompute(policy=full),fuse_ops")));

TEST(PassesKeepBits, OfAnMlpWithDropout) {
  const MlpConfig config{.layers = 3,
                         .hidden = 13,
                         .inputs = 5,
                         .outputs = 3,
                         .micro_batch = 7,
                         .dropout = 0.3};
  const Values expected = LossAndGrads(SmallMlp(config), "append_backward");
  for (const char* policy : {"cheap", "full"}) {
    const std::string pipeline =
        StrCat("append_backward,recompute(policy=", policy, ")");
    ExpectSameBits(expected, LossAndGrads(SmallMlp(config), pipeline));
    ExpectSameBits(expected,
                   LossAndGrads(SmallMlp(config), pipeline + ",fuse_ops"));
  }
}

// A product with a separate bias, which the layers never build.
TEST(PassesKeepBits, OfABiasFusedIntoItsProduct) {
  RegisterBuiltinOps();
  const Program program = ParseProgram(R"(program bias {
  loss=loss
  loss_count=count
  feed x fp32[5, 19]
  feed y fp32[5, 23]
  param w fp32[19, 23]
  param b fp32[23]
  temp t fp32[5, 23]
  temp o fp32[5, 23]
  temp g fp32[5, 23]
  temp loss fp32[1]
  state count fp32[1] category=workspace
  startup {
    fill_normal() -> (out=w) {dtype="fp32", key="w", mean=0.0, shape=[19, 23], std=0.5}
    fill_normal() -> (out=b) {dtype="fp32", key="b", mean=0.0, shape=[23], std=0.5}
  }
  micro {
    matmul(x=x, y=w) -> (out=t)
    add(x=t, y=b) -> (out=o)
    gelu(x=o) -> (out=g)
    sum_squared_error(x=g, y=y) -> (loss_sum=loss)
    count_elements(x=y) -> (count=count) first_micro_only=true
  }
})");
  const Values expected = LossAndGrads(program.Clone(), "append_backward");
  Program fused = program.Clone();
  EXPECT_EQ(Apply(fused, "append_backward,fuse_ops"),
            (std::vector<bool>{true, true}));
  EXPECT_EQ(CountOps(fused, "add", Role::kForward), 0);
  ExpectSameBits(expected,
                 LossAndGrads(program.Clone(), "append_backward,fuse_ops"));
}

// Two products and a residual read one activation, and another op its input.
TEST(PassesKeepBits, OfARecomputedActivationThatItsGradientGives) {
  RegisterBuiltinOps();
  const Program program = ParseProgram(R"(program activation {
  loss=loss
  loss_count=count
  feed x fp32[33, 19]
  feed y fp32[33, 23]
  param u fp32[19, 23]
  param v fp32[23, 23]
  param w fp32[23, 23]
  temp t fp32[33, 23]
  temp g fp32[33, 23]
  temp d fp32[33, 23]
  temp p fp32[33, 23]
  temp q fp32[33, 23]
  temp r fp32[33, 23]
  temp e fp32[33, 23]
  temp s fp32[33, 23]
  temp o fp32[33, 23]
  temp z fp32[33, 23]
  temp loss fp32[1]
  state count fp32[1] category=workspace
  startup {
    fill_normal() -> (out=u) {dtype="fp32", key="u", mean=0.0, shape=[19, 23], std=0.5}
    fill_normal() -> (out=v) {dtype="fp32", key="v", mean=0.0, shape=[23, 23], std=0.5}
    fill_normal() -> (out=w) {dtype="fp32", key="w", mean=0.0, shape=[23, 23], std=0.5}
  }
  micro {
    matmul(x=x, y=u) -> (out=t)
    gelu(x=t) -> (out=g)
    dropout(x=g) -> (out=d) {p=0.3}
    matmul(x=d, y=v) -> (out=p)
    matmul(x=g, y=w) -> (out=q)
    matmul(x=q, y=v) -> (out=r)
    add(x=p, y=r) -> (out=e)
    mul(x=e, y=t) -> (out=s)
    add(x=s, y=q) -> (out=o)
    tanh(x=o) -> (out=z)
    sum_squared_error(x=z, y=y) -> (loss_sum=loss)
    count_elements(x=y) -> (count=count) first_micro_only=true
  }
})");
  const std::string base = "append_backward,recompute(policy=cheap)";
  for (const char* dtype : {"fp32", "bf16"}) {
    SCOPED_TRACE(dtype);
    const std::string amp = StrCat("apply_amp(dtype=", dtype, "),");
    Program fused = program.Clone();
    Apply(fused, amp + base);
    ASSERT_EQ(CountOps(fused, "gelu", Role::kBackward), 1);
    Apply(fused, "fuse_ops");
    EXPECT_EQ(CountOps(fused, "gelu", Role::kBackward), 0);
    ExpectSameBits(LossAndGrads(program.Clone(), amp + "append_backward"),
                   LossAndGrads(program.Clone(), amp + base + ",fuse_ops"));
  }
}

}  // namespace
}  // namespace plo
