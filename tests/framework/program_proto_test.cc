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
  std::filesystem::remove_all(dir);
  try {
    LoadProgram(dir);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_THAT(error.message(), HasSubstr("cannot read '" + dir + "': No "));
  }
}

// What ReadProgram says of a file "f".
std::string FileError(std::string_view bytes) {
  try {
    ReadProgram(bytes, "f");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ProgramFiles, BadOnesAreNamedWithTheReason) {
  const std::string bytes = SerializeProto(RandomProgram(1));
  const std::string corrupt = "DataLoss: f: corrupt program file: ";
  EXPECT_EQ(FileError(""), "DataLoss: f: the program file is empty");
  for (size_t cut : {2, 10}) {  // in the name of the format
    EXPECT_EQ(FileError(bytes.substr(0, cut)),
              corrupt +
                  "neither text nor a protobuf message that starts as a "
                  "program does");
  }
  EXPECT_EQ(FileError(bytes.substr(0, bytes.size() - 1)),
            StrCat(corrupt, "not a valid protobuf message of ",
                   bytes.size() - 1, " bytes"));
  std::string flipped = bytes;
  flipped[16] ^= 1;  // of the checksum, which comes next
  EXPECT_EQ(FileError(flipped), corrupt + "the checksum does not match");
  // A tag, a length and the name of the format; a tag and the version.
  std::string newer = bytes;
  ASSERT_EQ(newer.substr(13, 2), "\x10\x01");
  newer[14] = 2;
  EXPECT_EQ(FileError(newer),
            "FailedPrecondition: f: the program file has version 2, this build "
            "reads up to version 1");
  EXPECT_THAT(FileError("program p { nonsense"),
              HasSubstr("InvalidArgument: f: program text, line 1, column "));
}

}  // namespace
}  // namespace plo
