#include "paddle_lite_offload/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paddle_lite_offload/graph_builder.h"
#include "paddle_lite_offload/hasher.h"
#include "paddle_lite_offload/param_digest.h"

namespace plo {
namespace {

// loss = mean((x w - y)^2), w = 0 at first.
Program Line(const ParamAttrs& attrs = {}) {
  GraphBuilder g;
  const Value x = g.Feed("x", DType::kFp32, {2, 1});
  const Value y = g.Feed("y", DType::kFp32, {2, 1});
  const Value w = g.Param("w", {1, 1}, Init::Constant(0), attrs);
  g.SetLoss(g.SumSquaredError(g.Matmul(x, w), y), g.CountElements(y));
  return g.Build();
}

Feeds Points() {
  return {{"x", HostTensor::Of<float>(DType::kFp32, {2, 1}, {1, 2})},
          {"y", HostTensor::Of<float>(DType::kFp32, {2, 1}, {3, 6})}};
}

TEST(Engine, SgdStepIsTheFormula) {
  Engine engine(Line(), Sgd({.lr = 0.1, .momentum = 0}));
  const StepResult first = engine.Step(Points());
  EXPECT_FLOAT_EQ(first.loss, (9 + 36) / 2.0);
  // d/dw of the mean of (x w - y)^2 at w = 0: -(2 * 3 + 2 * 12) / 2.
  EXPECT_FLOAT_EQ(first.grad_norm, 15);
  EXPECT_FLOAT_EQ(first.lr, 0.1f);
  EXPECT_EQ(first.applied_steps, 1);
  EXPECT_FALSE(first.skipped);
  EXPECT_FALSE(first.loss_scale);
  EXPECT_FLOAT_EQ(engine.Read("w").ToDoubles()[0], 1.5);
  EXPECT_FLOAT_EQ(engine.Step(Points()).loss, (2.25 + 9) / 2);
}

TEST(Engine, ParamsCanBeWritten) {
  Engine engine(Line(), Sgd());
  engine.Write("w", HostTensor::Of<float>(DType::kFp32, {1, 1}, {3}));
  EXPECT_FLOAT_EQ(engine.Step(Points()).loss, 0);
  EXPECT_THROW(engine.Read("no_such_var"), Error);
}

TEST(Engine, FrozenParamsStay) {
  ParamAttrs frozen;
  frozen.trainable = false;
  GraphBuilder g;
  const Value x = g.Feed("x", DType::kFp32, {2, 1});
  const Value y = g.Feed("y", DType::kFp32, {2, 1});
  const Value w = g.Param("w", {1, 1}, Init::Constant(2), frozen);
  const Value b = g.Param("b", {1}, Init::Constant(0));
  g.SetLoss(g.SumSquaredError(g.Matmul(x, w, b), y), g.CountElements(y));
  Engine engine(g.Build(), AdamW({.lr = 0.1}));
  engine.Step(Points());
  EXPECT_EQ(engine.Read("w").ToDoubles()[0], 2);
  EXPECT_NE(engine.Read("b").ToDoubles()[0], 0);
}

TEST(Engine, NonFiniteGradientIsSkipped) {
  DefaultPipelineOptions pipeline;
  pipeline.loss_scale = "dynamic";
  pipeline.init_loss_scale = 8;
  Engine engine(Line(), AdamW({.lr = 0.1}), pipeline);
  Feeds bad = Points();
  bad["y"] = HostTensor::Of<float>(DType::kFp32, {2, 1}, {3, HUGE_VALF});
  const StepResult skipped = engine.Step(bad);
  EXPECT_TRUE(skipped.skipped);
  EXPECT_EQ(skipped.loss_scale, 8);
  EXPECT_EQ(skipped.applied_steps, 0);
  EXPECT_EQ(engine.Read("w").ToDoubles()[0], 0);
  const StepResult applied = engine.Step(Points());
  EXPECT_FALSE(applied.skipped);
  EXPECT_EQ(applied.loss_scale, 4);
  EXPECT_EQ(applied.applied_steps, 1);
}

TEST(Engine, WrongFeedNamesIt) {
  Engine engine(Line(), Sgd());
  Feeds feeds = Points();
  feeds["x"] = HostTensor::Of<float>(DType::kFp32, {3, 1}, {1, 2, 3});
  try {
    engine.Step(feeds);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("[3, 1]"));
  }
  EXPECT_FLOAT_EQ(engine.Step(Points()).loss, 22.5);  // still usable
}

TEST(Prepare, NeedsATrainingPipeline) {
  try {
    Prepare(Line(), {.pipeline = "append_backward"});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("append_backward"));
  }
}

TEST(ParamDigest, DependsOnBitsAndNamesOnly) {
  Engine one(Line(), Sgd()), two(Line(), AdamW());
  EXPECT_EQ(ParamDigest(one.executor()), ParamDigest(two.executor()));
  one.Write("w", HostTensor::Of<float>(DType::kFp32, {1, 1}, {-0.0f}));
  EXPECT_NE(ParamDigest(one.executor()), ParamDigest(two.executor()));
  EXPECT_EQ(DigestText(0xff), "00000000000000ff");
}

}  // namespace
}  // namespace plo
