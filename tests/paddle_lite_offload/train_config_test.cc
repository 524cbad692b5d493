#include "paddle_lite_offload/train_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "paddle_lite_offload/flag_conditions.h"

namespace plo {
namespace {

using ::testing::HasSubstr;

struct BadConfig {
  std::function<void(TrainConfig&)> change;
  ErrorCode code;
  const char* message;
};

TEST(TrainConfig, RejectsWhatMakesNoSense) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr ErrorCode kBad = ErrorCode::kInvalidArgument;
  constexpr ErrorCode kLater = ErrorCode::kUnimplemented;
  const BadConfig cases[] = {
      {[](auto& c) { c.model = "gtp"; }, kBad, "--model=gtp: expected one of"},
      {[](auto& c) {
         c.dtype = "bf16";
         c.grad_reduce_dtype = "fp32";
       },
       kLater, "--grad_reduce_dtype=fp32 with gradients of bf16"},
      {[](auto& c) { c.heads = 3; }, kBad,
       "--heads=3 does not divide --hidden=128"},
      {[](auto& c) { c.layers = 0; }, kBad, "--layers must be at least 1"},
      {[](auto& c) { c.layers = 1000000000; }, kBad,
       "--layers must be at most"},
      {[](auto& c) { c.hidden = int64_t{1} << 40; }, kBad, "overflows"},
      {[](auto& c) { c.steps = std::numeric_limits<int64_t>::max(); }, kBad,
       "number of tokens of the run overflows"},
      {[](auto& c) { c.generate = int64_t{1} << 40; }, kBad,
       "--generate must be in [0, 1048576], got 1099511627776"},
      {[](auto& c) { c.vocab_size = int64_t{1} << 31; }, kBad,
       "--vocab_size must be at most 2147483647"},
      {[nan](auto& c) { c.lr = nan; }, kBad, "--lr must be a finite number"},
      {[](auto& c) { c.lr = -1e-3; }, kBad, "lr must be finite"},
      {[](auto& c) { c.lr = 1e39; }, kBad, "--lr must be a finite number"},
      {[](auto& c) { c.eps = 1e-46; }, kBad, "eps must be positive"},
      {[nan](auto& c) { c.clip_norm = nan; }, kBad, "--clip_norm"},
      {[](auto& c) { c.dtype = "fp8"; }, kBad, "--dtype=fp8"},
      {[](auto& c) { c.offload_fraction = 1.5; }, kBad,
       "--offload_fraction must be in [0, 1], got 1.5"},
      {[nan](auto& c) { c.offload_fraction = nan; }, kBad,
       "--offload_fraction"},
      {[](auto& c) { c.sharding_stage = 5; }, kBad,
       "--sharding_stage must be 0, 1, 2 or 3, got 5"},
      {[](auto& c) { c.loss_scale = "0"; }, kBad,
       "--loss_scale must be in [2^-126, 2^126], got 0"},
      {[](auto& c) { c.loss_scale = "-8"; }, kBad, "--loss_scale must be in"},
      {[](auto& c) { c.loss_scale = "1e38"; }, kBad, "--loss_scale must be in"},
      {[](auto& c) { c.loss_scale = "big"; }, kBad, "--loss_scale=big"},
      {[](auto& c) { c.init_loss_scale = 0; }, kBad, "--init_loss_scale"},
      {[](auto& c) { c.loss_scale = "dynamic", c.min_loss_scale = 1e5; }, kBad,
       "--min_loss_scale=100000 exceeds --init_loss_scale=65536"},
      {[](auto& c) { c.dtype = "fp16", c.init_loss_scale = 0.5; }, kBad,
       "--min_loss_scale=1 exceeds --init_loss_scale=0.5"},
      {[](auto& c) { c.loss_scale_growth = 0.5; }, kBad,
       "--loss_scale_growth must be at least 1"},
      {[](auto& c) { c.vocab_size = 100, c.text = "x"; }, kBad,
       "--vocab_size of at least 256"},
      {[](auto& c) { c.model = "mlp", c.text = "x"; }, kBad,
       "need --model=gpt"},
      {[](auto& c) { c.sharding_degree = 3; }, kBad, "exceeds the 2 ranks"},
      {[](auto& c) { c.lr_schedule = "x"; }, kBad,
       "--lr_schedule=x: expected one of"},
      {[](auto& c) { c.optimizer = "lion"; }, kBad,
       "--optimizer=lion: expected one of"},
      {[](auto& c) { c.beta1 = 1; }, kBad, "--beta1 must be in [0, 1)"},
      {[](auto& c) { c.weight_decay = -1; }, kBad, "--weight_decay must be"},
      {[](auto& c) { c.eps = 0; }, kBad,
       "--eps must be positive and finite in fp32"},
      // Used or not.
      {[nan](auto& c) { c.momentum = nan; }, kBad,
       "--momentum must be a finite number in the range of fp32, got nan"},
      {[](auto& c) { c.init_loss_scale = 1e308; }, kBad,
       "--init_loss_scale must be a finite number in the range of fp32"},
      {[](auto& c) { c.lr = 1e39; }, kBad, "--lr must be a finite number"},
      {[](auto& c) { c.clip_norm = -1; }, kBad, "--clip_norm must be a pos"},
      {[](auto& c) { c.clip_norm = 1e-46; }, kBad, "--clip_norm must be a pos"},
      {[](auto& c) { c.loss_scale = "1e39"; }, kBad, "--loss_scale=1e39"},
      {[](auto& c) { c.bucket_mb = 2e6; }, kBad,
       "--bucket_mb must be at most 1048576"},
      {[](auto& c) { c.bucket_mb = 0; }, kBad, "--bucket_mb must be a pos"},
      {[](auto& c) { c.accumulate_steps = 1 << 21; }, kBad,
       "--accumulate_steps must be in [1, 1048576], got 2097152"},
      {[](auto& c) { c.loss_scale_window = int64_t{1} << 40; }, kBad,
       "--loss_scale_window must be in [1, 2147483647]"},
      {[](auto& c) { c.freeze = "+"; }, kBad,
       "--freeze=+: an item of the list is empty"},
      {[](auto& c) { c.offload = "optimizer+"; }, kBad,
       "--offload=optimizer+: an item"},
      {[](auto& c) { c.model = "mlp", c.recompute = "selective"; }, kBad,
       "--recompute=selective"},
      {[](auto& c) { c.offload_streamed_fraction = "2"; }, kBad,
       "expected auto or a number in [0, 1]"},
      {[](auto& c) { c.offload_streamed_fraction = "all"; }, kBad,
       "--offload_streamed_fraction=all: expected auto or a number"},
      // Without effect.
      {[](auto& c) { c.model = "mlp", c.kv_heads = 2; }, kBad,
       "--kv_heads has no effect without --model=gpt"},
      {[](auto& c) { c.momentum = 0.5; }, kBad,
       "--momentum has no effect without --optimizer=sgd"},
      {[](auto& c) { c.offload_fraction = 0.5; }, kBad,
       "--offload_fraction has no effect without --offload=optimizer"},
      {[](auto& c) { c.init_loss_scale = 8; }, kBad,
       "--init_loss_scale has no effect without a dynamic --loss_scale"},
      {[](auto& c) { c.sharding_stage = 3; }, kLater, "--sharding_stage=3"},
      {[](auto& c) { c.offload = "params"; }, kLater, "--offload=params"},
      {[](auto& c) { c.offload = "optimizer+params"; }, kLater,
       "--offload=params"},
      {[](auto& c) { c.offload_activations = "layer0"; }, kLater,
       "--offload_activations"},
      {[](auto& c) { c.resume = "x"; }, kLater, "--resume"},
      {[](auto& c) { c.save_dir = "x"; }, kLater, "--save_dir"},
      {[](auto& c) { c.save_every = 5; }, kLater, "--save_every"},
  };
  for (const BadConfig& bad : cases) {
    TrainConfig config;
    bad.change(config);
    try {
      ValidateTrainConfig(config, 2);
      ADD_FAILURE() << "no error for: " << bad.message;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), bad.code) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(bad.message));
    }
  }
  ValidateTrainConfig(TrainConfig{}, 2);
}

TEST(TrainConfig, TheSizeOfAnMlpIsItsOwn) {
  TrainConfig config;
  config.model = "mlp";
  config.layers = 1;
  config.hidden = 10000000;  // a gpt of this width would be refused
  ValidateTrainConfig(config, 1);
  config.layers = 1000;
  EXPECT_THROW(ValidateTrainConfig(config, 1), Error);
}

TEST(TrainConfig, AcceptsWhatHasAnEffect) {
  TrainConfig sgd;
  sgd.optimizer = "sgd";
  sgd.momentum = 0.5;
  ValidateTrainConfig(sgd, 1);
  TrainConfig fp16;
  fp16.dtype = "fp16";
  fp16.init_loss_scale = 8;
  ValidateTrainConfig(fp16, 1);
  // Numbers, not texts.
  for (const char* zero : {"0", "0.0", "0e5", "-0"}) {
    TrainConfig config;
    config.offload_streamed_fraction = zero;
    ValidateTrainConfig(config, 1);
    config.offload = "optimizer";
    config.offload_fraction = 0.5;
    ValidateTrainConfig(config, 1);
  }
}

TEST(TrainConfig, IdleFlagsCanBeReset) {
  TrainConfig config;
  config.model = "mlp";
  config.heads = 2;
  config.layers = 7;
  config.temperature = 0.1;
  std::vector<std::string> names;
  for (const IdleFlag& flag : FindIdleFlags(config)) {
    names.push_back(flag.name);
    ResetFlag(flag.name, config);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"heads", "temperature"}));
  EXPECT_EQ(config.heads, TrainConfig().heads);
  EXPECT_EQ(config.temperature, TrainConfig().temperature);
  EXPECT_EQ(config.layers, 7);
  EXPECT_TRUE(FindIdleFlags(config).empty());
}

TEST(TrainConfig, LossScaleFollowsTheDtype) {
  TrainConfig config;
  EXPECT_FALSE(InitialLossScale(config));
  config.dtype = "bf16";
  EXPECT_FALSE(InitialLossScale(config));
  config.dtype = "fp16";
  EXPECT_EQ(InitialLossScale(config), 65536);
  EXPECT_EQ(MakePipelineOptions(config, 1).loss_scale, "dynamic");
  config.loss_scale = "128";
  EXPECT_EQ(InitialLossScale(config), 128);
  EXPECT_EQ(MakePipelineOptions(config, 1).loss_scale, "static");
  config.loss_scale = "none";
  EXPECT_EQ(MakePipelineOptions(config, 1).loss_scale, "none");
}

TEST(TrainConfig, PipelineNamesEveryChoice) {
  TrainConfig config;
  config.dtype = "bf16";
  config.accumulate_steps = 3;
  config.clip_norm = 1;
  config.offload = "optimizer";
  config.offload_fraction = 0.5;
  const std::string text = DefaultPipeline(MakePipelineOptions(config, 4));
  config.offload_streamed_fraction = "0.25";
  EXPECT_THAT(DefaultPipeline(MakePipelineOptions(config, 4)),
              HasSubstr("fraction=0.5,streamed_fraction=0.25,"));
  for (const char* part :
       {"apply_amp(dtype=bf16)", "recompute(policy=cheap)", "degree=4",
        "steps=3", "clip_gradients(norm=1", "type=adamw,lr=0.001",
        "offload_optimizer(fraction=0.5,mode=overlap)"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(TrainConfig, FreezesByPattern) {
  TrainConfig config;
  config.freeze = "embedding/*+*/ln1/*";
  const Program program = BuildModel(config);
  EXPECT_FALSE(
      program.var(program.GetVar("embedding/token/weight")).param.trainable);
  EXPECT_FALSE(program.var(program.GetVar("layer2/ln1/bias")).param.trainable);
  EXPECT_TRUE(program.var(program.GetVar("layer2/ln2/bias")).param.trainable);
  for (const auto& [pattern, message] :
       {std::pair("no_such*",
                  "--freeze=no_such*: param group 'no_such*' "
                  "matches no param"),
        std::pair("*", "--freeze=* leaves no param to train")}) {
    config.freeze = pattern;
    try {
      BuildModel(config);
      ADD_FAILURE() << pattern;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_EQ(error.message(), message);
    }
  }
}

TEST(TrainConfig, JsonHasEveryFlag) {
  const nlohmann::json json = ToJson(TrainConfig{});
  EXPECT_EQ(json.at("model"), "gpt");
  EXPECT_EQ(json.at("device_memory_limit"), 0);
  EXPECT_EQ(json.at("lr"), 1e-3);
  EXPECT_EQ(json.at("tied_head"), true);
}

}  // namespace
}  // namespace plo
