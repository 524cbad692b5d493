#include "paddle_lite_offload/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "framework/ir/error.h"

namespace plo {
namespace {

using testing::HasSubstr;
using testing::Not;

class LaunchTest : public testing::Test {
 protected:
  LaunchTest()
      : dir_(testing::TempDir() + "plo_launch_" + std::to_string(getpid())) {
    std::filesystem::create_directories(dir_);
    setenv("DIR", dir_.c_str(), 1);
  }
  ~LaunchTest() override { std::filesystem::remove_all(dir_); }

  static int Run(int nproc, const std::string& script, double grace = 15) {
    return Launch(nproc, script, {.grace_seconds = grace}).status;
  }
  static LaunchResult Launch(int nproc, const std::string& script,
                             const LaunchOptions& options = {}) {
    return RunLocalWorkers(nproc, {"sh", "-c", script}, options);
  }

  // The content once it is a full line, empty after some seconds without.
  std::string ReadLine(const std::string& name) const {
    for (int attempt = 0; attempt < 500; ++attempt) {
      std::ifstream file(dir_ + "/" + name);
      std::ostringstream text;
      text << file.rdbuf();
      if (text.str().ends_with("\n")) return text.str();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return "";
  }

  const std::string dir_;
};

double Seconds(const std::function<void()>& function) {
  const auto begin = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
      .count();
}

TEST_F(LaunchTest, WorkersKnowWhoTheyAre) {
  setenv("PLO_MASTER_PORT", "1", 1);
  EXPECT_EQ(Run(3,
                "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE "
                "$MASTER_ADDR $PLO_MASTER_PORT. > $DIR/$RANK; "
                "echo $MASTER_PORT > $DIR/port$RANK"),
            0);
  unsetenv("PLO_MASTER_PORT");
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ReadLine(std::to_string(rank)),
              StrCat(rank, " 3 ", rank, " 3 127.0.0.1 .\n"));
    EXPECT_EQ(ReadLine(StrCat("port", rank)), ReadLine("port0"));
  }
  EXPECT_GT(std::stoi(ReadLine("port0")), 0);
}

TEST_F(LaunchTest, SharesTheCoresUnlessToldOtherwise) {
  unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(Run(2, "echo $OMP_NUM_THREADS > $DIR/share$RANK"), 0);
  EXPECT_GE(std::stoi(ReadLine("share0")), 1);
  EXPECT_EQ(ReadLine("share0"), ReadLine("share1"));
  setenv("OMP_NUM_THREADS", "5", 1);
  EXPECT_EQ(Run(2, "echo $OMP_NUM_THREADS > $DIR/told$RANK"), 0);
  unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(ReadLine("told1"), "5\n");
}

TEST_F(LaunchTest, ReturnsTheWorstStatus) {
  EXPECT_EQ(Run(1, "exit 0"), 0);
  EXPECT_EQ(Run(1, "exit 7"), 7);
  EXPECT_EQ(Run(3, "exit $RANK"), 2);
  testing::internal::CaptureStderr();
  EXPECT_EQ(Run(2, "[ $RANK = 1 ] && kill -9 $$; exit 1"), 1);
  const std::string err = testing::internal::GetCapturedStderr();
  EXPECT_THAT(err, HasSubstr("rank 1 was ended by signal 9 (Killed)\n"));
  EXPECT_THAT(err, HasSubstr("rank 0 ended with status 1\n"));
}

TEST_F(LaunchTest, RankZeroHasTheTerminalOthersArePrefixed) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  EXPECT_EQ(Run(2, "echo out $RANK; echo err $RANK >&2; printf tail >&2"), 0);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "out 0\n");
  const std::string err = testing::internal::GetCapturedStderr();
  EXPECT_THAT(err, HasSubstr("err 0\n"));
  EXPECT_THAT(err, Not(HasSubstr("[rank 0]")));
  EXPECT_THAT(err, HasSubstr("[rank 1] err 1\n"));
  EXPECT_THAT(err, HasSubstr("[rank 1] tail\n"));
  EXPECT_THAT(err, Not(HasSubstr("out 1")));
}

TEST_F(LaunchTest, StdoutOfAFailedRankIsShown) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(Run(2, "echo about to fail; exit $RANK"), 1);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("[rank 1] about to fail\n"
                        "rank 1 ended with status 1\n"));
}

TEST_F(LaunchTest, StdoutOfRankZeroCanBeKeptBack) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(Launch(2, "echo out", {.show_stdout = false}).status, 0);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
}

TEST_F(LaunchTest, FailureIsThatOfTheFirstToFail) {
  EXPECT_EQ(Launch(2, "exit 0").failure, "");
  testing::internal::CaptureStderr();
  EXPECT_EQ(Launch(2, "[ $RANK = 1 ] && exit 3; sleep 0.5; exit 1").failure,
            "rank 1 ended with status 3");
  EXPECT_EQ(Launch(1, "kill -9 $$").failure,
            "rank 0 was ended by signal 9 (Killed)");
  EXPECT_EQ(
      Launch(1, "printf 'no disk' > /dev/fd/$PLO_FAILURE_FD; exit 1").failure,
      "no disk");
  testing::internal::GetCapturedStderr();
}

TEST_F(LaunchTest, WorkersReportThroughTheLauncher) {
  ReportFailure("nobody listens");
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  setenv("PLO_FAILURE_FD", std::to_string(ends[1]).c_str(), 1);
  ReportFailure("why");
  unsetenv("PLO_FAILURE_FD");
  char buffer[8] = {};
  EXPECT_EQ(read(ends[0], buffer, sizeof(buffer)), 3);
  EXPECT_STREQ(buffer, "why");
  close(ends[0]);
  close(ends[1]);
}

TEST_F(LaunchTest, MuchOutputDoesNotBlockAQuietRank) {
  EXPECT_EQ(Run(2,
                "i=0; while [ $i -lt 3000 ]; do "
                "[ $RANK = 1 ] && echo "
                "0123456789012345678901234567890123456789012345678901234567"
                "89012345678901234567890123456789; i=$((i+1)); done; exit 0"),
            0);
}

TEST_F(LaunchTest, OthersEndAfterTheirGrace) {
  testing::internal::CaptureStderr();
  const double seconds = Seconds([] {
    EXPECT_EQ(Run(3, "[ $RANK = 1 ] && exit 3; exec sleep 60", 0.2), 3);
  });
  testing::internal::GetCapturedStderr();
  EXPECT_GE(seconds, 0.2);
  EXPECT_LT(seconds, 10);
}

TEST_F(LaunchTest, OthersMayUseTheirGrace) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(Run(2, "[ $RANK = 1 ] && exit 3; sleep 0.5; exit 1", 10), 3);
  testing::internal::GetCapturedStderr();
}

TEST_F(LaunchTest, WorkerThatIgnoresSigtermIsKilled) {
  testing::internal::CaptureStderr();
  const double seconds = Seconds([] {
    EXPECT_EQ(Run(2,
                  "[ $RANK = 1 ] && exit 3; trap '' TERM; "
                  "while true; do sleep 0.1; done",
                  0.1),
              3);
  });
  testing::internal::GetCapturedStderr();
  EXPECT_LT(seconds, 15);
}

TEST_F(LaunchTest, SignalsArePassedOn) {
  for (int signal : {SIGINT, SIGTERM}) {
    const std::string ready = StrCat("ready", signal);
    std::thread sender([&] {
      EXPECT_EQ(ReadLine(ready + "0") + ReadLine(ready + "1"), "yes\nyes\n");
      kill(getpid(), signal);
    });
    EXPECT_EQ(Run(2, StrCat("trap 'echo got > $DIR/got", signal,
                            "$RANK; exit 0' INT TERM; echo yes > $DIR/", ready,
                            "$RANK; while true; do sleep 0.05; done")),
              128 + signal);
    sender.join();
    EXPECT_EQ(ReadLine(StrCat("got", signal, "0")), "got\n");
    EXPECT_EQ(ReadLine(StrCat("got", signal, "1")), "got\n");
  }
}

// Absent, or only waiting to be reaped.
bool Ended(pid_t pid) {
  std::ifstream file(StrCat("/proc/", pid, "/stat"));
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');
  return name_end == std::string::npos || text[name_end + 2] == 'Z' ||
         text[name_end + 2] == 'X';
}

TEST_F(LaunchTest, WorkersDieWithTheLauncher) {
  const pid_t launcher = fork();
  ASSERT_GE(launcher, 0);
  if (launcher == 0) {
    Run(2, "echo $$ > $DIR/pid$RANK; exec sleep 60");
    _exit(0);
  }
  const pid_t workers[] = {std::stoi(ReadLine("pid0")),
                           std::stoi(ReadLine("pid1"))};
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  for (pid_t worker : workers) {
    for (int attempt = 0; attempt < 500 && !Ended(worker); ++attempt) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_TRUE(Ended(worker)) << worker;
  }
}

TEST_F(LaunchTest, BadCommands) {
  EXPECT_THROW(RunLocalWorkers(0, {"true"}), Error);
  EXPECT_THROW(RunLocalWorkers(1, {}), Error);
  testing::internal::CaptureStderr();
  EXPECT_EQ(RunLocalWorkers(1, {"/no/such/program"}).status, 1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "rank 0 could not run /no/such/program\n");
}

}  // namespace
}  // namespace plo
