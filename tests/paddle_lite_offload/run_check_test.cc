#include "paddle_lite_offload/run_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <thread>

namespace plo {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<RunFact> FactsOf(const TrainConfig& config) {
  return RunFacts(config, DeviceKind::kCpu, *MakeBatchSource(config));
}

// What each rank's check throws, "" for nothing. The last rank's config is
// changed.
std::vector<std::string> Check(
    int ranks, const std::function<void(TrainConfig&)>& change) {
  auto comms = CreateThreadComms(ranks);
  std::vector<std::string> errors(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      TrainConfig config;
      if (rank == ranks - 1) change(config);
      try {
        CheckSameRun(*comms[rank], FactsOf(config));
      } catch (const Error& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

void ExpectAll(const std::vector<std::string>& errors,
               const std::string& message) {
  for (const std::string& error : errors) {
    EXPECT_THAT(error,
                AllOf(HasSubstr("FailedPrecondition"), HasSubstr(message)));
  }
}

TEST(RunCheck, TheFirstFlagThatDiffersIsNamed) {
  ExpectAll(Check(2, [](TrainConfig& c) { c.steps = 7, c.clip_norm = 2; }),
            "the ranks differ in --steps: rank 0 has 100, rank 1 has 7");
  ExpectAll(Check(3, [](TrainConfig& c) { c.lr = 0.1; }),
            "the ranks differ in --lr: rank 0 has 0.001, rank 2 has 0.1");
  ExpectAll(Check(2, [](TrainConfig& c) { c.dtype = "bf16"; }),
            "the ranks differ in --dtype: rank 0 has fp32, rank 1 has bf16");
  ExpectAll(Check(2, [](TrainConfig& c) { c.prompt = "\xff\xfe"; }),
            "the ranks differ in --prompt");
}

TEST(RunCheck, PathsAndLimitsAreEachHostsOwn) {
  const auto change = [](TrainConfig& c) {
    c.log_dir = "a";
    c.trace = "b";
    c.dump_ir_dir = "c";
    c.rates = "d";
    c.device_memory_limit = 1 << 30;
  };
  for (const std::string& error : Check(2, change)) EXPECT_EQ(error, "");
}

// A flag that nobody thought of is compared.
TEST(RunCheck, AllOtherFlagsAreFacts) {
  const std::vector<RunFact> facts = FactsOf({});
  const auto has = [&](const char* name) {
    return std::any_of(facts.begin(), facts.end(),
                       [&](const RunFact& fact) { return fact.name == name; });
  };
  for (const char* name :
       {"version", "device", "--model", "--seed", "--accumulate_steps",
        "--offload", "--prefetch_depth", "--generate", "data"}) {
    EXPECT_TRUE(has(name)) << name;
  }
}

TEST(RunCheck, DataIsComparedByItsBytes) {
  const std::string path = ::testing::TempDir() + "run_check_text_";
  const auto text = [&](const char* name, char last) {
    std::ofstream(path + name) << std::string(999, 'a') << last;
    return path + name;
  };
  const std::string one = text("1", 'x'), same = text("2", 'x');
  const std::string other = text("3", 'y');
  const auto data = [&](const std::string& file) {
    TrainConfig config;
    config.text = file;
    return FactsOf(config).back().value;
  };
  EXPECT_EQ(data(one), data(same));
  EXPECT_NE(data(one), data(other));
  EXPECT_THAT(data(one), HasSubstr("--text of 1000 bytes with hash "));
  ExpectAll(Check(2, [&](TrainConfig& c) { c.text = one; }),
            "the ranks differ in data: rank 0 has synthetic tokens, rank 1 has "
            "--text of 1000 bytes with hash ");
  for (const std::string& file : {one, same, other}) std::remove(file.c_str());
}

}  // namespace
}  // namespace plo
