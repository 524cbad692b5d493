#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "framework/ir/error.h"
#include "framework/runtime/comm.h"

namespace plo {
namespace {

constexpr const char* kVariables[] = {"RANK",
                                      "WORLD_SIZE",
                                      "LOCAL_RANK",
                                      "MASTER_ADDR",
                                      "PLO_MASTER_PORT",
                                      "LOCAL_WORLD_SIZE",
                                      "MASTER_PORT",
                                      "TORCHELASTIC_USE_AGENT_STORE"};

// The environment of a test holds these launch variables and no others.
class LaunchInfoTest : public testing::Test {
 protected:
  LaunchInfoTest() { Set({}); }
  ~LaunchInfoTest() override { Set({}); }

  static void Set(const std::map<std::string, std::string>& values) {
    for (const char* name : kVariables) {
      const auto found = values.find(name);
      if (found == values.end()) {
        unsetenv(name);
      } else {
        setenv(name, found->second.c_str(), 1);
      }
    }
  }

  static std::map<std::string, std::string> Full() {
    return {{"RANK", "3"},           {"WORLD_SIZE", "4"},
            {"LOCAL_RANK", "1"},     {"LOCAL_WORLD_SIZE", "2"},
            {"MASTER_ADDR", "host"}, {"MASTER_PORT", "29500"}};
  }

  static std::string ErrorOf(const std::map<std::string, std::string>& values) {
    Set(values);
    try {
      ReadLaunchInfo();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  static std::string ErrorWith(const std::string& name,
                               const std::string& value) {
    auto values = Full();
    values[name] = value;
    return ErrorOf(values);
  }

  static std::string ErrorWithout(const std::string& name) {
    auto values = Full();
    values.erase(name);
    return ErrorOf(values);
  }
};

TEST_F(LaunchInfoTest, NothingSetIsOneRank) {
  const LaunchInfo info = ReadLaunchInfo();
  EXPECT_EQ(info.rank, 0);
  EXPECT_EQ(info.world_size, 1);
  EXPECT_EQ(info.local_rank, 0);
  EXPECT_EQ(info.local_world_size, 1);
}

TEST_F(LaunchInfoTest, ReadsAllVariables) {
  Set(Full());
  const LaunchInfo info = ReadLaunchInfo();
  EXPECT_EQ(info.rank, 3);
  EXPECT_EQ(info.world_size, 4);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.local_world_size, 2);
  EXPECT_EQ(info.master_addr, "host");
  EXPECT_EQ(info.master_port, 29500);
}

TEST_F(LaunchInfoTest, OneRankNeedsNoMaster) {
  Set({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(ReadLaunchInfo().world_size, 1);
}

TEST_F(LaunchInfoTest, LeavesTheAgentOfTorchrunItsPort) {
  auto values = Full();
  values["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  Set(values);
  EXPECT_EQ(ReadLaunchInfo().master_port, 29501);
  values["PLO_MASTER_PORT"] = "7000";
  Set(values);
  EXPECT_EQ(ReadLaunchInfo().master_port, 7000);
}

TEST_F(LaunchInfoTest, MissingVariablesAreNamed) {
  EXPECT_EQ(ErrorWithout("WORLD_SIZE"),
            "InvalidArgument: WORLD_SIZE is not set, but RANK is");
  EXPECT_EQ(ErrorWithout("RANK"),
            "InvalidArgument: RANK is not set, but WORLD_SIZE is");
  EXPECT_EQ(ErrorWithout("MASTER_ADDR"),
            "InvalidArgument: MASTER_ADDR is not set, but WORLD_SIZE is 4");
  EXPECT_EQ(ErrorWithout("MASTER_PORT"),
            "InvalidArgument: MASTER_PORT is not set, but WORLD_SIZE is");
}

TEST_F(LaunchInfoTest, MalformedVariablesAreNamed) {
  EXPECT_EQ(ErrorWith("WORLD_SIZE", "four"),
            "InvalidArgument: WORLD_SIZE is \"four\", expected an integer");
  EXPECT_EQ(ErrorWith("WORLD_SIZE", ""),
            "InvalidArgument: WORLD_SIZE is \"\", expected an integer");
  EXPECT_EQ(ErrorWith("RANK", "1x"),
            "InvalidArgument: RANK is \"1x\", expected an integer");
  EXPECT_EQ(ErrorWith("RANK", "99999999999"),
            "InvalidArgument: RANK is \"99999999999\", expected an integer");
}

TEST_F(LaunchInfoTest, VariablesOutOfRangeAreNamed) {
  EXPECT_EQ(ErrorWith("WORLD_SIZE", "0"),
            "InvalidArgument: WORLD_SIZE is 0, expected 1 to 1048576");
  EXPECT_EQ(ErrorWith("RANK", "4"),
            "InvalidArgument: RANK is 4, expected 0 to 3");
  EXPECT_EQ(ErrorWith("RANK", "-1"),
            "InvalidArgument: RANK is -1, expected 0 to 3");
  EXPECT_EQ(ErrorWith("LOCAL_RANK", "2"),
            "InvalidArgument: LOCAL_RANK is 2, expected 0 to 1");
  EXPECT_EQ(ErrorWith("LOCAL_WORLD_SIZE", "5"),
            "InvalidArgument: LOCAL_WORLD_SIZE is 5, expected 1 to 4");
  EXPECT_EQ(ErrorWith("MASTER_PORT", "65536"),
            "InvalidArgument: MASTER_PORT is 65536, expected 1 to 65535");
}

}  // namespace
}  // namespace plo
