// The CPU with recordings, as a GPU has them: what replays are made of can be
// tested, and seen by ThreadSanitizer, without one.
#ifndef PLO_TESTS_FRAMEWORK_REPLAYING_DEVICE_H_
#define PLO_TESTS_FRAMEWORK_REPLAYING_DEVICE_H_

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "framework/runtime/device.h"

namespace plo {

class ReplayingDevice : public Device {
 public:
  explicit ReplayingDevice(std::unique_ptr<Device> base)
      : base_(std::move(base)) {}

  // The tasks of each recording, in the order they were made.
  std::vector<size_t> recorded;
  int replays = 0;
  bool refuses = false;  // as a driver out of memory

  std::unique_ptr<Recording> Record(StreamId,
                                    std::span<const Task> tasks) override {
    base_->SynchronizeAll();  // the caller may look at what tasks wrote
    if (refuses) return nullptr;
    recorded.push_back(tasks.size());
    auto recording = std::make_unique<Tasks>();
    recording->tasks.assign(tasks.begin(), tasks.end());
    return recording;
  }
  Ticket Replay(StreamId stream, Recording& recording,
                bool waited_on) override {
    ++replays;
    Task task;
    task.context = &static_cast<Tasks&>(recording);
    task.waited_on = waited_on;
    // With the steps of the recording: nothing new reaches a replay.
    task.run = [](void* context, const StepInfo&, void* native_stream) {
      for (const Task& each : static_cast<Tasks*>(context)->tasks) {
        each.run(each.context, each.step, native_stream);
      }
    };
    return base_->Launch(stream, task);
  }

  DeviceKind kind() const override { return base_->kind(); }
  std::string name() const override { return base_->name(); }
  void* Allocate(Place place, int64_t bytes) override {
    return base_->Allocate(place, bytes);
  }
  void Free(Place place, void* data) override { base_->Free(place, data); }
  StreamId CreateStream(StreamKind kind) override {
    return base_->CreateStream(kind);
  }
  Ticket Launch(StreamId stream, const Task& task) override {
    return base_->Launch(stream, task);
  }
  void Wait(StreamId waiter, StreamId of, Ticket ticket) override {
    base_->Wait(waiter, of, ticket);
  }
  void Synchronize(StreamId stream, Ticket ticket) override {
    base_->Synchronize(stream, ticket);
  }
  void SynchronizeAll() override { base_->SynchronizeAll(); }
  void ClearError() override { base_->ClearError(); }
  bool has_error() const override { return base_->has_error(); }
  void Read(const void* src, void* dst, int64_t bytes) override {
    base_->Read(src, dst, bytes);
  }
  void Write(const void* src, void* dst, int64_t bytes) override {
    base_->Write(src, dst, bytes);
  }
  void Delay(void* native_stream, int microseconds) override {
    base_->Delay(native_stream, microseconds);
  }
  DeviceStats stats() const override { return base_->stats(); }

 private:
  struct Tasks : Recording {
    std::vector<Task> tasks;
  };

  std::unique_ptr<Device> base_;
};

}  // namespace plo

#endif  // PLO_TESTS_FRAMEWORK_REPLAYING_DEVICE_H_
