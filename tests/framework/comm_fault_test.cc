// Ranks that abort, stay silent, leave or are killed: the others stop with
// Unavailable in bounded time, and the message says why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "tests/framework/comm_test_utils.h"

namespace plo {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
      .count();
}

void ReduceForever(Comm& comm, int64_t count = 300000) {
  std::vector<float> data(static_cast<size_t>(count), 1.0f);
  while (true) {
    comm.AllReduce(data.data(), count, DType::kFp32, Reduction::kMax, nullptr);
  }
}

class CommFault : public testing::TestWithParam<CommKind> {};

TEST_P(CommFault, AbortOnOneRankStopsAllAndTellsWhy) {
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = RunRanks(GetParam(), 3, {}, [](Comm& comm, int rank) {
    if (rank != 1) return ReduceForever(comm);
    std::this_thread::sleep_for(milliseconds(20));
    comm.Abort("the disk is full");
    comm.Abort("again");
    comm.Barrier();
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AllOf(StartsWith("Unavailable: "),
                             HasSubstr("aborted: the disk is full")));
  }
  EXPECT_THAT(errors[0],
              StartsWith("Unavailable: all_reduce of 300000 fp32: "));
  EXPECT_THAT(errors[1], StartsWith("Unavailable: barrier: "));
  EXPECT_LT(SecondsSince(begin), 10);
}

TEST_P(CommFault, AbortFromAnotherThreadWakesABlockedCall) {
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = RunRanks(GetParam(), 2, {}, [](Comm& comm, int rank) {
    if (rank == 1) {
      // Never joins; stays until the abort reaches it.
      std::this_thread::sleep_for(milliseconds(300));
      comm.Barrier();
      return;
    }
    std::thread aborter([&] {
      std::this_thread::sleep_for(milliseconds(50));
      comm.Abort("stop");
    });
    try {
      comm.Barrier();
    } catch (...) {
      aborter.join();
      throw;
    }
    aborter.join();
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AllOf(StartsWith("Unavailable: barrier: "),
                             HasSubstr("aborted: stop")));
  }
  EXPECT_LT(SecondsSince(begin), 10);
}

TEST_P(CommFault, SilentRanksAreNamedWithinTheTimeLimit) {
  CommOptions options;
  options.timeout_seconds = 1;
  const auto begin = std::chrono::steady_clock::now();
  const auto errors =
      RunRanks(GetParam(), 4, options, [](Comm& comm, int rank) {
        if (rank == 1 || rank == 3) {
          std::this_thread::sleep_for(milliseconds(1500));
          return;
        }
        float x = 1;
        comm.AllReduce(&x, 1, DType::kFp32, Reduction::kSum, nullptr);
      });
  EXPECT_LT(SecondsSince(begin), 10);
  // Whoever gives up first names them; the other may have been told.
  EXPECT_THAT(errors[0] + errors[2], HasSubstr("ranks 1, 3 within 1 s"));
  for (int rank : {0, 2}) {
    EXPECT_THAT(errors[static_cast<size_t>(rank)],
                AllOf(StartsWith("Unavailable: all_reduce of 1 fp32: "),
                      HasSubstr("1"), HasSubstr("within 1 s")));
  }
}

TEST_P(CommFault, RankThatLeavesIsNamed) {
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = RunRanks(GetParam(), 2, {}, [](Comm& comm, int rank) {
    comm.Barrier();
    if (rank == 0) comm.Barrier();
  });
  EXPECT_EQ(errors[0], "Unavailable: barrier: rank 1 left");
  EXPECT_EQ(errors[1], "");
  EXPECT_LT(SecondsSince(begin), 10);
}

TEST_P(CommFault, DifferentCallsDoNotMix) {
  CommOptions options;
  options.timeout_seconds = 0.5;
  const auto errors =
      RunRanks(GetParam(), 2, options, [](Comm& comm, int rank) {
        std::vector<float> x(8);
        comm.AllGather(x.data(), x.data(), rank == 0 ? 4 : 3, DType::kFp32,
                       nullptr);
      });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AnyOf(StartsWith("FailedPrecondition: "),
                             AllOf(StartsWith("Unavailable: all_gather of "),
                                   HasSubstr("within 0.5 s"))));
  }
}

TEST_P(CommFault, CommThatFailedStaysFailed) {
  RunRanks(GetParam(), 2, {}, [](Comm& comm, int rank) {
    if (rank == 0) comm.Abort("first");
    for (int call = 0; call < 3; ++call) {
      try {
        comm.Barrier();
        ADD_FAILURE() << "the comm works after an abort";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
        EXPECT_THAT(error.what(), HasSubstr("aborted: first"));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(AllComms, CommFault,
                         testing::Values(CommKind::kThread, CommKind::kGloo),
                         [](const auto& param) { return NameOf(param.param); });

// Runs a function in a process of its own; what it throws is its exit text.
class Worker {
 public:
  explicit Worker(const std::function<void()>& function) {
    PLO_ENFORCE(pipe(pipe_) == 0, kInternal, "pipe");
    pid_ = fork();
    if (pid_ != 0) {
      close(pipe_[1]);
      return;
    }
    close(pipe_[0]);
    std::string text = "no error";
    try {
      function();
    } catch (const std::exception& error) {
      text = error.what();
    }
    [[maybe_unused]] const ssize_t written =
        write(pipe_[1], text.data(), text.size());
    _exit(0);
  }
  ~Worker() {
    Signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(pipe_[0]);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void Signal(int signal) const { kill(pid_, signal); }
  // Blocks until the process ends.
  std::string Text() const {
    std::string text;
    char buffer[512];
    ssize_t got = 0;
    while ((got = read(pipe_[0], buffer, sizeof(buffer))) > 0) {
      text.append(buffer, static_cast<size_t>(got));
    }
    return text;
  }

 private:
  int pipe_[2];
  pid_t pid_ = 0;
};

std::unique_ptr<Worker> ReducingWorker(int rank, int size, int port,
                                       double timeout, int64_t count) {
  return std::make_unique<Worker>([=] {
    CommOptions options;
    options.timeout_seconds = timeout;
    const auto comm = CreateGlooComm(LocalLaunch(rank, size, port), options);
    ReduceForever(*comm, count);
  });
}

// Small operands go whole, large ones in chunks: killed in the middle of both.
class GlooKill : public testing::TestWithParam<int64_t> {};

TEST_P(GlooKill, KilledRankIsNoticedAtOnce) {
  for (int victim : {0, 2}) {
    const int port = FreePort();
    std::vector<std::unique_ptr<Worker>> workers;
    for (int rank = 0; rank < 3; ++rank) {
      workers.push_back(ReducingWorker(rank, 3, port, 30, GetParam()));
    }
    std::this_thread::sleep_for(milliseconds(700));
    workers[static_cast<size_t>(victim)]->Signal(SIGKILL);
    const auto begin = std::chrono::steady_clock::now();
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      EXPECT_THAT(workers[static_cast<size_t>(rank)]->Text(),
                  AllOf(StartsWith("Unavailable: all_reduce of "),
                        HasSubstr(StrCat("lost rank ", victim))));
    }
    EXPECT_LT(SecondsSince(begin), 5);
  }
}

TEST_P(GlooKill, StoppedRankIsNamedWithinTheTimeLimit) {
  const int port = FreePort();
  const auto stopped = ReducingWorker(1, 2, port, 1, GetParam());
  const auto waiting = ReducingWorker(0, 2, port, 1, GetParam());
  std::this_thread::sleep_for(milliseconds(700));
  stopped->Signal(SIGSTOP);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(waiting->Text(),
              AllOf(StartsWith("Unavailable: all_reduce of "),
                    HasSubstr("no answer from rank 1 within 1 s")));
  EXPECT_LT(SecondsSince(begin), 5);
}

INSTANTIATE_TEST_SUITE_P(Counts, GlooKill, testing::Values(100, 3000000));

template <typename Function>
std::string ErrorOf(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(GlooConnectTest, PortInUse) {
  const Fd taken = ListenOn("127.0.0.1", 0);
  EXPECT_EQ(ErrorOf([&] { CreateGlooComm(LocalLaunch(0, 2, PortOf(taken))); }),
            StrCat("Unavailable: port ", PortOf(taken),
                   " on 127.0.0.1 is in use; set MASTER_PORT to a free one"));
}

TEST(GlooConnectTest, RanksThatDoNotAppearAreNamed) {
  CommOptions options;
  options.timeout_seconds = 0.3;
  const int port = FreePort();
  EXPECT_EQ(ErrorOf([&] { CreateGlooComm(LocalLaunch(0, 3, port), options); }),
            StrCat("Unavailable: ranks 1, 2 of 3 did not appear at 127.0.0.1:",
                   port, " within 0.3 s"));
  EXPECT_THAT(
      ErrorOf([&] { CreateGlooComm(LocalLaunch(1, 3, port), options); }),
      StartsWith(StrCat("Unavailable: rank 0 does not answer at 127.0.0.1:",
                        port, " within 0.3 s")));
}

TEST(GlooConnectTest, TwoProcessesWithOneRank) {
  const int port = FreePort();
  CommOptions options;
  options.timeout_seconds = 2;
  std::thread first([&] {
    EXPECT_THAT(
        ErrorOf([&] { CreateGlooComm(LocalLaunch(0, 3, port), options); }),
        StartsWith("Unavailable: "));
  });
  std::string errors[2];
  std::thread twin([&] {
    errors[0] =
        ErrorOf([&] { CreateGlooComm(LocalLaunch(1, 3, port), options); });
  });
  errors[1] =
      ErrorOf([&] { CreateGlooComm(LocalLaunch(1, 3, port), options); });
  twin.join();
  first.join();
  EXPECT_THAT(errors, testing::Contains(StrCat(
                          "FailedPrecondition: two processes have RANK 1 at "
                          "127.0.0.1:",
                          port)));
}

TEST(GlooConnectTest, RanksThatDisagreeOnTheWorldSize) {
  const int port = FreePort();
  CommOptions options;
  options.timeout_seconds = 2;
  std::string error;
  std::thread other([&] {
    error = ErrorOf([&] { CreateGlooComm(LocalLaunch(1, 3, port), options); });
  });
  EXPECT_EQ(ErrorOf([&] { CreateGlooComm(LocalLaunch(0, 2, port), options); }),
            "FailedPrecondition: WORLD_SIZE is 2 on rank 0 but 3 on rank 1");
  other.join();
  EXPECT_NE(error, "");
}

}  // namespace
}  // namespace plo
