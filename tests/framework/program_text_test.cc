#include "framework/ir/program_text.h"

#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <random>
#include <sstream>

#include "framework/ir/verifier.h"
#include "tests/framework/test_ops.h"

namespace plo {
namespace {

using testing::HasSubstr;

// Every field of every var and op, by the stored form: it has no defaults.
std::string Everything(const Program& program) {
  return SerializeProto(program, /*text=*/true);
}

TEST(ProgramText, RandomProgramsRoundTrip) {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    const Program program = RandomProgram(seed);
    const std::string text = PrintProgram(program);
    SCOPED_TRACE(text);
    const Program parsed = ParseProgram(text);
    ASSERT_EQ(PrintProgram(parsed), text);
    ASSERT_EQ(Everything(parsed), Everything(program));
  }
}

TEST(ProgramText, ReadsAsDocumented) {
  constexpr char kText[] = R"(program tiny {
  seed=7
  world_size=2
  applied="append_backward"
  loss=y

  feed x fp32[4, 8]  // a comment
  param "a w" bf16[8, 8] region=fc1 weight_decay=false lr_scale=0.5
  temp y fp32[4, 8]
  temp y@grad fp32[4, 8] place=pinned category=grads grad_of=y
  temp v fp32[2] view=y+16+rank*8
  bucket b numel=128 shard_numel=64 sliced=false param=y members=["a w"+0:64]
  micro {
    #4 unary(x=x) -> (out=y) {gain=1.0} stream=comm random=3 after=[#9]
    pair(x=[x, y], y=y) -> (out=y@grad) {list=[1, 2]} role=backward at="f:1"
    #9 nop() -> () {empty=floats[]} first_micro_only=true
  }
})";
  const Program program = ParseProgram(kText);
  EXPECT_EQ(program.name, "tiny");
  EXPECT_EQ(program.seed, 7);
  EXPECT_EQ(program.world_size, 2);
  EXPECT_EQ(program.applied_passes,
            std::vector<std::string>{"append_backward"});
  EXPECT_EQ(program.loss, program.GetVar("y"));
  const Var& w = program.var(program.GetVar("a w"));
  EXPECT_EQ(w.kind, VarKind::kParam);
  EXPECT_EQ(w.category, MemoryCategory::kParams);
  EXPECT_EQ(w.dtype, DType::kBf16);
  EXPECT_FALSE(w.param.weight_decay);
  EXPECT_EQ(w.param.lr_scale, 0.5);
  const Var& grad = program.var(program.GetVar("y@grad"));
  EXPECT_EQ(grad.place, Place::kPinned);
  EXPECT_EQ(grad.category, MemoryCategory::kGrads);
  EXPECT_EQ(grad.relation, Relation::kGradOf);
  EXPECT_EQ(grad.related_to, program.GetVar("y"));
  const Var& view = program.var(program.GetVar("v"));
  EXPECT_EQ(view.view_of, program.GetVar("y"));
  EXPECT_EQ(view.byte_offset, 16);
  EXPECT_EQ(view.rank_stride_bytes, 8);
  ASSERT_EQ(program.buckets.size(), 1u);
  EXPECT_EQ(program.buckets[0].members[0].numel, 64);
  EXPECT_FALSE(program.buckets[0].sliced);
  const auto& ops = program.ops(Section::kMicro);
  ASSERT_EQ(ops.size(), 3u);
  EXPECT_EQ(ops[0]->id, 4);
  EXPECT_EQ(ops[0]->stream, StreamKind::kComm);
  EXPECT_EQ(ops[0]->random_id, 3);
  EXPECT_EQ(ops[0]->after, std::vector<OpId>{9});
  EXPECT_EQ(ops[1]->id, 5);  // the next free one
  EXPECT_EQ(ops[1]->In("x").size(), 2u);
  EXPECT_EQ(ops[1]->role, Role::kBackward);
  EXPECT_EQ(ops[1]->attrs.GetInts("list"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(ops[1]->location, "f:1");
  EXPECT_TRUE(ops[2]->first_micro_only);
  EXPECT_TRUE(ops[2]->attrs.GetFloats("empty").empty());
}

TEST(ProgramText, TheDocumentsExampleIsCanonical) {
  std::ifstream file("docs/ir_format.md");
  std::stringstream document;
  document << file.rdbuf();
  const std::string text = document.str();
  const size_t start = text.find("```\nprogram ") + 4;
  const std::string example =
      text.substr(start, text.find("```", start) - start);
  EXPECT_EQ(PrintProgram(ParseProgram(example)), example);
}

TEST(ProgramText, NumbersKeepTheirTypeAndBits) {
  for (double value : {1.0, 0.1, 1e22, -0.0, 5e-324, 1.0 / 3, 16777217.0}) {
    const std::string text = AttrText(Attr(value));
    Program program;
    OpSpec spec;
    spec.type = "op";
    spec.attrs.Set("a", Attr(value));
    program.Append(Section::kMicro, std::move(spec));
    const Program parsed = ParseProgram(PrintProgram(program));
    const double read = parsed.ops(Section::kMicro)[0]->attrs.GetFloat("a");
    EXPECT_EQ(std::signbit(read), std::signbit(value)) << text;
    EXPECT_EQ(read, value) << text;
  }
  EXPECT_EQ(AttrText(Attr(1.0)), "1.0");
  EXPECT_EQ(AttrText(Attr(int64_t{1})), "1");
}

struct BadText {
  const char* name;
  const char* text;
  const char* message;
};

class BadProgramText : public testing::TestWithParam<BadText> {};

TEST_P(BadProgramText, IsRejectedWithItsPosition) {
  try {
    ParseProgram(GetParam().text);
    FAIL() << "parsed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr(GetParam().message));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, BadProgramText,
    testing::Values(
        BadText{"empty", "", "line 1, column 1: expected program"},
        BadText{"open", "program p {\n", "line 2, column 1: expected"},
        BadText{"no_var", "program p {\n micro {\n  f(x=a) -> ()\n }\n}",
                "line 3, column 7: no var named 'a'"},
        BadText{"late", "program p {\n  loss=nope\n}",
                "line 2, column 8: no var named 'nope'"},
        BadText{"kind", "program p {\n  thing x fp32[1]\n}",
                "line 2, column 3: "},
        BadText{"dtype", "program p {\n  feed x fp31[1]\n}",
                "line 2, column 10: "},
        BadText{"twice", "program p {\n  feed x fp32[]\n  feed x fp32[]\n}",
                "line 3, column 8: there is already a var named 'x'"},
        BadText{"op_id",
                "program p {\n micro {\n#1 f() -> ()\n#1 f() -> ()\n}}",
                "line 4, column 1: op id 1"},
        BadText{"overflow", "program p {\n  seed=9223372036854775808\n}",
                "line 2, column 8: expected a 64-bit integer"},
        BadText{"string", "program p {\n  applied=\"abc\n}",
                "line 2, column 11: the string does not end"},
        BadText{"field", "program p {\n  feed x fp32[1] colour=red\n}",
                "line 2, column 18: unknown var field 'colour'"},
        BadText{"empty_list", "program p {\n micro {\n f() -> () {a=[]}\n}}",
                "an empty list needs its type"},
        BadText{"mixed", "program p {\n micro {\n f() -> () {a=[1, 2.5]}\n}}",
                "expected a 64-bit integer, found '2.5'"},
        BadText{"rest", "program p {\n} extra", "text after the end"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(ProgramText, TruncatedTextNeverParsesAndNeverCrashes) {
  const std::string text = PrintProgram(RandomProgram(3));
  for (size_t size = 0; size + 2 < text.size(); ++size) {
    EXPECT_THROW(ParseProgram(std::string_view(text).substr(0, size)), Error)
        << size;
  }
}

TEST(ProgramText, DamagedTextParsesOrThrows) {
  const std::string text = PrintProgram(RandomProgram(11));
  std::mt19937 engine(1);
  int parsed = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string damaged = text;
    damaged[engine() % text.size()] = static_cast<char>(engine() % 128);
    damaged.erase(engine() % text.size(), engine() % 2);
    try {
      PrintProgram(ParseProgram(damaged));
      ++parsed;
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    }
  }
  EXPECT_LT(parsed, 3000);
}

TEST(ProgramText, PrintsBrokenProgramsForDumps) {
  Program program;
  const VarId x = AddVar(program, "x", {1});
  AddOp(program, Section::kMicro, "unary", x, x).inputs[0].vars[0] = 17;
  EXPECT_THAT(PrintProgram(program), HasSubstr("unary(x=?17)"));
}

TEST(ProgramHash, ChangesWithAnyField) {
  Program program = RandomProgram(5);
  const uint64_t hash = ProgramHash(program);
  EXPECT_EQ(ProgramHash(program.Clone()), hash);
  program.seed ^= 1;
  EXPECT_NE(ProgramHash(program), hash);
}

TEST(Graphviz, DrawsOpsRegionsAndEdges) {
  Program program;
  const VarId x = AddVar(program, "x", {2}, VarKind::kFeed);
  const VarId y = AddVar(program, "y\"", {2});
  const VarId z = AddVar(program, "z", {2});
  AddOp(program, Section::kMicro, "unary", x, y).region = "layer0/fc";
  Op& last = AddOp(program, Section::kUpdate, "unary", y, z);
  last.after = {0};
  const std::string dot = ToGraphviz(program);
  EXPECT_THAT(dot, HasSubstr("label=\"layer0/fc\""));
  EXPECT_THAT(dot, HasSubstr("op0 -> op1 [label=\"y\\\"\\nfp32[2]\"]"));
  EXPECT_THAT(dot, HasSubstr("op0 -> op1 [style=dashed"));
}

}  // namespace
}  // namespace plo
