// What every Device implementation promises (device.h).
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "framework/ir/error.h"
#include "framework/runtime/device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace plo {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

struct Implementation {
  const char* name;
  std::unique_ptr<Device> (*create)();
  // Why the implementation cannot be tested here; null if it can.
  const char* (*skip_reason)();
};

void PrintTo(const Implementation& implementation, std::ostream* out) {
  *out << implementation.name;
}

// A task that calls a std::function kept by the test.
Task TaskOf(std::function<void()>& fn) {
  Task task;
  task.context = &fn;
  task.run = [](void* context, const StepInfo&, void*) {
    (*static_cast<std::function<void()>*>(context))();
  };
  return task;
}

class DeviceConformanceTest : public testing::TestWithParam<Implementation> {
 protected:
  void SetUp() override {
    if (const char* reason = GetParam().skip_reason()) GTEST_SKIP() << reason;
    device_ = GetParam().create();
  }
  std::unique_ptr<Device> device_;
};

TEST_P(DeviceConformanceTest, MemoryIsAlignedCountedAndGivenBack) {
  for (Place place : {Place::kDevice, Place::kPinned}) {
    void* data = device_->Allocate(place, 1000);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 4096, 0u);
    const DeviceStats stats = device_->stats();
    EXPECT_EQ(place == Place::kDevice ? stats.device_bytes : stats.pinned_bytes,
              1000);
    std::vector<char> in(1000), out(1000);
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<char>(i * 7);
    device_->Write(in.data(), data, 1000);
    device_->Read(data, out.data(), 1000);
    EXPECT_EQ(in, out);
    device_->Free(place, data);
  }
  const DeviceStats stats = device_->stats();
  EXPECT_EQ(stats.device_bytes, 0);
  EXPECT_EQ(stats.pinned_bytes, 0);
  EXPECT_EQ(stats.device_allocations, 1);
  EXPECT_EQ(stats.pinned_allocations, 1);
}

TEST_P(DeviceConformanceTest, RefusesBadAllocationsAndFrees) {
  EXPECT_THROW(device_->Allocate(Place::kDevice, 0), Error);
  EXPECT_THROW(device_->Allocate(Place::kDevice, -1), Error);
  void* data = device_->Allocate(Place::kDevice, 16);
  EXPECT_THROW(device_->Free(Place::kPinned, data), Error);
  device_->Free(Place::kDevice, data);
  EXPECT_THROW(device_->Free(Place::kDevice, data), Error);
}

TEST_P(DeviceConformanceTest, AStreamRunsInOrder) {
  const StreamId stream = device_->CreateStream(StreamKind::kHost);
  std::vector<int> order;
  std::vector<std::function<void()>> tasks(5000);  // more than any ring
  for (int i = 0; i < 5000; ++i) {
    tasks[static_cast<size_t>(i)] = [&order, i] { order.push_back(i); };
    const Ticket ticket =
        device_->Launch(stream, TaskOf(tasks[static_cast<size_t>(i)]));
    EXPECT_EQ(ticket, static_cast<Ticket>(i) + 1);
  }
  device_->Synchronize(stream, 5000);
  ASSERT_EQ(order.size(), 5000u);
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(order[static_cast<size_t>(i)], i);
}

TEST_P(DeviceConformanceTest, PassesStepInfo) {
  const StreamId stream = device_->CreateStream(StreamKind::kHost);
  StepInfo seen;
  Task task;
  task.context = &seen;
  task.run = [](void* context, const StepInfo& step, void*) {
    *static_cast<StepInfo*>(context) = step;
  };
  task.step.data_step = 41;
  task.step.micro_index = 3;
  device_->Synchronize(stream, device_->Launch(stream, task));
  EXPECT_EQ(seen.data_step, 41);
  EXPECT_EQ(seen.micro_index, 3);
}

TEST_P(DeviceConformanceTest, LaunchAndWaitReturnBeforeTheWorkIsDone) {
  const StreamId slow = device_->CreateStream(StreamKind::kHost);
  const StreamId other = device_->CreateStream(StreamKind::kHost);
  std::atomic<bool> release{false};
  std::function<void()> block = [&] {
    while (!release.load()) std::this_thread::sleep_for(milliseconds(1));
  };
  std::function<void()> nothing = [] {};
  // Were either call to block, the test would hang here.
  const Ticket blocked = device_->Launch(slow, TaskOf(block));
  device_->Wait(other, slow, blocked);
  const Ticket behind = device_->Launch(other, TaskOf(nothing));
  release = true;
  device_->Synchronize(other, behind);
  device_->SynchronizeAll();
}

TEST_P(DeviceConformanceTest, StreamsRunConcurrently) {
  const StreamId first = device_->CreateStream(StreamKind::kHost);
  const StreamId second = device_->CreateStream(StreamKind::kHost);
  std::atomic<int> arrived{0};
  // Each task ends only when both have begun.
  std::function<void()> meet = [&] {
    ++arrived;
    const auto deadline = steady_clock::now() + std::chrono::seconds(20);
    while (arrived.load() < 2 && steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
  };
  device_->Launch(first, TaskOf(meet));
  device_->Launch(second, TaskOf(meet));
  const auto begin = steady_clock::now();
  device_->SynchronizeAll();
  EXPECT_LT(steady_clock::now() - begin, std::chrono::seconds(15));
}

TEST_P(DeviceConformanceTest, WaitOrdersStreams) {
  const StreamId writer = device_->CreateStream(StreamKind::kHost);
  const StreamId reader = device_->CreateStream(StreamKind::kHost);
  int value = 0;  // not atomic: ordered by waits alone, which TSAN checks
  std::vector<int> seen;
  std::function<void()> write = [&] {
    std::this_thread::sleep_for(milliseconds(1));
    ++value;
  };
  std::function<void()> read = [&] { seen.push_back(value); };
  Ticket last_read = 0;
  for (int i = 0; i < 50; ++i) {
    device_->Wait(writer, reader, last_read);
    const Ticket written = device_->Launch(writer, TaskOf(write));
    device_->Wait(reader, writer, written);
    last_read = device_->Launch(reader, TaskOf(read));
  }
  device_->Synchronize(reader, last_read);
  ASSERT_EQ(seen.size(), 50u);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i + 1);
}

TEST_P(DeviceConformanceTest, WaitAndSynchronizeRefuseFutureTickets) {
  const StreamId a = device_->CreateStream(StreamKind::kHost);
  const StreamId b = device_->CreateStream(StreamKind::kHost);
  EXPECT_THROW(device_->Wait(a, b, 1), Error);
  EXPECT_THROW(device_->Synchronize(a, 1), Error);
  EXPECT_THROW(device_->Synchronize(99, 0), Error);
  device_->Wait(a, b, 0);
  device_->Synchronize(a, 0);
}

TEST_P(DeviceConformanceTest, CarriesTheFirstErrorAndSkipsUntilCleared) {
  const StreamId first = device_->CreateStream(StreamKind::kHost);
  const StreamId second = device_->CreateStream(StreamKind::kHost);
  std::atomic<int> ran{0};
  std::function<void()> fail = [] { PLO_THROW(kInvalidArgument, "boom"); };
  std::function<void()> count = [&] { ++ran; };
  const Ticket failed = device_->Launch(first, TaskOf(fail));
  device_->Launch(first, TaskOf(count));
  device_->Wait(second, first, failed);
  device_->Launch(second, TaskOf(count));
  EXPECT_THAT([&] { device_->SynchronizeAll(); },
              testing::ThrowsMessage<Error>("InvalidArgument: boom"));
  EXPECT_TRUE(device_->has_error());
  EXPECT_THROW(device_->Synchronize(first, failed), Error);
  EXPECT_EQ(ran.load(), 0);
  device_->ClearError();
  EXPECT_FALSE(device_->has_error());
  device_->Launch(second, TaskOf(count));
  device_->SynchronizeAll();
  EXPECT_EQ(ran.load(), 1);
}

TEST_P(DeviceConformanceTest, DestructionRunsWhatIsQueued) {
  std::atomic<int> ran{0};
  std::function<void()> slow = [&] {
    std::this_thread::sleep_for(milliseconds(2));
    ++ran;
  };
  const StreamId a = device_->CreateStream(StreamKind::kHost);
  const StreamId b = device_->CreateStream(StreamKind::kHost);
  for (int i = 0; i < 10; ++i) {
    device_->Wait(b, a, device_->Launch(a, TaskOf(slow)));
    device_->Wait(a, b, device_->Launch(b, TaskOf(slow)));
  }
  device_.reset();
  EXPECT_EQ(ran.load(), 20);
}

INSTANTIATE_TEST_SUITE_P(
    Devices, DeviceConformanceTest,
    testing::Values(Implementation{"cpu", [] { return CreateCpuDevice(); },
                                   []() -> const char* { return nullptr; }},
                    Implementation{"cuda", [] { return CreateCudaDevice(0); },
                                   []() -> const char* {
                                     return CudaDeviceAvailable()
                                                ? nullptr
                                                : "no GPU or no CUDA build";
                                   }}),
    [](const auto& param) { return std::string(param.param.name); });

TEST(CpuDeviceTest, LimitsAreExactAndNamed) {
  CpuDeviceOptions options;
  options.device_memory_limit = 10000;
  options.host_memory_limit = 5000;
  auto device = CreateCpuDevice(options);
  void* data = device->Allocate(Place::kDevice, 10000);
  EXPECT_THAT([&] { device->Allocate(Place::kDevice, 1); },
              testing::ThrowsMessage<Error>(testing::AllOf(
                  testing::HasSubstr("OutOfMemory: device memory: 1 bytes"),
                  testing::HasSubstr("10000 in use, the limit is 10000"))));
  EXPECT_THAT([&] { device->Allocate(Place::kPinned, 5001); },
              testing::ThrowsMessage<Error>(
                  testing::HasSubstr("pinned memory: 5001 bytes")));
  device->Free(Place::kDevice, data);
  device->Allocate(Place::kDevice, 1);
}

TEST(CudaStubTest, SaysWhyThereIsNoCudaDevice) {
  if (CudaDeviceAvailable()) GTEST_SKIP() << "there is a CUDA device";
  EXPECT_THAT([] { CreateCudaDevice(0); },
              testing::ThrowsMessage<Error>(
                  testing::AllOf(testing::HasSubstr("FailedPrecondition"),
                                 testing::HasSubstr("without CUDA / no GPU"))));
}

}  // namespace
}  // namespace plo
