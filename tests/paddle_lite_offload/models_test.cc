#include "paddle_lite_offload/models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "framework/ir/verifier.h"

namespace plo {
namespace {

using ::testing::HasSubstr;

std::string TopRegion(const std::string& region) {
  return region.substr(0, region.find('/'));
}

const Op& FillOf(const Program& program, const std::string& param) {
  return program.op(program.Writers(program.GetVar(param))[0]);
}

TEST(Gpt, HasOneTopLevelRegionPerBlock) {
  const Program program = BuildGpt({.layers = 2, .hidden = 8, .heads = 2});
  std::set<std::string> tops;
  for (const auto& op : program.ops(Section::kMicro)) {
    tops.insert(TopRegion(op->region));
  }
  EXPECT_THAT(tops,
              ::testing::ElementsAre("embedding", "head", "layer0", "layer1"));
  EXPECT_EQ(program.var(program.GetVar("layer1/core_attn/attention_qkv")).shape,
            (Shape{8, 128, 8}));
}

TEST(Gpt, CountsItsParams) {
  const int64_t h = 8, v = 11, s = 6, layers = 3, ffn = 20;
  GptConfig config{.layers = layers,
                   .hidden = h,
                   .heads = 2,
                   .ffn_hidden = ffn,
                   .seq_len = s,
                   .vocab_size = v};
  const int64_t block =
      4 * h + (h + 1) * 3 * h + (h + 1) * h + (h + 1) * ffn + (ffn + 1) * h;
  const int64_t tied = v * h + s * h + layers * block + 2 * h;
  EXPECT_EQ(ParameterCount(BuildGpt(config)), tied);
  config.tied_head = false;
  EXPECT_EQ(ParameterCount(BuildGpt(config)), tied + v * h);
}

TEST(Gpt, TiedTableIsReadByEmbeddingAndHead) {
  const Program program = BuildGpt({.layers = 1, .hidden = 8, .heads = 2});
  std::set<std::string> readers;
  for (OpId id : program.Readers(program.GetVar("embedding/token/weight"))) {
    readers.insert(TopRegion(program.op(id).region));
  }
  EXPECT_THAT(readers, ::testing::ElementsAre("embedding", "head"));
}

TEST(Gpt, ScalesResidualProjections) {
  const Program program = BuildGpt({.layers = 8, .hidden = 8, .heads = 2});
  EXPECT_EQ(FillOf(program, "layer5/qkv/weight").attrs.GetFloat("std"), 0.02);
  for (const char* name : {"layer5/proj/weight", "layer5/fc2/weight"}) {
    EXPECT_EQ(FillOf(program, name).attrs.GetFloat("std"), 0.02 / 4);
  }
  EXPECT_FALSE(
      program.var(program.GetVar("layer5/fc2/bias")).param.weight_decay);
  EXPECT_FALSE(
      program.var(program.GetVar("layer5/ln1/weight")).param.weight_decay);
  EXPECT_TRUE(
      program.var(program.GetVar("layer5/fc2/weight")).param.weight_decay);
}

TEST(Gpt, ModesShareParams) {
  const GptConfig config{.layers = 2, .hidden = 8, .heads = 2, .dropout = 0.1};
  const Program train = BuildGpt(config);
  const Program eval = BuildGpt(config, ModelMode::kEval);
  const Program generate = BuildGpt(config, ModelMode::kGenerate);
  int dropouts = 0;
  for (const auto& op : train.ops(Section::kMicro)) {
    dropouts += op->type == "dropout";
  }
  EXPECT_EQ(dropouts, 5);
  for (const auto& op : eval.ops(Section::kMicro)) {
    EXPECT_NE(op->type, "dropout");
  }
  for (const Program* other : {&eval, &generate}) {
    for (VarId id : other->Params()) {
      const Var& param = other->var(id);
      EXPECT_EQ(train.var(train.GetVar(param.name)).shape, param.shape);
    }
  }
  EXPECT_NE(eval.loss, kNoId);
  EXPECT_EQ(generate.loss, kNoId);
  EXPECT_EQ(generate.var(generate.GetVar("logits")).shape,
            (Shape{8, 128, 256}));
  EXPECT_EQ(generate.FindVar("labels"), kNoId);
}

TEST(Gpt, GroupedHeadsShrinkTheProjection) {
  const Program program =
      BuildGpt({.layers = 1, .hidden = 16, .heads = 4, .kv_heads = 2});
  EXPECT_EQ(program.var(program.GetVar("layer0/qkv/weight")).shape,
            (Shape{16, 32}));
}

struct BadGpt {
  GptConfig config;
  const char* message;
};

TEST(Gpt, RejectsWhatDoesNotFit) {
  const BadGpt cases[] = {
      {{.hidden = 128, .heads = 3}, "heads 3 does not divide hidden 128"},
      {{.heads = 4, .kv_heads = 3}, "kv_heads 3 does not divide heads 4"},
      {{.layers = 0}, "layers must be positive, got 0"},
      {{.vocab_size = -1}, "vocab_size must be positive, got -1"},
      {{.dropout = 1}, "dropout must be in [0, 1), got 1"},
      {{.hidden = int64_t{1} << 40, .heads = 1}, "overflows"},
  };
  for (const BadGpt& bad : cases) {
    try {
      BuildGpt(bad.config);
      ADD_FAILURE() << "no error for: " << bad.message;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.what(), HasSubstr(bad.message));
    }
  }
}

TEST(Mlp, EndsInSquaredError) {
  const Program program = BuildMlp({.layers = 2, .hidden = 8});
  EXPECT_EQ(ParameterCount(program), 17 * 8 + 9 * 8 + 9 * 4);
  EXPECT_EQ(program.var(program.loss).shape, Shape{1});
  EXPECT_THROW(BuildMlp({}, ModelMode::kGenerate), Error);
}

}  // namespace
}  // namespace plo
