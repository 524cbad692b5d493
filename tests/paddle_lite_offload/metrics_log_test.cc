#include "paddle_lite_offload/metrics_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "framework/ir/file_io.h"

namespace plo {
namespace {

using ::testing::HasSubstr;

class MetricsLogTest : public ::testing::Test {
 protected:
  MetricsLogTest()
      : dir_(::testing::TempDir() + "plo_metrics_" + std::to_string(getpid())) {
  }
  ~MetricsLogTest() override { std::filesystem::remove_all(dir_); }

  void LogOneStep(double loss) const {
    StepMetrics metrics;
    metrics.step = 1;
    metrics.result.loss = loss;
    MetricsLog(dir_).Write(metrics);
  }
  double LossIn(const std::string& name) const {
    return nlohmann::json::parse(
        ReadFile(dir_ + "/" + name))["loss_metrics/global_avg_loss"];
  }
  // Writes until that fails.
  std::string ErrorOfWriting() const {
    MetricsLog log(dir_);
    for (int step = 1; step < 1000; ++step) {
      StepMetrics metrics;
      metrics.step = step;
      try {
        log.Write(metrics);
      } catch (const Error& error) {
        return error.what();
      }
    }
    return "no error";
  }

  const std::string dir_;
};

TEST_F(MetricsLogTest, KeepsTheLogsOfEarlierRuns) {
  for (double loss : {1.5, 2.5, 3.5}) LogOneStep(loss);
  EXPECT_EQ(LossIn("metrics.jsonl"), 3.5);
  EXPECT_EQ(LossIn("metrics.jsonl.1"), 1.5);
  EXPECT_EQ(LossIn("metrics.jsonl.2"), 2.5);
}

TEST_F(MetricsLogTest, FullDiskIsAnError) {
  std::filesystem::create_directories(dir_);
  std::filesystem::create_symlink("/dev/full", MetricsPath(dir_));
  EXPECT_EQ(ErrorOfWriting(), "Unavailable: cannot write '" +
                                  MetricsPath(dir_) +
                                  "': No space left on device");
}

TEST_F(MetricsLogTest, EndsWithAWholeLine) {
  signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  rlimit small = old;
  small.rlim_cur = 1000;
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string error = ErrorOfWriting();
  setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_THAT(error, HasSubstr("File too large"));
  const std::string text = ReadFile(MetricsPath(dir_));
  ASSERT_FALSE(text.empty());
  EXPECT_LT(text.size(), 1000u);
  EXPECT_EQ(text.back(), '\n');
}

TEST_F(MetricsLogTest, FolderThatCannotBeMade) {
  WriteFile(dir_, "a file");
  EXPECT_THROW(MetricsLog{dir_}, Error);
}

}  // namespace
}  // namespace plo
