// Ranks that die, differ or cannot meet: the others end with a clear error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "tests/integration/run_plo.h"

namespace plo {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Environment Rank(int rank, int world, int port) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(world)},
          {"LOCAL_RANK", std::to_string(rank)},
          {"LOCAL_WORLD_SIZE", std::to_string(world)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(port)},
          {"OMP_NUM_THREADS", "1"}};
}

const std::vector<std::string> kLongRun = {
    "train",          "--model=gpt",        "--device=cpu", "--layers=2",
    "--hidden=64",    "--heads=4",          "--seq_len=32", "--micro_batch=2",
    "--steps=100000", "--offload=optimizer"};

TEST(FaultCli, AKilledRankEndsTheOthers) {
  for (int victim : {0, 1}) {
    SCOPED_TRACE(victim);
    const int port = FreePort();
    PloProcess rank0(kLongRun, Rank(0, 2, port));
    PloProcess rank1(kLongRun, Rank(1, 2, port));
    // Steps are being made once rank 0 logs the first.
    for (int i = 0; i < 600; ++i) {
      if (rank0.ErrSoFar().find("step 1/") != std::string::npos) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    ASSERT_NE(rank0.ErrSoFar().find("step 1/"), std::string::npos)
        << rank0.ErrSoFar() << rank1.ErrSoFar();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    PloProcess& dead = victim == 0 ? rank0 : rank1;
    PloProcess& alive = victim == 0 ? rank1 : rank0;
    dead.Kill();
    const PloResult result = alive.Wait(30);
    EXPECT_EQ(result.exit_code, 1) << result.err;
    EXPECT_THAT(result.err,
                AllOf(HasSubstr("error: Unavailable: "),
                      HasSubstr("lost rank " + std::to_string(victim) +
                                ": it ended or was killed")));
  }
}

// Before the first step, and not by the timeout of a collective.
TEST(FaultCli, DifferentRunsAreRefused) {
  for (const auto& [flag, message] :
       {std::pair("--hidden=32", "--hidden: rank 0 has 64, rank 1 has 32"),
        std::pair("--steps=99999",
                  "--steps: rank 0 has 100000, rank 1 has 99999"),
        std::pair("--text=/proc/self/exe",
                  "data: rank 0 has synthetic tokens, rank 1 has --text")}) {
    const int port = FreePort();
    auto other = kLongRun;
    other.push_back(flag);  // the last of a flag counts
    PloProcess rank0(kLongRun, Rank(0, 2, port));
    PloProcess rank1(other, Rank(1, 2, port));
    for (PloProcess* rank : {&rank0, &rank1}) {
      const PloResult result = rank->Wait(60);
      EXPECT_EQ(result.exit_code, 1);
      EXPECT_THAT(result.err,
                  AllOf(HasSubstr("error: FailedPrecondition: "),
                        HasSubstr(message), Not(HasSubstr("step 1/"))));
    }
  }
}

TEST(FaultCli, PortInUse) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)),
            0);
  ASSERT_EQ(listen(fd, 1), 0);
  socklen_t length = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  const int port = ntohs(address.sin_port);
  const PloResult result = RunPlo(kLongRun, 60, Rank(0, 2, port));
  close(fd);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err,
              HasSubstr("error: Unavailable: port " + std::to_string(port) +
                        " on 127.0.0.1 is in use; set MASTER_PORT to a free "
                        "one"));
}

TEST(FaultCli, EnvironmentThatLacksTheMaster) {
  const PloResult result =
      RunPlo(kLongRun, 60, {{"WORLD_SIZE", "2"}, {"RANK", "0"}});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("error: InvalidArgument: MASTER_ADDR is "
                                    "not set, but WORLD_SIZE is 2"));
}

}  // namespace
}  // namespace plo
