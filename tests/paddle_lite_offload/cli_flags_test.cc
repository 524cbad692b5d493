#include "paddle_lite_offload/cli_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace plo {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct TestFlags {
  bool fast = true;
  int64_t width = 4;
  double rate = 0.5;
  std::string title = "none";
  int64_t limit = 0;
};

// gflags' registry is per process: one set for all tests.
struct Flags {
  TestFlags values;
  FlagSet set;
  Flags() {
    set.Add("t_fast", &values.fast, "go fast");
    set.Add("t_width", &values.width, "of it");
    set.Add("t_rate", &values.rate, "per second");
    set.Add("t_title", &values.title, "on top");
    set.AddBytes("t_limit", &values.limit, "of memory");
  }
};
Flags& TheFlags() {
  static Flags flags;
  flags.values = TestFlags();
  return flags;
}

std::string UsageOf(const std::vector<std::string>& args) {
  try {
    TheFlags().set.Parse(args);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(FlagSet, ParsesAllForms) {
  Flags& flags = TheFlags();
  // The fourth is "no" in front of "t_fast".
  const auto rest = flags.set.Parse({"--t_width=7", "-t_rate", "1e-3",
                                     "--not_fast", "in.txt", "--t_limit=8KiB"});
  EXPECT_THAT(rest, ElementsAre("in.txt"));
  EXPECT_EQ(flags.values.width, 7);
  EXPECT_EQ(flags.values.rate, 1e-3);
  EXPECT_FALSE(flags.values.fast);
  EXPECT_EQ(flags.values.limit, 8192);
  flags.set.Parse({"--t_fast", "--t_title="});
  EXPECT_TRUE(flags.values.fast);
  EXPECT_EQ(flags.values.title, "");
}

TEST(FlagSet, ReadsFlagFiles) {
  const std::string path = ::testing::TempDir() + "/flags_test.txt";
  std::ofstream(path) << "# comment\n\n--t_width=9\n  --t_title=a b\n";
  Flags& flags = TheFlags();
  flags.set.Parse({"--flagfile=" + path});
  EXPECT_EQ(flags.values.width, 9);
  EXPECT_EQ(flags.values.title, "a b");
  EXPECT_THAT(UsageOf({"--flagfile=no_such_file"}), HasSubstr("no_such_file"));
  EXPECT_EQ(UsageOf({"--flagfile=/tmp"}),
            "--flagfile: cannot read '/tmp': Is a directory");
  std::ofstream(path) << "--flagfile=" << path << "\n";
  EXPECT_THAT(UsageOf({"--flagfile=" + path}), HasSubstr("include each other"));
}

TEST(FlagSet, ExplainsBadUsage) {
  EXPECT_EQ(UsageOf({"--t_widht=3"}),
            "unknown flag '--t_widht'; did you mean 't_width'?");
  EXPECT_EQ(UsageOf({"--xyzzy"}), "unknown flag '--xyzzy'");
  EXPECT_THAT(UsageOf({"--t_width=abc"}),
              HasSubstr("--t_width=abc: expected an integer"));
  EXPECT_THAT(UsageOf({"--t_width=99999999999999999999"}),
              HasSubstr("expected an integer that fits 64 bits"));
  EXPECT_THAT(UsageOf({"--t_rate=1e999"}),
              HasSubstr("--t_rate=1e999: expected a number that fits 64 bits"));
  for (const char* text : {"nan", "-inf", "Infinity"}) {
    EXPECT_EQ(UsageOf({std::string("--t_rate=") + text}),
              std::string("--t_rate=") + text + ": expected a finite number");
  }
  EXPECT_THAT(UsageOf({"--t_width"}), HasSubstr("needs a value"));
  EXPECT_THAT(UsageOf({"--t_limit=8GX"}), HasSubstr("no number of bytes"));
}

TEST(CheckUsage, BadValuesAreBadUsage) {
  EXPECT_EQ(CheckUsage([] { return 3; }), 3);
  EXPECT_THROW(CheckUsage([] { PLO_THROW(kInvalidArgument, "x"); }),
               UsageError);
  EXPECT_THROW(CheckUsage([] { PLO_THROW(kUnimplemented, "x"); }), UsageError);
  EXPECT_THROW(CheckUsage([] { PLO_THROW(kOutOfMemory, "x"); }), Error);
}

TEST(FlagSet, SharesNoFlagsOfGflagsItself) {
  EXPECT_THAT(UsageOf({"--tab_completion_word=x"}), HasSubstr("unknown flag"));
}

TEST(ByteCount, ReadsUnits) {
  EXPECT_EQ(ParseByteCount("4096"), 4096);
  EXPECT_EQ(ParseByteCount("8GiB"), int64_t{8} << 30);
  EXPECT_EQ(ParseByteCount("1.5K"), 1536);
  EXPECT_EQ(ParseByteCount("2MB"), 2 << 20);
  for (const char* bad : {"", "x", "-1", "8GiBs", "nan", "1e30", "G", "8 GiB",
                          "0.5", "1.5B", "-0", "-0G", "1e-9K", "1e-400"}) {
    EXPECT_THROW(ParseByteCount(bad), Error) << bad;
  }
  EXPECT_EQ(ParseByteCount("0"), 0);
  EXPECT_EQ(ParseByteCount("0GiB"), 0);
  EXPECT_EQ(ParseByteCount("0.3K"), 307);
  EXPECT_EQ(FormatByteCount(512), "512 B");
  EXPECT_EQ(FormatByteCount(3 << 19), "1.50 MiB");
}

}  // namespace
}  // namespace plo
