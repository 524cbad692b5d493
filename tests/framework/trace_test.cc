#include "framework/runtime/trace.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "framework/ir/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/framework/executor_harness.h"
#include "tests/framework/test_device.h"

namespace plo {
namespace {

using harness::Floats;
using harness::TestProgram;

TEST(TraceTest, RecordsEveryLaunchOnItsStream) {
  TestProgram test;
  const VarId x = test.Feed("x", {2});
  const VarId y = test.Temp("y", {2});
  const VarId host = test.State("host", {2}, Place::kPinned);
  test.Do(Section::kMicro, "test_add", {x, x}, y).region = "layer0/mlp";
  test.Do(Section::kUpdate, "copy_d2h", {y}, host, StreamKind::kD2H);
  auto device = CreateTestDevice();
  ExecutorOptions options;
  options.trace = true;
  options.initial_data_step = 7;
  auto executor =
      Executor::Create(test.program, harness::NaivePlan(test.program, {y}),
                       *device, nullptr, options);
  const Feeds feeds = {{"x", Floats({2}, {1, 2})}};
  executor->Run(feeds);
  executor->Run(feeds);
  executor->Drain();
  const std::vector<TraceEvent> events = executor->TakeTrace();
  ASSERT_EQ(events.size(), 8u);
  std::multiset<std::string> names;
  for (const TraceEvent& event : events) {
    names.insert(
        StrCat(Name(event.stream), ": ", event.name, " @", event.data_step));
    EXPECT_GE(event.duration_us, 0);
  }
  EXPECT_EQ(
      names,
      (std::multiset<std::string>{
          "h2d: feed x @7", "h2d: feed x @8", "compute: test_add layer0/mlp @7",
          "compute: test_add layer0/mlp @8", "d2h: copy_d2h @7",
          "d2h: copy_d2h @8", "d2h: fetch y @7", "d2h: fetch y @8"}));
  EXPECT_TRUE(std::is_sorted(events.begin(), events.end(),
                             [](const TraceEvent& a, const TraceEvent& b) {
                               return a.start_us < b.start_us;
                             }));
  EXPECT_TRUE(executor->TakeTrace().empty());
}

TEST(TraceTest, WritesJsonWithARowPerStream) {
  const std::string path =
      testing::TempDir() + "trace_test_" + std::to_string(getpid()) + ".json";
  WriteChromeTrace(path,
                   {{"mat\"mul\\\n", StreamKind::kCompute, 10.5, 2.25, 3},
                    {"copy", StreamKind::kD2H, 11, 1, 3}},
                   5);
  std::ifstream in(path);
  const nlohmann::json trace = nlohmann::json::parse(in);
  std::set<std::string> rows;
  std::vector<nlohmann::json> events;
  for (const auto& event : trace["traceEvents"]) {
    EXPECT_EQ(event["pid"], 5);
    if (event["name"] == "thread_name") rows.insert(event["args"]["name"]);
    if (event["ph"] == "X") events.push_back(event);
  }
  EXPECT_EQ(rows,
            (std::set<std::string>{"compute", "comm", "d2h", "h2d", "host"}));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["name"], "mat\"mul\\\n");
  EXPECT_EQ(events[0]["ts"], 10.5);
  EXPECT_EQ(events[0]["dur"], 2.25);
  EXPECT_EQ(events[0]["args"]["data_step"], 3);
  EXPECT_EQ(events[1]["tid"], static_cast<int>(StreamKind::kD2H));
  std::remove(path.c_str());
  EXPECT_THROW(WriteChromeTrace("/nonexistent/trace.json", {}, 0), Error);
}

}  // namespace
}  // namespace plo
