#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "framework/ir/program_text.h"
#include "tests/framework/test_ops.h"

namespace plo {
namespace {

using testing::HasSubstr;

ErrorCode CodeOf(const std::string& bytes) {
  try {
    ParseProto(bytes);
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "parsed";
  return ErrorCode::kInternal;
}

TEST(ProgramProto, RandomProgramsRoundTripInBothForms) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const Program program = RandomProgram(seed);
    for (bool text : {false, true}) {
      const Program read = ParseProto(SerializeProto(program, text));
      ASSERT_EQ(PrintProgram(read), PrintProgram(program));
    }
  }
}

TEST(ProgramProto, KeepsIdsWithGaps) {
  Program program;
  AddVar(program, "a", {1});
  const VarId b = AddVar(program, "b", {1});
  program.EraseVar(program.GetVar("a"));
  const OpId first = AddOp(program, Section::kMicro, "unary", b, b).id;
  AddOp(program, Section::kMicro, "unary", b, b);
  program.EraseOp(first);
  const Program read = ParseProto(SerializeProto(program));
  EXPECT_EQ(read.GetVar("b"), b);
  EXPECT_EQ(read.ops(Section::kMicro)[0]->id, first + 1);
}

TEST(ProgramProto, EveryTruncationIsDataLoss) {
  const std::string bytes = SerializeProto(RandomProgram(1));
  for (size_t size = 0; size < bytes.size(); ++size) {
    ASSERT_EQ(CodeOf(bytes.substr(0, size)), ErrorCode::kDataLoss) << size;
  }
}

TEST(ProgramProto, EveryFlippedByteIsNoticed) {
  const std::string bytes = SerializeProto(RandomProgram(1));
  const std::string text = PrintProgram(ParseProto(bytes));
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string corrupt = bytes;
    corrupt[i] ^= 0x15;
    try {
      // A flip may land in the tag of a field that is empty anyway; then the
      // program is still the same.
      ASSERT_EQ(PrintProgram(ParseProto(corrupt)), text) << i;
    } catch (const Error& error) {
      ASSERT_TRUE(error.code() == ErrorCode::kDataLoss ||
                  error.code() == ErrorCode::kFailedPrecondition)
          << i << ": " << error.what();
    }
  }
}

TEST(ProgramProto, NewerVersionIsNamed) {
  std::string text = SerializeProto(RandomProgram(1), /*text=*/true);
  const size_t at = text.find("version: 1");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 10, "version: 9");
  try {
    ParseProto(text);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(error.message(), HasSubstr("version 9"));
    EXPECT_THAT(error.message(), HasSubstr("up to version 1"));
  }
}

TEST(ProgramProto, BadTextNamesTheLine) {
  try {
    ParseProto("format: \"plo.program\"\nversion: x\n");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
    EXPECT_THAT(error.message(), HasSubstr("line 2"));
  }
}

TEST(ProgramProto, DanglingIdsAreDataLoss) {
  Program program;
  const VarId x = AddVar(program, "x", {1});
  AddOp(program, Section::kMicro, "unary", x, x);
  std::string text = SerializeProto(program, /*text=*/true);
  const size_t at = text.find("vars: 0");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 7, "vars: 8");
  EXPECT_EQ(CodeOf(text), ErrorCode::kDataLoss);
}

TEST(ProgramFiles, AreToldApartByContent) {
  const std::string dir =
      testing::TempDir() + "plo_program_files_" + std::to_string(getpid());
  std::filesystem::create_directories(dir);
  const Program program = RandomProgram(9);
  for (const char* file : {"a.txt", "a.pb", "a.pbtxt"}) {
    SaveProgram(program, dir + "/" + file);
    // The name says how to write, never how to read.
    std::filesystem::rename(dir + "/" + file, dir + "/any");
    EXPECT_EQ(PrintProgram(LoadProgram(dir + "/any")), PrintProgram(program));
  }
  std::ofstream(dir + "/bad") << "program p { nonsense";
  try {
    LoadProgram(dir + "/bad");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr(dir + "/bad: program text, line 1"));
  }
  try {
    LoadProgram(dir + "/absent");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  }
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace plo
