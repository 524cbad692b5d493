#include "paddle_lite_offload/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "paddle_lite_offload/models.h"

namespace plo {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const Optimizer& optimizer) {
  try {
    optimizer.Validate();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Optimizer, WritesItsPipelineEntry) {
  EXPECT_EQ(AdamW({.lr = 3e-4, .weight_decay = 0.1}).PipelineEntry(),
            "insert_optimizer(type=adamw,lr=3e-04,beta1=0.9,beta2=0.999,"
            "eps=1e-08,weight_decay=0.1)");
  EXPECT_EQ(Sgd({.lr = 0.5, .nesterov = true}).PipelineEntry(),
            "insert_optimizer(type=sgd,lr=0.5,momentum=0.9,nesterov=true,"
            "weight_decay=0)");
  Optimizer adam = Adam({.lr = 1e-3});
  adam.schedule = {.kind = "cosine",
                   .warmup_steps = 10,
                   .total_steps = 100,
                   .min_ratio = 0.1};
  EXPECT_THAT(adam.PipelineEntry(),
              HasSubstr(",lr_schedule=cosine,warmup_steps=10,total_steps=100,"
                        "min_lr_ratio=0.1)"));
}

TEST(Optimizer, RejectsSenselessHyperparameters) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(ErrorOf(AdamW({.lr = nan})), HasSubstr("lr must be finite"));
  EXPECT_THAT(ErrorOf(AdamW({.lr = -1})), HasSubstr("lr must be finite"));
  EXPECT_THAT(ErrorOf(AdamW({.lr = HUGE_VAL})), HasSubstr("lr must be"));
  EXPECT_THAT(ErrorOf(AdamW({.beta1 = 1})),
              HasSubstr("beta1 must be in [0, 1)"));
  EXPECT_THAT(ErrorOf(AdamW({.eps = 0})), HasSubstr("eps must be positive"));
  EXPECT_THAT(ErrorOf(AdamW({.eps = 1e-46})), HasSubstr("in fp32, got 1e-46"));
  EXPECT_THAT(ErrorOf(Sgd({.momentum = nan})), HasSubstr("momentum"));
  Optimizer other = AdamW();
  other.type = "lion";
  EXPECT_THAT(ErrorOf(other), HasSubstr("unknown optimizer 'lion'"));
  other = AdamW();
  other.schedule.kind = "step";
  EXPECT_THAT(ErrorOf(other), HasSubstr("unknown lr_schedule 'step'"));
  other.schedule.kind = "linear";
  EXPECT_THAT(ErrorOf(other), HasSubstr("needs total_steps"));
}

TEST(Optimizer, LaterGroupsWin) {
  Program program = BuildMlp({.layers = 1});
  Optimizer optimizer = AdamW();
  optimizer.groups = {{.pattern = "*", .lr_scale = 0.5},
                      {.pattern = "layer0/*", .trainable = false},
                      {.pattern = "*/bias", .lr_scale = 2.0}};
  optimizer.ApplyGroups(program);
  const auto attrs = [&](const char* name) {
    return program.var(program.GetVar(name)).param;
  };
  EXPECT_FALSE(attrs("layer0/fc/weight").trainable);
  EXPECT_EQ(attrs("layer0/fc/weight").lr_scale, 0.5);
  EXPECT_EQ(attrs("layer0/fc/bias").lr_scale, 2);
  EXPECT_TRUE(attrs("head/fc/weight").trainable);
  EXPECT_TRUE(attrs("head/fc/weight").weight_decay);
  EXPECT_FALSE(attrs("head/fc/bias").weight_decay);

  optimizer.groups = {{.pattern = "no_such_*"}};
  EXPECT_THROW(optimizer.ApplyGroups(program), Error);
}

TEST(Pattern, MatchesTheWholeName) {
  EXPECT_TRUE(MatchesPattern("*", ""));
  EXPECT_TRUE(MatchesPattern("layer*/ln?/*", "layer12/ln1/weight"));
  EXPECT_TRUE(MatchesPattern("*a*b", "aab"));
  EXPECT_FALSE(MatchesPattern("layer?", "layer12"));
  EXPECT_FALSE(MatchesPattern("weight", "fc/weight"));
  EXPECT_FALSE(MatchesPattern("", "x"));
}

TEST(RoundTripText, ReadsBackExactly) {
  for (double value : {0.1, 1e-8, 65536.0, 1.0 / 3.0}) {
    EXPECT_EQ(std::stod(RoundTrip(value)), value);
  }
}

}  // namespace
}  // namespace plo
