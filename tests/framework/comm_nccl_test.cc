// What is NCCL's own: refusals, and failures while a collective is under way on
// the GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/framework/comm_test_utils.h"

namespace plo {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int64_t kCount = 1 << 20;

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
      .count();
}

void Sum(Comm& comm) {
  std::vector<float> data(kCount, 1.0f);
  comm.AllReduce(data.data(), kCount, DType::kFp32, Reduction::kSum, nullptr);
  ASSERT_EQ(data[kCount - 1], static_cast<float>(comm.size()));
}

template <typename Function>
std::string ErrorOf(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

class NcclCommTest : public testing::Test {
 protected:
  static constexpr int kRanks = 2;
  void SetUp() override {
    const std::string reason = WhyTooFewGpus(kRanks);
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  // Two ranks; `rank1` is what the second does after a first sum.
  std::vector<std::string> Run(const CommOptions& options,
                               const std::function<void(Comm&)>& rank1) {
    return RunRanks(CommKind::kNccl, kRanks, options,
                    [&](Comm& comm, int rank) {
                      Sum(comm);
                      if (rank == 1) return rank1(comm);
                      Sum(comm);
                    });
  }
};

TEST(NcclLaunchTest, MoreRanksThanGpusAreNamed) {
  const std::string reason = WhyTooFewGpus(1);
  if (!reason.empty()) GTEST_SKIP() << reason;
  LaunchInfo info = LocalLaunch(1000, 1001, 1);
  EXPECT_THAT(ErrorOf([&] { CreateNcclComm(info); }),
              AllOf(StartsWith("InvalidArgument: this host has 1001 ranks"),
                    HasSubstr("one GPU per rank")));
}

TEST_F(NcclCommTest, MaxOfFloatsIsRefusedAndDoesNoHarm) {
  const auto errors =
      RunRanks(CommKind::kNccl, kRanks, {}, [](Comm& comm, int) {
        float x = 1;
        EXPECT_THAT(ErrorOf([&] {
                      comm.AllReduce(&x, 1, DType::kFp32, Reduction::kMax,
                                     nullptr);
                    }),
                    HasSubstr("all_reduce: the max of fp32 over NCCL"));
        Sum(comm);
      });
  EXPECT_THAT(errors, testing::Each(""));
}

TEST_F(NcclCommTest, AbortEndsACollectiveUnderWay) {
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = Run({}, [](Comm& comm) {
    std::this_thread::sleep_for(milliseconds(300));
    comm.Abort("the disk is full");
    EXPECT_THAT(ErrorOf([&] { Sum(comm); }),
                AllOf(StartsWith("Unavailable: all_reduce of 1048576 fp32: "),
                      HasSubstr("aborted: the disk is full")));
    EXPECT_THAT(ErrorOf([&] { comm.Barrier(); }), StartsWith("Unavailable: "));
  });
  EXPECT_THAT(errors[0], AllOf(StartsWith("Unavailable: "),
                               HasSubstr("aborted: the disk is full")));
  EXPECT_LT(SecondsSince(begin), 25);
}

TEST_F(NcclCommTest, SilentRankIsNamedWithinTheTimeLimit) {
  CommOptions options;
  options.timeout_seconds = 3;
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = Run(
      options, [](Comm&) { std::this_thread::sleep_for(milliseconds(6000)); });
  EXPECT_THAT(
      errors[0],
      AllOf(StartsWith("Unavailable: "),
            HasSubstr("all_reduce of 1048576 fp32 got no answer from rank 1 "
                      "within 3 s")));
  EXPECT_LT(SecondsSince(begin), 25);
}

TEST_F(NcclCommTest, FailedCommStaysFailed) {
  RunRanks(CommKind::kNccl, kRanks, {}, [](Comm& comm, int rank) {
    Sum(comm);
    if (rank == 0) comm.Abort("first");
    if (rank == 0) comm.Abort("second");
    std::this_thread::sleep_for(milliseconds(200));
    for (int call = 0; call < 3; ++call) {
      EXPECT_THAT(
          ErrorOf([&] { Sum(comm); }),
          AllOf(StartsWith("Unavailable: "), HasSubstr("aborted: first")));
    }
  });
}

}  // namespace
}  // namespace plo
