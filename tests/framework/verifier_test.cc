#include "framework/ir/verifier.h"

#include <gmock/gmock.h>

#include <functional>

#include "framework/ir/program_text.h"
#include "tests/framework/test_ops.h"

namespace plo {
namespace {

using testing::HasSubstr;

void ExpectFault(const Program& program, const std::string& message) {
  try {
    Verify(program, TestOps());
    ADD_FAILURE() << "verifies:\n" << PrintProgram(program);
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr(message));
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  }
}

constexpr char kGood[] = R"(program good {
  world_size=2
  feed x fp32[4]
  state s fp32[8]
  state slice fp32[4] view=s+0+rank*16
  state h fp32[4] place=pinned
  temp a fp32[4]
  temp b fp32[4]
  temp whole fp32[8]
  temp left fp32[4] view=whole+0
  temp right fp32[4] view=whole+16
  temp t fp32[4]
  startup {
    copy_d2h(x=slice) -> (out=h)
  }
  micro {
    #1 unary(x=x) -> (out=a) {gain=1.0}
    unary(x=a) -> (out=left) {gain=1.0}
    pair(x=a, y=a) -> (out=right)
    update(x=a, acc=whole) -> (acc=whole)
    unary(x=whole) -> (out=s) {gain=1.0}
  }
  update {
    unary(x=a) -> (out=b) {gain=1.0} after=[#1]
    host(x=h) -> (out=h) stream=host
    copy_h2d(x=h) -> (out=t) stream=h2d
  }
})";

TEST(Verifier, AcceptsWhatIsRight) {
  Verify(ParseProgram(kGood), TestOps());
  Verify(Program(), TestOps());
}

struct Fault {
  const char* name;
  const char* from;  // replaced in kGood ...
  const char* to;    // ... by this
  const char* message;
};

class VerifierFault : public testing::TestWithParam<Fault> {};

TEST_P(VerifierFault, IsNamed) {
  std::string text = kGood;
  const size_t at = text.find(GetParam().from);
  ASSERT_NE(at, std::string::npos);
  text.replace(at, std::string(GetParam().from).size(), GetParam().to);
  ExpectFault(ParseProgram(text), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    All, VerifierFault,
    testing::Values(
        // 1: schema and shape rule.
        Fault{"slot", "pair(x=a, y=a)", "pair(x=a, z=a)",
              "op 'pair' #3: no input slot 'z'"},
        Fault{"empty_slot", "pair(x=a, y=a)", "pair(x=a)",
              "input slot 'y' is empty"},
        Fault{"attribute", "{gain=1.0}", "{gain=1}",
              "attribute 'gain' must be of type float"},
        Fault{"no_attribute", "{gain=1.0}", "", "attribute 'gain' is missing"},
        Fault{"shape", "temp a fp32[4]", "temp a fp32[5]",
              "output out is fp32 [5] 'a', expected fp32 [4]"},
        Fault{"dtype", "temp a fp32[4]", "temp a fp16[4]",
              "output out is fp16 [4] 'a', expected fp32 [4]"},
        // 2: temps are written before they are read; views fit.
        Fault{"unwritten", "unary(x=a) -> (out=left)",
              "unary(x=t) -> (out=left)",
              "op 'unary' #2 reads temp 't' before all of it is written"},
        Fault{"half_written", "update(x=a, acc=whole) -> (acc=whole)",
              "unary(x=a) -> (out=b) {gain=1.0}\n}\nupdate {\n"
              "    unary(x=whole) -> (out=s) {gain=1.0}\n}\nmicro {\n"
              "unary(x=t) -> (out=t) {gain=1.0}",
              "reads temp 't' before"},
        Fault{"half",
              "pair(x=a, y=a) -> (out=right)\n    update(x=a, "
              "acc=whole) -> (acc=whole)",
              "pair(x=a, y=a) -> (out=b)",
              "reads temp 'whole' before all of it is written"},
        Fault{"first_micro_only", "#1 unary(x=x) -> (out=a) {gain=1.0}",
              "#1 unary(x=x) -> (out=a) {gain=1.0} first_micro_only=true",
              "only the first one writes it"},
        Fault{"view_end", "view=whole+16", "view=whole+20",
              "view 'right' of 16 bytes does not lie within 'whole' of 32 "
              "bytes"},
        Fault{"view_rank", "view=s+0+rank*16", "view=s+0+rank*20",
              "view 'slice' of 16 bytes does not lie within 's' of 32 bytes "
              "on rank 1"},
        Fault{"view_overflow", "view=whole+16",
              "view=whole+9223372036854775804",
              "view 'right' of 16 bytes does not lie within 'whole'"},
        Fault{"view_align", "view=whole+16", "view=whole+2", "not aligned"},
        Fault{"view_cycle", "temp whole fp32[8]",
              "temp whole fp32[8] "
              "view=whole+0",
              "form a cycle"},
        Fault{"view_place", "temp left fp32[4]",
              "temp left fp32[4] place=pinned",
              "view 'left' is pinned, 'whole' is device"},
        // 3: one writer per byte range.
        Fault{"two_writers", "pair(x=a, y=a) -> (out=right)",
              "pair(x=a, y=a) -> (out=left)",
              "writes temp 'left' again (last written by op 'unary' #2"},
        Fault{"writes_feed", "-> (out=a)", "-> (out=x)", "writes feed 'x'"},
        // 4: places.
        Fault{"host_operand", "host(x=h) -> (out=h) stream=host",
              "host(x=h) -> (out=h)", "x 'h' is pinned, expected device"},
        Fault{"device_operand", "stream=h2d",
              "stream=host after=[#6]\n"
              "    unary(x=a) -> (out=a) "
              "{gain=1.0} stream=host",
              "has no host kernel"},
        Fault{"copy_place", "copy_h2d(x=h) -> (out=t)",
              "copy_d2h(x=h) -> (out=t)", "x 'h' is pinned, expected device"},
        Fault{"copy_target", "copy_h2d(x=h) -> (out=t)",
              "copy_h2d(x=h) -> (out=h)", "out 'h' is pinned, expected device"},
        // 5: reloads.
        Fault{"reload", "copy_d2h(x=slice) -> (out=h)\n  }",
              "}\n update {\n  copy_h2d(x=h) -> (out=t)\n }",
              "op 'copy_h2d' #0 reloads 'h', which no earlier"},
        // 6: control edges.
        Fault{"after_absent", "after=[#1]", "after=[#99]",
              "waits for op #99, which does not exist"},
        Fault{"after_self", "#1 unary(x=x) -> (out=a) {gain=1.0}",
              "#1 unary(x=x) -> (out=a) {gain=1.0} after=[#1]",
              "waits for itself"},
        Fault{"after_startup", "after=[#1]", "after=[#0]", "startup"},
        // 7: aliases.
        Fault{"alias", "update(x=a, acc=whole) -> (acc=whole)",
              "update(x=a, acc=whole) -> (acc=s)",
              "output acc 's' must be input acc 'whole' or a view of it"},
        Fault{"world_size", "world_size=2", "world_size=0", "world_size is 0"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Verifier, NamesUnknownOps) {
  Program program;
  const VarId x = AddVar(program, "x", {1}, VarKind::kFeed);
  AddOp(program, Section::kMicro, "unarx", x, AddVar(program, "y", {1}));
  try {
    Verify(program, TestOps());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_THAT(error.message(), HasSubstr("op 'unarx' #0"));
    EXPECT_THAT(error.message(), HasSubstr("did you mean 'unary'"));
  }
}

TEST(Verifier, NamesUnknownIds) {
  Program program;
  const VarId x = AddVar(program, "x", {1}, VarKind::kFeed);
  const VarId y = AddVar(program, "y", {1});
  AddOp(program, Section::kMicro, "unary", x, y).inputs[0].vars[0] = 7;
  ExpectFault(program, "slot 'x' has the unknown var id 7");

  Program related;
  related.mutable_var(AddVar(related, "v", {1})).related_to = 5;
  ExpectFault(related, "var 'v' is related to the unknown var id 5");
  related.mutable_var(0).related_to = 0;
  ExpectFault(related, "has the relation none to 'v'");

  Program lost;
  lost.loss = 3;
  ExpectFault(lost, "loss is the unknown var id 3");
}

TEST(Verifier, ChecksBuckets) {
  Program program;
  const VarId p = AddVar(program, "p", {64}, VarKind::kParam);
  Bucket bucket;
  bucket.name = "b";
  bucket.numel = 128;
  bucket.members = {{p, 0, 64}, {p, 32, 64}};
  program.buckets = {bucket};
  ExpectFault(program, "bucket 'b': member 'p' at 32 starts before 64");
  program.buckets[0].members = {{p, 100, 64}};
  ExpectFault(program, "has 128 elements, member 'p' has 64 from 100 on");
  program.buckets[0].members = {{9, 0, 64}};
  ExpectFault(program, "unknown var id 9");
}

TEST(CollectiveHash, SeesOrderSizesAndAttributesOfCollectivesOnly) {
  const auto build = [](bool swapped, int64_t size, bool local) {
    Program program;
    const VarId a = AddVar(program, "a", {size}, VarKind::kState);
    const VarId b = AddVar(program, "b", {4}, VarKind::kState);
    AddOp(program, Section::kMicro, "all_reduce", swapped ? b : a,
          swapped ? b : a);
    if (local) AddOp(program, Section::kMicro, "unary", a, a);
    AddOp(program, Section::kMicro, "all_reduce", swapped ? a : b,
          swapped ? a : b);
    return program;
  };
  const auto hash = [](const Program& program) {
    return CollectiveHash(program, TestOps());
  };
  const uint64_t base = hash(build(false, 8, false));
  EXPECT_EQ(hash(build(false, 8, true)), base);
  EXPECT_NE(hash(build(true, 8, false)), base);
  EXPECT_NE(hash(build(false, 16, false)), base);
  Program other = build(false, 8, false);
  other.mutable_op(0).attrs.Set("reduction", "max");
  EXPECT_NE(hash(other), base);
}

// 96 layers make some ten thousand ops; a pipeline verifies a dozen times.
// Anything quadratic takes minutes here: the test would time out.
TEST(Verifier, TwentyThousandOps) {
  Program program;
  VarId x = AddVar(program, "x", {4}, VarKind::kFeed);
  const VarId whole = AddVar(program, "whole", {4 * 20000});
  for (int i = 0; i < 20000; ++i) {
    const VarId y = AddView(program, StrCat("y", i), {4}, whole, 16 * i);
    AddOp(program, Section::kMicro, "unary", x, y);
    x = y;
  }
  EXPECT_NO_THROW(Verify(program, TestOps()));
  EXPECT_NE(ProgramHash(program), 0u);
}

}  // namespace
}  // namespace plo
