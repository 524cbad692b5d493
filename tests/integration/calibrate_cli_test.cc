// plo calibrate, and who uses what it measured.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/integration/run_plo.h"

namespace plo {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

class CalibrateCli : public ::testing::Test {
 protected:
  CalibrateCli() : cache_(TempPath("cache")) {}
  ~CalibrateCli() override { std::filesystem::remove_all(cache_); }

  PloResult Run(std::vector<std::string> args) const {
    return RunPlo(args, 120, {{"XDG_CACHE_HOME", cache_}});
  }
  PloResult Calibrate(std::vector<std::string> more) const {
    std::vector<std::string> args = {"calibrate", "--device=cpu", "--size_mb=1",
                                     "--seconds=0.01"};
    args.insert(args.end(), more.begin(), more.end());
    return Run(args);
  }

  const std::string cache_;
};

const std::vector<std::string> kPlan = {"plan",
                                        "--device=cpu",
                                        "--model=mlp",
                                        "--layers=4",
                                        "--hidden=32",
                                        "--world_size=2",
                                        "--bucket_mb=0.001",
                                        "--offload=optimizer"};

TEST_F(CalibrateCli, KeepsWhatItMeasuredAndPlansUseIt) {
  const PloResult before = Run(kPlan);
  ASSERT_EQ(before.exit_code, 0) << before.err;
  EXPECT_THAT(before.out, Not(HasSubstr("estimated step time")));

  const PloResult first = Calibrate({"--nproc=2"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.err, HasSubstr("Adam on the host"));
  EXPECT_THAT(first.err, HasSubstr("kept in " + cache_));
  const json rates = json::parse(first.out);
  for (const char* name :
       {"matmul_flops", "matmul_flops_fp32", "memory_bytes", "d2h_bytes",
        "h2d_bytes", "collective_bytes", "host_adam_bytes", "host_memory_bytes",
        "launch_us"}) {
    EXPECT_GT(rates.at(name).get<double>(), 0) << name;
  }

  const PloResult second = Calibrate({"--nproc=2"});
  EXPECT_EQ(second.exit_code, 0);
  EXPECT_THAT(second.err, HasSubstr("cached in " + cache_));
  EXPECT_EQ(second.out, first.out);
  const PloResult forced = Calibrate({"--nproc=2", "--force"});
  EXPECT_EQ(forced.exit_code, 0) << forced.err;
  EXPECT_NE(forced.out, first.out);

  const PloResult plan = Run(kPlan);
  EXPECT_THAT(plan.out, HasSubstr("estimated step time"));
  EXPECT_THAT(plan.out, HasSubstr("(cached in " + cache_));
  EXPECT_THAT(plan.out, HasSubstr("chosen: --offload_streamed_fraction="));
  // One rank is another matter.
  std::vector<std::string> alone = kPlan;
  alone.push_back("--world_size=1");
  EXPECT_THAT(Run(alone).out, Not(HasSubstr("estimated step time")));
}

TEST_F(CalibrateCli, WritesAFileForRates) {
  const std::string file = TempPath("rates.json");
  const PloResult measured = Calibrate({"--out=" + file});
  ASSERT_EQ(measured.exit_code, 0) << measured.err;
  EXPECT_FALSE(std::filesystem::exists(cache_));
  std::vector<std::string> args = kPlan;
  args.push_back("--rates=" + file);
  EXPECT_THAT(Run(args).out, HasSubstr("(--rates)"));
  std::filesystem::remove(file);
  EXPECT_EQ(Calibrate({"--out=/no/such/folder/x"}).exit_code, 1);
}

TEST_F(CalibrateCli, ACacheThatCannotBeWrittenIsAWarning) {
  const PloResult result =
      RunPlo({"calibrate", "--device=cpu", "--size_mb=1", "--seconds=0.01"}, 60,
             {{"XDG_CACHE_HOME", "/proc/no"}});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("warning: the rates are not kept"));
  EXPECT_TRUE(json::parse(result.out).contains("d2h_bytes"));
}

TEST_F(CalibrateCli, BadValuesAreBadUse) {
  const std::pair<const char*, const char*> cases[] = {
      {"--nproc=0", "--nproc must be in"},
      {"--device=tpu", "--device=tpu: expected one of"},
      {"--size_mb=-1", "--size_mb must be in"},
      {"--seconds=0", "--seconds must be in"},
      {"--layers=4", "unknown flag '--layers'"},
      {"words", "takes flags only"}};
  for (const auto& [flag, message] : cases) {
    const PloResult result = Run({"calibrate", flag});
    EXPECT_EQ(result.exit_code, 2) << flag;
    EXPECT_THAT(result.err, HasSubstr(message)) << flag;
  }
  EXPECT_EQ(Calibrate({"--force", "--out=/tmp/x"}).exit_code, 2);
}

// --offload=auto on ranks that see measured rates.
TEST_F(CalibrateCli, AutoKeepsToTheLimitWithEqualBits) {
  ASSERT_EQ(Calibrate({"--nproc=2"}).exit_code, 0);
  const auto train = [&](std::vector<std::string> more) {
    const std::string file = TempPath("report.json");
    std::vector<std::string> args = {
        "train",           "--device=cpu",     "--nproc=2",    "--layers=4",
        "--hidden=64",     "--heads=4",        "--steps=3",    "--seq_len=32",
        "--micro_batch=2", "--bucket_mb=0.05", "--dtype=bf16", "--clip_norm=1",
        "--json=" + file};
    args.insert(args.end(), more.begin(), more.end());
    const PloResult result = Run(args);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("rates of cpu"));
    std::ifstream text(file);
    json report = json::parse(text);
    std::filesystem::remove(file);
    return report;
  };
  const json none = train({"--offload=none"});
  const auto peak = [](const json& report) {
    return report["memory"]["device"]["measured_peak_bytes"].get<int64_t>();
  };
  const int64_t limit = peak(none) * 7 / 10;
  const json chosen = train(
      {"--offload=auto", "--device_memory_limit=" + std::to_string(limit)});
  EXPECT_LE(peak(chosen), limit);
  EXPECT_EQ(chosen["config"]["offload"], "optimizer");
  EXPECT_GT(chosen["config"]["offload_fraction"], 0.0);
  EXPECT_NE(chosen["config"]["offload_streamed_fraction"], "auto");
  EXPECT_EQ(chosen["param_digest"], none["param_digest"]);
  EXPECT_EQ(chosen["losses"], none["losses"]);

  const PloResult lost = Run({"train", "--nproc=2", "--device=cpu",
                              "--offload=auto", "--device_memory_limit=9KiB"});
  EXPECT_EQ(lost.exit_code, 1);
  EXPECT_THAT(lost.err, HasSubstr("smallest device_memory_limit"));
  const PloResult unlimited = Run({"plan", "--device=cpu", "--offload=auto"});
  EXPECT_EQ(unlimited.exit_code, 2);
  EXPECT_THAT(unlimited.err, HasSubstr("needs --device_memory_limit"));
  const PloResult idle =
      Run({"plan", "--device=cpu", "--offload=auto", "--offload_fraction=0.5",
           "--device_memory_limit=1GiB"});
  EXPECT_EQ(idle.exit_code, 2);
  EXPECT_THAT(idle.err, HasSubstr("no effect without --offload=optimizer"));
}

}  // namespace
}  // namespace plo
