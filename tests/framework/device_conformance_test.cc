// What every Device implementation promises (device.h).
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "framework/ir/error.h"
#include "framework/runtime/device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/device_tasks.h"

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

// --- Streams of every kind, and the memory that they work on ---

// A number that goes from the host through all streams and comes back.
TEST_P(DeviceConformanceTest, EveryStreamWaitsForEveryOther) {
  constexpr int kRounds = 200;
  struct Copy {
    Device* device = nullptr;
    void* dst = nullptr;
    const void* src = nullptr;
    int delay_us = 0;
  };
  const auto task_of = [](Copy& copy) {
    Task task;
    task.context = &copy;
    task.run = [](void* context, const StepInfo&, void* native_stream) {
      const Copy& work = *static_cast<Copy*>(context);
      if (work.delay_us > 0) work.device->Delay(native_stream, work.delay_us);
      CopyInTask(work.dst, work.src, sizeof(int64_t), native_stream);
    };
    return task;
  };
  const auto allocate = [&](Place place) {
    return static_cast<int64_t*>(device_->Allocate(place, sizeof(int64_t)));
  };
  int64_t* const sent = allocate(Place::kPinned);
  int64_t* const received = allocate(Place::kPinned);
  int64_t* const on_device[] = {allocate(Place::kDevice),
                                allocate(Place::kDevice),
                                allocate(Place::kDevice)};
  const StreamId host = device_->CreateStream(StreamKind::kHost);
  const StreamId other_host = device_->CreateStream(StreamKind::kHost);
  const StreamId path[] = {device_->CreateStream(StreamKind::kH2D),
                           device_->CreateStream(StreamKind::kCompute),
                           device_->CreateStream(StreamKind::kComm),
                           device_->CreateStream(StreamKind::kD2H)};
  std::vector<int64_t> seen;
  int64_t next = 0;
  std::function<void()> send = [&] { *sent = ++next; };
  std::function<void()> receive = [&] { seen.push_back(*received); };
  // Each stream is the slow one in some rounds.
  std::vector<std::array<Copy, 4>> copies(kRounds);
  Ticket last = 0;
  for (int round = 0; round < kRounds; ++round) {
    auto& hops = copies[static_cast<size_t>(round)];
    const void* src = sent;
    for (int hop = 0; hop < 4; ++hop) {
      Copy& copy = hops[static_cast<size_t>(hop)];
      copy.device = device_.get();
      copy.src = src;
      copy.dst = hop < 3 ? on_device[hop] : received;
      copy.delay_us = round % 8 == hop ? 500 : 0;
      src = copy.dst;
    }
    device_->Wait(host, other_host, last);
    StreamId before = host;
    Ticket ticket = device_->Launch(host, TaskOf(send));
    for (int hop = 0; hop < 4; ++hop) {
      device_->Wait(path[hop], before, ticket);
      ticket =
          device_->Launch(path[hop], task_of(hops[static_cast<size_t>(hop)]));
      before = path[hop];
    }
    device_->Wait(other_host, before, ticket);
    last = device_->Launch(other_host, TaskOf(receive));
  }
  device_->Synchronize(other_host, last);
  ASSERT_EQ(seen.size(), static_cast<size_t>(kRounds));
  for (int i = 0; i < kRounds; ++i) {
    ASSERT_EQ(seen[static_cast<size_t>(i)], i + 1);
  }
  device_->SynchronizeAll();
}

// More launches in flight than any pool of events starts with, and waits for
// old ones among them.
TEST_P(DeviceConformanceTest, WaitsForOldTickets) {
  constexpr int kLaunches = 3000;
  const StreamId compute = device_->CreateStream(StreamKind::kCompute);
  const StreamId d2h = device_->CreateStream(StreamKind::kD2H);
  const StreamId host = device_->CreateStream(StreamKind::kHost);
  auto* const pinned =
      static_cast<char*>(device_->Allocate(Place::kPinned, kLaunches));
  struct Work {
    Device* device;
    char* pinned;
    const void* one;  // on the device
    int index;
  };
  void* const one = device_->Allocate(Place::kDevice, 1);
  device_->Write("\1", one, 1);
  std::vector<Work> works;
  for (int i = 0; i < kLaunches; ++i) {
    works.push_back({device_.get(), pinned, one, i});
  }
  Task task;
  task.run = [](void* context, const StepInfo&, void* native_stream) {
    const Work& work = *static_cast<Work*>(context);
    if (work.index % 1000 == 0) work.device->Delay(native_stream, 20000);
    CopyInTask(work.pinned + work.index, work.one, 1, native_stream);
  };
  for (Work& work : works) {
    task.context = &work;
    task.waited_on = work.index % 2 == 0;  // a wait for the others still works
    device_->Launch(compute, task);
  }
  int missing = 0;
  int wanted = 0;
  std::function<void()> look = [&] {
    for (int i = 0; i < wanted; ++i) missing += pinned[i] != 1;
  };
  for (const int ticket : {1, 2, 700, 1001, 1002, kLaunches}) {
    device_->Wait(d2h, compute, static_cast<Ticket>(ticket));
    std::function<void()> nothing = [] {};
    const Ticket passed = device_->Launch(d2h, TaskOf(nothing));
    device_->Wait(host, d2h, passed);
    wanted = ticket;
    device_->Synchronize(host, device_->Launch(host, TaskOf(look)));
    EXPECT_EQ(missing, 0) << "after ticket " << ticket;
  }
}

TEST_P(DeviceConformanceTest, AFailedTaskStillCounts) {
  const StreamId compute = device_->CreateStream(StreamKind::kCompute);
  const StreamId host = device_->CreateStream(StreamKind::kHost);
  std::function<void()> fail = [] { PLO_THROW(kInvalidArgument, "boom"); };
  std::function<void()> nothing = [] {};
  for (const auto& [first, second] :
       {std::pair(compute, host), std::pair(host, compute)}) {
    const Ticket failed = device_->Launch(first, TaskOf(fail));
    device_->Wait(second, first, failed);
    const Ticket behind = device_->Launch(second, TaskOf(nothing));
    EXPECT_THAT([&] { device_->Synchronize(second, behind); },
                testing::ThrowsMessage<Error>("InvalidArgument: boom"));
    device_->ClearError();
    device_->SynchronizeAll();
  }
}

TEST_P(DeviceConformanceTest, ReplaysWhatWasRecorded) {
  const StreamId compute = device_->CreateStream(StreamKind::kCompute);
  const StreamId host = device_->CreateStream(StreamKind::kHost);
  struct Copy {
    char* dst;
    const char* src;
    int calls = 0;
  };
  auto* const chars = static_cast<char*>(device_->Allocate(Place::kDevice, 3));
  device_->Write("abc", chars, 3);
  // A shift by one: in any other order it would be another.
  Copy copies[] = {{chars, chars + 1}, {chars + 1, chars + 2}};
  std::vector<Task> tasks;
  for (Copy& copy : copies) {
    Task task;
    task.context = &copy;
    task.run = [](void* context, const StepInfo&, void* native_stream) {
      Copy& work = *static_cast<Copy*>(context);
      ++work.calls;
      CopyInTask(work.dst, work.src, 1, native_stream);
    };
    tasks.push_back(task);
  }
  const auto recording = device_->Record(compute, tasks);
  if (recording == nullptr) {
    EXPECT_EQ(device_->kind(), DeviceKind::kCpu);
    EXPECT_EQ(copies[0].calls, 0) << "called, and nothing to show for it";
    return;
  }
  std::string text(3, ' ');
  const auto read = [&] {
    device_->Read(chars, text.data(), 3);
    return text;
  };
  device_->SynchronizeAll();
  EXPECT_EQ(read(), "abc") << "recording ran the work";
  // A ticket each, like launches; others wait for it.
  Ticket ticket = device_->Replay(compute, *recording, false);
  EXPECT_EQ(ticket, 1u);
  std::string seen;
  std::function<void()> look = [&] { seen = read(); };
  device_->Wait(host, compute, ticket);
  device_->Synchronize(host, device_->Launch(host, TaskOf(look)));
  EXPECT_EQ(seen, "bcc");
  device_->Write("xyz", chars, 3);
  ticket = device_->Replay(compute, *recording, true);
  EXPECT_EQ(ticket, 2u);
  device_->Synchronize(compute, ticket);
  EXPECT_EQ(read(), "yzz");
  EXPECT_EQ(copies[0].calls, 1);
  EXPECT_EQ(copies[1].calls, 1);

  std::function<void()> fail = [] { PLO_THROW(kInvalidArgument, "boom"); };
  tasks.push_back(TaskOf(fail));
  EXPECT_THAT([&] { device_->Record(compute, tasks); },
              testing::ThrowsMessage<Error>("InvalidArgument: boom"));
  // Nothing of it is left behind.
  device_->Write("xyz", chars, 3);
  device_->Synchronize(compute, device_->Replay(compute, *recording, true));
  EXPECT_EQ(read(), "yzz");
}

TEST_P(DeviceConformanceTest, CopiesWithinThePlacesAndBeyond2GiBOffsets) {
  constexpr int64_t kBytes = (int64_t{2} << 30) + (64 << 10);
  auto* const data =
      static_cast<char*>(device_->Allocate(Place::kDevice, kBytes));
  auto* const pinned = device_->Allocate(Place::kPinned, 16);
  const std::string text = "sixteen letters!";
  device_->Write(text.data(), data + kBytes - 16, 16);
  device_->Write(data + kBytes - 16, data, 16);
  device_->Write(data, pinned, 16);
  std::string out(16, ' ');
  device_->Read(pinned, out.data(), 16);
  EXPECT_EQ(out, text);
}

INSTANTIATE_TEST_SUITE_P(
    Devices, DeviceConformanceTest,
    testing::Values(Implementation{"cpu", [] { return CreateCpuDevice(); },
                                   []() -> const char* { return nullptr; }},
                    Implementation{"cuda", [] { return CreateCudaDevice(); },
                                   []() -> const char* {
                                     return CudaDeviceAvailable()
                                                ? nullptr
                                                : "no usable GPU";
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
  EXPECT_THAT([] { CreateCudaDevice(); },
              testing::ThrowsMessage<Error>(
                  testing::AllOf(testing::HasSubstr("FailedPrecondition"),
                                 testing::HasSubstr("CUDA device 0 asked for"),
                                 testing::HasSubstr(CudaDeviceProblem()))));
}

}  // namespace
}  // namespace plo
