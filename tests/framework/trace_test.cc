#include "framework/runtime/trace.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
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

TEST(TraceTest, KnowsTheBytesOfCopiesAndOperands) {
  TestProgram test;
  const VarId x = test.Feed("x", {2});
  const VarId y = test.Temp("y", {2});
  const VarId host = test.State("host", {2}, Place::kPinned);
  test.Do(Section::kMicro, "test_add", {x, x}, y);
  test.Do(Section::kUpdate, "copy_d2h", {y}, host, StreamKind::kD2H);
  auto device = CreateTestDevice();
  ExecutorOptions options;
  options.trace = true;
  auto executor =
      Executor::Create(test.program, harness::NaivePlan(test.program, {y}),
                       *device, nullptr, options);
  executor->Run({{"x", Floats({2}, {1, 2})}});
  executor->Drain();
  std::map<std::string, int64_t> bytes;
  for (const TraceEvent& event : executor->TakeTrace()) {
    bytes[event.name] = event.bytes;
  }
  // The add reads x, named twice, and writes y; copies move 8 bytes.
  EXPECT_EQ(
      bytes,
      (std::map<std::string, int64_t>{
          {"copy_d2h", 8}, {"feed x", 8}, {"fetch y", 8}, {"test_add", 16}}));
}

TEST(TraceTest, SummarizesWhatStreamsDoBesideCompute) {
  const auto compute = StreamKind::kCompute, d2h = StreamKind::kD2H;
  // ms:  compute 0-4 and 6-8; d2h 3-7, of which 5-6 again by another launch.
  // The last step counts only as what runs beside the others.
  const std::vector<TraceEvent> events = {
      {"a", compute, 0, 4000, 7},      {"b", compute, 6000, 1000, 7},
      {"c", d2h, 3000, 4000, 7, 5000}, {"d", d2h, 5000, 1000, 7, 3000},
      {"e", compute, 7000, 1000, 8},   {"f", d2h, 7500, 9000, 8, 1 << 30},
  };
  const std::vector<StreamUse> uses = SummarizeStreams(events);
  ASSERT_EQ(uses.size(), 2u);
  EXPECT_EQ(uses[0].stream, compute);
  EXPECT_DOUBLE_EQ(uses[0].busy_ms, 5);
  EXPECT_DOUBLE_EQ(uses[0].exposed_ms, 5);
  EXPECT_EQ(uses[1].stream, d2h);
  EXPECT_DOUBLE_EQ(uses[1].busy_ms, 4);
  EXPECT_DOUBLE_EQ(uses[1].exposed_ms, 2);
  EXPECT_DOUBLE_EQ(uses[1].gigabytes_per_second, 8000 / 4e-3 / 1e9);

  // Of a single step all counts; of two and a last one the mean.
  EXPECT_DOUBLE_EQ(SummarizeStreams({{"c", d2h, 0, 2000, 7, 10}})[0].exposed_ms,
                   2);
  EXPECT_DOUBLE_EQ(SummarizeStreams({{"c", d2h, 0, 2000, 7, 10},
                                     {"c", d2h, 5000, 4000, 8, 10},
                                     {"c", d2h, 9000, 9000, 9, 10}})[0]
                       .busy_ms,
                   3);
  EXPECT_TRUE(SummarizeStreams({}).empty());
}

TEST(TraceTest, WritesJsonWithARowPerStream) {
  const std::string path =
      testing::TempDir() + "trace_test_" + std::to_string(getpid()) + ".json";
  WriteChromeTrace(path,
                   {{"mat\"mul\\\n", StreamKind::kCompute, 10.5, 2.25, 3},
                    {"copy", StreamKind::kD2H, 11, 1, 3, 64}},
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
  EXPECT_EQ(events[1]["args"]["bytes"], 64);
  EXPECT_EQ(events[1]["tid"], static_cast<int>(StreamKind::kD2H));
  std::remove(path.c_str());
  EXPECT_THROW(WriteChromeTrace("/nonexistent/trace.json", {}, 0), Error);
}

}  // namespace
}  // namespace plo
