#include "paddle_lite_offload/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include "framework/ir/file_io.h"
#include "paddle_lite_offload/calibration.h"

namespace plo {
namespace {

using ::testing::HasSubstr;

// Another cache folder for the time of a test.
class MachineTest : public ::testing::Test {
 protected:
  MachineTest() : folder_(::testing::TempDir() + "plo_machine_test") {
    if (const char* old = std::getenv("XDG_CACHE_HOME")) old_ = old;
    setenv("XDG_CACHE_HOME", folder_.c_str(), 1);
  }
  ~MachineTest() override {
    setenv("XDG_CACHE_HOME", old_.c_str(), 1);
    std::filesystem::remove_all(folder_);
  }
  void Keep(int ranks, const std::string& text) const {
    const std::string path =
        CachedRatesPath(DeviceModel(DeviceKind::kCpu), ranks);
    MakeFolder(std::filesystem::path(path).parent_path().string());
    WriteFile(path, text);
  }

  const std::string folder_;
  std::string old_;
};

TEST_F(MachineTest, RatesAreKeptByModelAndRanks) {
  EXPECT_EQ(CachedRatesPath("nvidia_h200", 2),
            folder_ + "/paddle_lite_offload/rates_nvidia_h200_2.json");
  EXPECT_EQ(CachedRatesPath("", 2), "");
  const std::string model = DeviceModel(DeviceKind::kCpu);
  EXPECT_EQ(model.substr(0, 3), "cpu");
  EXPECT_EQ(model.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_"),
            std::string::npos)
      << model;
  setenv("XDG_CACHE_HOME", "not/absolute", 1);
  EXPECT_THAT(CachedRatesPath("x", 1), HasSubstr("/.cache/"));
}

TEST_F(MachineTest, FilesComeBeforeMeasuredRatesBeforeBuiltInOnes) {
  TrainConfig config;
  EXPECT_FALSE(FindRates(config, DeviceKind::kCpu, 3));
  EXPECT_EQ(Describe(*FindRates(config, DeviceKind::kCuda, 1 << 20)),
            "h200 (built in)");
  Rates rates;
  rates.name = "kept";
  Keep(3, RatesText(rates));
  EXPECT_FALSE(FindRates(config, DeviceKind::kCpu, 2));
  const auto kept = FindRates(config, DeviceKind::kCpu, 3);
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->rates.name, "kept");
  EXPECT_THAT(kept->source, HasSubstr("cached in " + folder_));
  config.rates = folder_ + "/own.json";
  rates.name = "own";
  WriteFile(config.rates, RatesText(rates));
  EXPECT_EQ(Describe(*FindRates(config, DeviceKind::kCpu, 3)), "own (--rates)");
}

TEST_F(MachineTest, ABadFileIsAnErrorOnlyWhereItWasAskedFor) {
  TrainConfig config;
  Keep(3, "{}}");
  EXPECT_FALSE(FindRates(config, DeviceKind::kCpu, 3));
  config.rates = CachedRatesPath(DeviceModel(DeviceKind::kCpu), 3);
  EXPECT_THROW(FindRates(config, DeviceKind::kCpu, 3), Error);
}

template <typename Fn>
void OnRanks(int ranks, const Fn& fn) {
  auto comms = CreateThreadComms(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { fn(*comms[rank], rank); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(MachineTest, RanksAgreeOnTheFirstOnesRatesAndTheLeastMemory) {
  std::vector<Machine> machines(3);
  for (int rank = 0; rank < 3; ++rank) {
    machines[rank].device_memory = int64_t{50} << (rank == 1 ? 30 : 33);
    if (rank == 2) continue;
    machines[rank].rates = NamedRates{};
    machines[rank].rates->rates.d2h_bytes = 1.0 / (rank + 3);
  }
  OnRanks(3,
          [&](Comm& comm, int rank) { AgreeOnMachine(comm, machines[rank]); });
  for (const Machine& machine : machines) {
    ASSERT_TRUE(machine.rates);
    EXPECT_EQ(machine.rates->rates.d2h_bytes, 1.0 / 3);
    EXPECT_EQ(machine.device_memory, int64_t{50} << 30);
  }
  machines[0].rates.reset();
  OnRanks(3,
          [&](Comm& comm, int rank) { AgreeOnMachine(comm, machines[rank]); });
  for (const Machine& machine : machines) EXPECT_FALSE(machine.rates);
}

TEST(Calibration, AllRanksMeasureTheSame) {
  std::vector<Rates> rates(2);
  std::vector<int> lines(2);
  OnRanks(2, [&](Comm& comm, int rank) {
    CalibrationOptions options;
    options.comm = &comm;
    options.local_rank = rank;
    options.local_world_size = 2;
    options.buffer_bytes = 1 << 18;
    options.seconds = 0.01;
    options.progress = [&lines, rank](const std::string&) { ++lines[rank]; };
    rates[rank] = MeasureRates(options);
  });
  EXPECT_EQ(RatesText(rates[0]), RatesText(rates[1]));
  EXPECT_GE(lines[0], 10);
  Rates defaults;
  const auto numbers = NumbersOf(rates[0]);
  for (size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_GT(*numbers[i].second, 0) << numbers[i].first;
    EXPECT_NE(*numbers[i].second, *NumbersOf(defaults)[i].second)
        << numbers[i].first << " was not measured";
  }
}

}  // namespace
}  // namespace plo
