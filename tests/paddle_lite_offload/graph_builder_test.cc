#include "paddle_lite_offload/graph_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace plo {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The message of the error that `call` throws, with its code name.
template <typename Call>
std::string ErrorOf(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(GraphBuilder, NamesFollowRegions) {
  GraphBuilder g;
  const Value x = g.Feed("x", DType::kFp32, {2, 3});
  Value w, y, z;
  {
    const auto outer = g.Region("layer3");
    const auto inner = g.Region("fc");
    w = g.Param("weight", {3, 4}, Init::Normal(0.02));
    y = g.Matmul(x, w);
    z = g.Matmul(x, w);
  }
  EXPECT_EQ(g.name(x), "x");
  EXPECT_EQ(g.name(w), "layer3/fc/weight");
  EXPECT_EQ(g.name(y), "layer3/fc/matmul");
  EXPECT_EQ(g.name(z), "layer3/fc/matmul_1");
  EXPECT_EQ(g.shape(y), (Shape{2, 4}));
  g.Name(y, "hidden");
  const Program program = g.Build();
  EXPECT_EQ(program.var(program.GetVar("hidden")).region, "layer3/fc");
  EXPECT_EQ(program.ops(Section::kMicro)[0]->region, "layer3/fc");
}

TEST(GraphBuilder, ParamsCarryTheirAttributes) {
  GraphBuilder g;
  ParamAttrs attrs;
  attrs.lr_scale = 0.5;
  const Value w = g.Param("w", {4}, Init::Constant(3), attrs);
  const Program program = g.Build();
  const Var& var = program.var(w.id);
  EXPECT_EQ(var.kind, VarKind::kParam);
  EXPECT_EQ(var.category, MemoryCategory::kParams);
  EXPECT_EQ(var.param, attrs);
}

TEST(GraphBuilder, FillsAreKeyedByName) {
  GraphBuilder g("main", /*seed=*/9);
  {
    const auto scope = g.Region("a");
    g.Param("w", {4}, Init::Normal(0.25, 1));
    g.Param("b", {4}, Init::Constant(2));
    g.Param("u", {4}, Init::Uniform(-1, 1));
  }
  const Program program = g.Build();
  EXPECT_EQ(program.seed, 9);
  const auto& startup = program.ops(Section::kStartup);
  ASSERT_EQ(startup.size(), 3u);
  EXPECT_EQ(startup[0]->type, "fill_normal");
  EXPECT_EQ(startup[0]->attrs.GetString("key"), "a/w");
  EXPECT_EQ(startup[0]->attrs.GetFloat("std"), 0.25);
  EXPECT_EQ(startup[0]->attrs.GetFloat("mean"), 1);
  EXPECT_EQ(startup[1]->attrs.GetFloat("value"), 2);
  EXPECT_EQ(startup[2]->attrs.GetFloat("low"), -1);
}

TEST(GraphBuilder, ReshapeIsAView) {
  GraphBuilder g;
  const Value x = g.Feed("x", DType::kFp32, {2, 6});
  const Value y = g.Scale(x, 2);
  const Value z = g.Reshape(y, {3, -1});
  EXPECT_EQ(g.shape(z), (Shape{3, 4}));
  const Program program = g.Build();
  EXPECT_EQ(program.var(z.id).view_of, y.id);
}

TEST(GraphBuilder, RandomOpsHaveStableIds) {
  GraphBuilder g;
  Value x = g.Feed("x", DType::kFp32, {2, 6});
  EXPECT_EQ(g.Dropout(x, 0), x);
  g.Dropout(x, 0.1);
  g.Scale(x, 2);
  g.Dropout(x, 0.1);
  const Program program = g.Build();
  const auto& ops = program.ops(Section::kMicro);
  EXPECT_EQ(ops[0]->random_id, 0);
  EXPECT_EQ(ops[1]->random_id, kNoId);
  EXPECT_EQ(ops[2]->random_id, 1);
}

TEST(GraphBuilder, CountsRunInTheFirstMicroStep) {
  GraphBuilder g;
  const Value x = g.Feed("x", DType::kFp32, {2, 6});
  const Value y = g.Feed("y", DType::kFp32, {2, 6});
  const Value count = g.CountElements(y);
  g.SetLoss(g.SumSquaredError(x, y), count);
  const Program program = g.Build();
  EXPECT_EQ(program.loss_count, count.id);
  const Var& var = program.var(count.id);
  EXPECT_EQ(var.kind, VarKind::kState);
  EXPECT_EQ(var.category, MemoryCategory::kWorkspace);
  EXPECT_TRUE(program.ops(Section::kMicro)[0]->first_micro_only);
  EXPECT_FALSE(program.ops(Section::kMicro)[1]->first_micro_only);
}

TEST(GraphBuilder, MismatchNamesOpVarsShapesAndPlace) {
  GraphBuilder g;
  const Value x = g.Feed("x", DType::kFp32, {2, 3});
  const Value w = g.Param("w", {4, 5}, Init::Constant(0));
  EXPECT_THAT(ErrorOf([&] { g.Matmul(x, w); }),
              AllOf(HasSubstr("InvalidArgument"), HasSubstr("'matmul'"),
                    HasSubstr("[2, 3] 'x'"), HasSubstr("[4, 5] 'w'"),
                    HasSubstr("built at graph_builder_test.cc:")));
  // Nothing is left behind.
  EXPECT_TRUE(g.Build().ops(Section::kMicro).empty());
}

TEST(GraphBuilder, RejectsForeignAndEmptyValues) {
  GraphBuilder g, other;
  const Value x = g.Feed("x", DType::kFp32, {2, 3});
  const Value foreign = other.Feed("x", DType::kFp32, {2, 3});
  EXPECT_THAT(ErrorOf([&] { g.Add(x, foreign); }),
              HasSubstr("another GraphBuilder"));
  EXPECT_THAT(ErrorOf([&] { g.Add(x, Value{}); }),
              HasSubstr("input slot 'y' is empty"));
  EXPECT_THAT(ErrorOf([&] { g.shape(foreign); }),
              HasSubstr("another GraphBuilder"));
}

TEST(GraphBuilder, RejectsBadNamesAndLosses) {
  GraphBuilder g;
  const Value x = g.Feed("x", DType::kFp32, {2, 3});
  EXPECT_THAT(ErrorOf([&] { g.Feed("x", DType::kFp32, {1}); }),
              HasSubstr("there is already a var 'x'"));
  EXPECT_THAT(ErrorOf([&] { g.Param("x", {1}, Init::Constant(0)); }),
              HasSubstr("there is already a var 'x'"));
  EXPECT_THAT(ErrorOf([&] { g.Param("e", {0}, Init::Constant(0)); }),
              HasSubstr("has no elements"));
  EXPECT_THAT(ErrorOf([&] { g.PushRegion("a/b"); }), HasSubstr("without '/'"));
  EXPECT_THAT(ErrorOf([&] { g.SetLoss(x, x); }), HasSubstr("fp32 [1]"));
  const Value loss = g.SumSquaredError(x, x);
  EXPECT_THAT(ErrorOf([&] { g.SetLoss(loss, loss); }),
              HasSubstr("CountValid or CountElements"));
  EXPECT_THAT(ErrorOf([&] { g.CountElements(loss); }), HasSubstr("a feed"));
  EXPECT_THAT(ErrorOf([&] { g.Dropout(x, 1); }), HasSubstr("[0, 1)"));
  EXPECT_THAT(ErrorOf([&] { g.AddOp("matmull", {}); }),
              HasSubstr("did you mean 'matmul'"));
}

TEST(GraphBuilder, BuildEndsIt) {
  GraphBuilder g;
  g.PushRegion("a");
  EXPECT_THAT(ErrorOf([&] { g.Build(); }), HasSubstr("'a' is still open"));
  g.PopRegion();
  const Value x = g.Feed("x", DType::kFp32, {2, 3});
  g.Build();
  EXPECT_THAT(ErrorOf([&] { g.Scale(x, 2); }),
              HasSubstr("already built its program"));
}

TEST(GraphBuilder, AnyOpBySchema) {
  GraphBuilder g;
  const Value x = g.Feed("x", DType::kFp32, {2, 6});
  AttrMap attrs;
  attrs.Set("factor", Attr(3.0));
  const auto outputs =
      g.AddOp("scale", {{"x", {x}}}, attrs, Site("dir/model.py", 12));
  ASSERT_EQ(outputs.size(), 1u);
  const Program program = g.Build();
  EXPECT_EQ(program.ops(Section::kMicro)[0]->location, "model.py:12");
}

}  // namespace
}  // namespace plo
