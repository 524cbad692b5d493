#include "framework/ir/file_io.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "tests/framework/unprivileged.h"

namespace plo {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// A folder that lives as long as the test.
class FileIoTest : public ::testing::Test {
 protected:
  FileIoTest()
      : dir_(::testing::TempDir() + "plo_file_io_" + std::to_string(getpid())) {
    fs::create_directories(dir_);
  }
  ~FileIoTest() override { fs::remove_all(dir_); }

  std::string Path(const std::string& name) const { return dir_ + "/" + name; }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir_)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  const std::string dir_;
};

void ExpectError(ErrorCode code, const std::string& message,
                 const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "no error, expected: " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_EQ(error.message(), message);
  }
}

TEST_F(FileIoTest, ReplacesFilesAsAWhole) {
  const std::string path = Path("a");
  WriteFile(path, "one");
  EXPECT_EQ(ReadFile(path), "one");
  chmod(path.c_str(), 0640);
  std::ifstream old(path);
  WriteFile(path, std::string("t\0wo", 4));
  EXPECT_EQ(ReadFile(path), std::string("t\0wo", 4));
  // Who has opened the old file still sees all of it.
  std::string seen;
  old >> seen;
  EXPECT_EQ(seen, "one");
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
  EXPECT_THAT(Names(), UnorderedElementsAre("a"));
}

TEST_F(FileIoTest, WritesToWhatIsNoRegularFile) {
  WriteFile("/dev/null", "x");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  WriteFile(Path("target"), "a longer text");
  fs::create_symlink("target", Path("link"));
  WriteFile(Path("link"), "short");
  EXPECT_TRUE(fs::is_symlink(Path("link")));
  EXPECT_EQ(ReadFile(Path("target")), "short");
  fs::create_symlink("fresh", Path("dangling"));
  CheckWritable(Path("dangling"));
  WriteFile(Path("dangling"), "new");
  EXPECT_EQ(ReadFile(Path("fresh")), "new");
}

TEST_F(FileIoTest, FullDiskIsNoMissingFile) {
  ExpectError(ErrorCode::kUnavailable,
              "cannot write '/dev/full': No space left on device",
              [] { WriteFile("/dev/full", "x"); });
}

TEST_F(FileIoTest, ChecksWithoutChanging) {
  CheckWritable(Path("a"));
  EXPECT_THAT(Names(), UnorderedElementsAre());
  WriteFile(Path("a"), "one");
  CheckWritable(Path("a"));
  CheckWritable("/dev/null");
  EXPECT_EQ(ReadFile(Path("a")), "one");
  EXPECT_THAT(Names(), UnorderedElementsAre("a"));
}

TEST_F(FileIoTest, ErrorsNameThePath) {
  const std::string absent = Path("no/such/file");
  for (const auto& write :
       {std::function<void()>([&] { WriteFile(absent, "x"); }),
        std::function<void()>([&] { CheckWritable(absent); })}) {
    ExpectError(ErrorCode::kNotFound,
                "cannot write '" + absent + "': No such file or directory",
                write);
  }
  ExpectError(ErrorCode::kNotFound,
              "cannot read '" + absent + "': No such file or directory",
              [&] { ReadFile(absent); });
  ExpectError(ErrorCode::kInvalidArgument,
              "cannot read '" + dir_ + "': Is a directory",
              [&] { ReadFile(dir_); });
  ExpectError(ErrorCode::kInvalidArgument,
              "cannot write '" + dir_ + "': Is a directory",
              [&] { WriteFile(dir_, "x"); });
  ExpectError(ErrorCode::kInvalidArgument,
              "cannot write '" + dir_ + "': Is a directory",
              [&] { CheckWritable(dir_); });
}

TEST_F(FileIoTest, MakesFolders) {
  MakeFolder(Path("x/y"));
  MakeFolder(Path("x/y"));
  EXPECT_TRUE(fs::is_directory(Path("x/y")));
  WriteFile(Path("a"), "one");
  for (const std::string& path : {Path("a"), Path("a/b")}) {
    ExpectError(ErrorCode::kNotFound,
                "cannot make the folder '" + path + "': Not a directory",
                [&] { MakeFolder(path); });
  }
}

TEST_F(FileIoTest, WithoutPermission) {
  WriteFile(Path("locked"), "x");
  chmod(Path("locked").c_str(), 0);
  const Unprivileged user({dir_, Path("locked")});
  if (!user) GTEST_SKIP() << "root may do everything";
  const std::string denied = " '" + Path("locked") + "': Permission denied";
  ExpectError(ErrorCode::kFailedPrecondition, "cannot read" + denied,
              [&] { ReadFile(Path("locked")); });
  ExpectError(ErrorCode::kFailedPrecondition, "cannot write" + denied,
              [&] { WriteFile(Path("locked"), "y"); });
  ExpectError(ErrorCode::kFailedPrecondition, "cannot write" + denied,
              [&] { CheckWritable(Path("locked")); });
  // A file in a folder that takes no other.
  chmod(Path("locked").c_str(), 0600);
  chmod(dir_.c_str(), 0500);
  CheckWritable(Path("locked"));
  WriteFile(Path("locked"), "y");
  EXPECT_EQ(ReadFile(Path("locked")), "y");
  chmod(dir_.c_str(), 0700);
}

}  // namespace
}  // namespace plo
