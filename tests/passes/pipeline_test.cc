#include "passes/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "framework/ir/error.h"
#include "passes/pass.h"

namespace plo {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class PipelineTest : public ::testing::Test {
 protected:
  void SetUp() override { RegisterBuiltinPasses(); }
};

TEST_F(PipelineTest, RegistrationIsIdempotent) {
  RegisterBuiltinPasses();
  EXPECT_GE(PassRegistry::Global().Names().size(), 8u);
}

TEST_F(PipelineTest, LeavesOutWhatIsOff) {
  const std::string text = DefaultPipeline({.recompute = "none"});
  EXPECT_EQ(text,
            "append_backward,"
            "shard_optimizer(stage=2,degree=1,bucket_mb=25,grad_dtype=same),"
            "check_gradients,insert_optimizer(type=adamw),fuse_ops,"
            "schedule_transfers(depth=2)");
}

TEST_F(PipelineTest, PutsEveryPassInOrder) {
  DefaultPipelineOptions o;
  o.dtype = DType::kFp16;
  o.recompute = "selective";
  o.recompute_regions = {"a/core", "b"};
  o.sharding_stage = 1;
  o.sharding_degree = 4;
  o.bucket_mb = 0.5;
  o.grad_dtype = "fp32";
  o.accumulate_steps = 3;
  o.loss_scale = "dynamic";
  o.clip_norm = 1.5;
  o.insert_optimizer = "insert_optimizer(type=sgd,lr=0.1)";
  o.offload_optimizer = true;
  o.offload_fraction = 0.1;
  o.offload_mode = "sync";
  o.prefetch_depth = 5;
  EXPECT_EQ(DefaultPipeline(o),
            "apply_amp(dtype=fp16),append_backward,"
            "recompute(policy=selective,regions=a/core+b),"
            "shard_optimizer(stage=1,degree=4,bucket_mb=0.5,grad_dtype=fp32),"
            "accumulate_micro_steps(steps=3),check_gradients,"
            "insert_loss_scaling(mode=dynamic,init=65536,incr_ratio=2,"
            "decr_ratio=0.5,incr_every_n=2000,decr_every_n=1,min_scale=1),"
            "clip_gradients(norm=1.5,mode=global_norm),"
            "insert_optimizer(type=sgd,lr=0.1),"
            "offload_optimizer(fraction=0.1,mode=sync),fuse_ops,"
            "schedule_transfers(depth=5)");
}

TEST_F(PipelineTest, StaticScaleHasNoGrowth) {
  DefaultPipelineOptions o;
  o.loss_scale = "static";
  o.init_loss_scale = 1024;
  const std::string text = DefaultPipeline(o);
  EXPECT_THAT(text, HasSubstr("insert_loss_scaling(mode=static,init=1024)"));
  EXPECT_THAT(text, Not(HasSubstr("incr_ratio")));
}

// --- Bad options ---

struct BadEntry {
  const char* entry;
  const char* message;
  ErrorCode code = ErrorCode::kInvalidArgument;
};

void PrintTo(const BadEntry& bad, std::ostream* out) { *out << bad.entry; }

class BadOptionsTest : public ::testing::TestWithParam<BadEntry> {};

TEST_P(BadOptionsTest, IsRefused) {
  RegisterBuiltinPasses();
  try {
    PassManager::Parse(GetParam().entry);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), GetParam().code);
    EXPECT_THAT(error.message(), HasSubstr(GetParam().message));
    EXPECT_THAT(error.message(), HasSubstr(GetParam().entry));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Passes, BadOptionsTest,
    ::testing::Values(
        BadEntry{"shard_optimizer(stage=5)",
                 "stage must be 0, 1, 2 or 3, got 5"},
        BadEntry{"shard_optimizer(stage=-1)", "stage must be"},
        BadEntry{"shard_optimizer(stage=3)", "stage 3",
                 ErrorCode::kUnimplemented},
        BadEntry{"shard_optimizer(degree=0)", "degree must be in"},
        BadEntry{"shard_optimizer(degree=99999999999)", "degree must be in"},
        BadEntry{"shard_optimizer(bucket_mb=0)", "bucket_mb must be in"},
        BadEntry{"shard_optimizer(bucket_mb=-3)", "bucket_mb must be in"},
        BadEntry{"shard_optimizer(bucket_mb=1e300)", "bucket_mb must be in"},
        BadEntry{"shard_optimizer(grad_dtype=fp64)",
                 "grad_dtype must be same or fp32, got 'fp64'"},
        BadEntry{"shard_optimizer(stages=2)", "unknown option 'stages'"},
        BadEntry{"accumulate_micro_steps(steps=0)", "steps must be in"},
        BadEntry{"accumulate_micro_steps(steps=x)", "steps=x"},
        BadEntry{"check_gradients(a=1)", "unknown option 'a'"},
        BadEntry{"insert_loss_scaling(mode=auto)", "mode must be"},
        BadEntry{"insert_loss_scaling(init=0)",
                 "loss scale, must be in [2^-126, 2^126]"},
        BadEntry{"insert_loss_scaling(init=-4)",
                 "loss scale, must be in [2^-126, 2^126]"},
        BadEntry{"insert_loss_scaling(init=1e300)",
                 "loss scale, must be in [2^-126, 2^126]"},
        BadEntry{"insert_loss_scaling(init=nan)", "init=nan"},
        BadEntry{"insert_loss_scaling(incr_ratio=0.5)",
                 "incr_ratio must be at least 1, got 0.5"},
        BadEntry{"insert_loss_scaling(decr_ratio=0)", "decr_ratio must be"},
        BadEntry{"insert_loss_scaling(decr_ratio=2)", "decr_ratio must be"},
        BadEntry{"insert_loss_scaling(incr_every_n=0)", "incr_every_n must"},
        BadEntry{"insert_loss_scaling(decr_every_n=0)", "decr_every_n must"},
        BadEntry{"insert_loss_scaling(min_scale=0)", "min_scale must be"},
        BadEntry{"clip_gradients(norm=0)", "norm must be positive"},
        BadEntry{"clip_gradients(norm=-1)", "norm must be positive"},
        BadEntry{"clip_gradients(norm=inf)", "norm=inf"},
        BadEntry{"clip_gradients(mode=l1)", "mode must be"},
        BadEntry{"insert_optimizer(type=lion)", "type must be"},
        BadEntry{"insert_optimizer(lr=nan)", "lr=nan"},
        BadEntry{"insert_optimizer(lr=-0.1)", "lr must be"},
        BadEntry{"insert_optimizer(beta1=1)", "beta1 must be in [0, 1)"},
        BadEntry{"insert_optimizer(beta2=-0.5)", "beta2 must be in [0, 1)"},
        BadEntry{"insert_optimizer(eps=0)", "eps must be positive"},
        BadEntry{"insert_optimizer(weight_decay=-1)", "weight_decay must be"},
        BadEntry{"insert_optimizer(type=sgd,momentum=1)", "momentum must be"},
        BadEntry{"insert_optimizer(lr_schedule=step)", "lr_schedule must be"},
        BadEntry{"insert_optimizer(lr_schedule=cosine)", "total_steps"},
        BadEntry{"insert_optimizer(warmup_steps=-1)", "warmup_steps must"},
        BadEntry{"insert_optimizer(min_lr_ratio=2)", "min_lr_ratio must"},
        BadEntry{"offload_optimizer(fraction=1.5)",
                 "fraction must be in [0, 1], got 1.5"},
        BadEntry{"offload_optimizer(fraction=-0.1)", "fraction must be"},
        BadEntry{"offload_optimizer(fraction=nan)", "fraction=nan"},
        BadEntry{"offload_optimizer(mode=async)", "mode must be"},
        BadEntry{"schedule_transfers(depth=0)", "depth must be in"}));

}  // namespace
}  // namespace plo
