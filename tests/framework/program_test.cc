#include "framework/ir/program.h"

#include <gmock/gmock.h>

#include "framework/ir/op_registry.h"
#include "framework/ir/program_text.h"
#include "tests/framework/test_ops.h"

namespace plo {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<OpId> Ids(const Program& program) {
  std::vector<OpId> ids;
  for (const auto& op : program.ops(Section::kMicro)) ids.push_back(op->id);
  return ids;
}

Program Chain(int count) {
  Program program;
  VarId x = AddVar(program, "x", {1}, VarKind::kFeed);
  for (int i = 0; i < count; ++i) {
    const VarId y = AddVar(program, StrCat("y", i), {1});
    AddOp(program, Section::kMicro, "unary", x, y);
    x = y;
  }
  return program;
}

TEST(Program, ReorderTakesAPermutation) {
  Program program = Chain(4);
  program.Reorder(Section::kMicro, {3, 0, 2, 1});
  EXPECT_THAT(Ids(program), ElementsAre(3, 0, 2, 1));
  EXPECT_EQ(program.IndexOf(2), 2u);
  EXPECT_THROW(program.Reorder(Section::kMicro, {3, 0, 2}), Error);
  EXPECT_THROW(program.Reorder(Section::kMicro, {3, 0, 2, 2}), Error);
  EXPECT_THROW(program.Reorder(Section::kMicro, {3, 0, 2, 9}), Error);
  EXPECT_THAT(Ids(program), ElementsAre(3, 0, 2, 1));
}

TEST(Program, EraseOpsDropsEdgesToThem) {
  Program program = Chain(4);
  program.mutable_op(3).after = {0, 1, 2};
  program.EraseOps({0, 2, 0});
  EXPECT_THAT(Ids(program), ElementsAre(1, 3));
  EXPECT_THAT(program.op(3).after, ElementsAre(1));
  EXPECT_FALSE(program.HasOp(0));
  EXPECT_THROW(program.EraseOps({0}), Error);
}

TEST(Program, OpsKeepTheirIdsThroughEdits) {
  Program program = Chain(2);
  const VarId x = program.GetVar("x");
  OpSpec spec;
  spec.type = "unary";
  spec.inputs = {{"x", {x}}};
  spec.outputs = {{"out", {AddVar(program, "z", {1})}}};
  EXPECT_EQ(program.InsertBefore(1, spec).id, 2);
  EXPECT_THAT(Ids(program), ElementsAre(0, 2, 1));
  program.EraseOp(2);
  EXPECT_EQ(program.Append(Section::kMicro, spec).id, 3);
  program.MoveBefore(3, 0);
  EXPECT_THAT(Ids(program), ElementsAre(3, 0, 1));
  program.MoveBefore(3, 1);
  EXPECT_THAT(Ids(program), ElementsAre(0, 3, 1));
}

TEST(Program, DefUseFollowsEdits) {
  Program program = Chain(3);
  const VarId x = program.GetVar("x");
  const VarId y0 = program.GetVar("y0");
  EXPECT_THAT(program.Readers(y0), ElementsAre(1));
  program.ReplaceInput(1, y0, x);
  EXPECT_THAT(program.Readers(y0), ElementsAre());
  EXPECT_THAT(program.Readers(x), ElementsAre(0, 1));
  EXPECT_THAT(program.Writers(y0), ElementsAre(0));
}

TEST(Program, EraseVarRefusesVarsInUse) {
  Program program = Chain(1);
  EXPECT_THROW(program.EraseVar(program.GetVar("y0")), Error);
  const VarId base = AddVar(program, "base", {4});
  const VarId view = AddView(program, "view", {2}, base, 8);
  EXPECT_THROW(program.EraseVar(base), Error);
  program.EraseVar(view);
  program.EraseVar(base);
  EXPECT_EQ(program.FindVar("base"), kNoId);
}

TEST(Program, EraseVarsTakesAllOrNone) {
  Program program = Chain(1);
  const VarId base = AddVar(program, "base", {4});
  const VarId view = AddView(program, "view", {2}, base, 8);
  const VarId other = AddVar(program, "other", {4});
  const VarId used = program.GetVar("y0");
  EXPECT_THROW(program.EraseVars({other, used}), Error);
  EXPECT_THROW(program.EraseVars({other, base}), Error);
  EXPECT_TRUE(program.HasVar(other));
  program.EraseVars({base, other, view});  // referring to each other
  for (VarId id : {base, view, other}) EXPECT_FALSE(program.HasVar(id));
  EXPECT_TRUE(program.HasVar(used));
}

TEST(Program, IndexOfFollowsEdits) {
  Program program = Chain(6);
  const auto expect_positions = [&program] {
    const auto& ops = program.ops(Section::kMicro);
    for (size_t i = 0; i < ops.size(); ++i) {
      EXPECT_EQ(program.IndexOf(ops[i]->id), i);
    }
  };
  OpSpec spec;
  spec.type = program.op(0).type;
  for (int i = 0; i < 3; ++i) {
    program.InsertBefore(0, spec);
    program.InsertAfter(4, spec);
  }
  expect_positions();
  program.EraseOps({0, 1, 2, 5});
  expect_positions();
  program.MoveBefore(program.ops(Section::kMicro).back()->id, 3);
  expect_positions();
  std::vector<OpId> order;
  for (const auto& op : program.ops(Section::kMicro)) order.push_back(op->id);
  std::reverse(order.begin(), order.end());
  program.Reorder(Section::kMicro, order);
  expect_positions();
  EXPECT_EQ(program.Clone().IndexOf(3), program.IndexOf(3));
}

TEST(Program, ViewsResolveThroughChains) {
  Program program;
  const VarId base = AddVar(program, "base", {64});
  const VarId half = AddView(program, "half", {32}, base, 64, 16);
  const VarId part = AddView(program, "part", {1}, half, 4, 8);
  EXPECT_EQ(program.StorageOf(part), base);
  EXPECT_EQ(program.OffsetInStorage(part, 0), 68);
  EXPECT_EQ(program.OffsetInStorage(part, 2), 68 + 2 * 24);
}

TEST(Program, CloneIsDeepAndIndependent) {
  Program program = RandomProgram(4);
  const std::string text = PrintProgram(program);
  Program copy = program.Clone();
  EXPECT_EQ(PrintProgram(copy), text);
  AddVar(copy, "new", {1});
  copy.seed += 1;
  EXPECT_EQ(PrintProgram(program), text);
}

TEST(Program, NamesAreUnique) {
  Program program;
  AddVar(program, "a", {1});
  EXPECT_THROW(AddVar(program, "a", {1}), Error);
  EXPECT_EQ(program.UniqueName("a"), "a_1");
  EXPECT_EQ(program.UniqueName("b"), "b");
}

TEST(OpRegistry, NormalizeFillsDefaultsAndChecks) {
  Program program;
  const VarId x = AddVar(program, "x", {1}, VarKind::kFeed);
  Op& op =
      AddOp(program, Section::kMicro, "unary", x, AddVar(program, "y", {1}));
  op.attrs.Erase("gain");
  EXPECT_THROW(CheckOp(TestOps(), op), Error);
  NormalizeProgram(program, TestOps());
  EXPECT_EQ(op.attrs.GetFloat("gain"), 1.0);
  op.attrs.Set("gian", Attr(2.0));
  try {
    NormalizeOp(TestOps(), program, op);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("no attribute 'gian'"));
  }
}

TEST(OpRegistry, InferenceErrorsNameOpVarsAndShapes) {
  Program program;
  OpSpec spec;
  spec.type = "pair";
  spec.inputs = {{"x", {AddVar(program, "a", {2, 3})}},
                 {"y", {AddVar(program, "b", {3})}}};
  spec.outputs = {{"out", {AddVar(program, "c", {2, 3})}}};
  spec.location = "model.cc:12";
  const Op& op = program.Append(Section::kMicro, spec);
  try {
    InferOp(TestOps(), program, op);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(),
              "op 'pair' #0 (built at model.cc:12): x and y differ in shape "
              "(x = fp32 [2, 3] 'a', y = fp32 [3] 'b')");
  }
}

}  // namespace
}  // namespace plo
