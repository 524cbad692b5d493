// Comms for the threads of one process: ranks read each other's memory between
// two meetings of all.
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>

#include "framework/ir/error.h"
#include "framework/runtime/comm.h"
#include "framework/runtime/comm_common.h"

namespace plo {
namespace {

// One call of one rank; equal on all ranks except for the addresses.
struct Call {
  const char* kind = "";
  int64_t count = 0;
  DType dtype = DType::kBool;
  int detail = 0;  // reduction or root
  const void* input = nullptr;
  void* output = nullptr;

  bool Matches(const Call& other) const {
    return std::string_view(kind) == other.kind && count == other.count &&
           dtype == other.dtype && detail == other.detail;
  }
  std::string Name() const {
    return count == 0 ? std::string(kind) : CollectiveName(kind, count, dtype);
  }
};

// Where the ranks meet. A collective is a first meeting, at which the calls
// become known to all; work on each other's memory; and a last meeting, after
// which that memory belongs to its rank again.
//
// After a failure no meeting takes place any more, and a rank leaves only when
// no other works (working_ is 0), because its caller may free the memory that
// they read.
class Meeting {
 public:
  Meeting(int size, double timeout_seconds)
      : timeout_(timeout_seconds),
        calls_(static_cast<size_t>(size)),
        arrived_(static_cast<size_t>(size)),
        gone_(static_cast<size_t>(size)) {}

  int size() const { return static_cast<int>(calls_.size()); }

  // The first meeting. The calls of all ranks, valid until Leave().
  const std::vector<Call>& Enter(int rank, const Call& call) {
    std::unique_lock lock(mutex_);
    calls_[static_cast<size_t>(rank)] = call;
    Meet(lock, rank, call, size());
    for (int other = 0; other < size(); ++other) {
      const Call& theirs = calls_[static_cast<size_t>(other)];
      if (call.Matches(theirs)) continue;
      // All ranks see a difference from some other and stop in the same way.
      const std::string text =
          StrCat("rank ", rank, " calls ", call.Name(), " while rank ", other,
                 " calls ", theirs.Name());
      --working_;
      Fail(text);
      AwaitNoWork(lock);
      PLO_THROW(kFailedPrecondition, text);
    }
    return calls_;
  }

  // A meeting in the middle of a collective.
  void Sync(int rank, const Call& call) {
    std::unique_lock lock(mutex_);
    --working_;
    Meet(lock, rank, call, size());
  }

  // The last meeting.
  void Leave(int rank, const Call& call) {
    std::unique_lock lock(mutex_);
    --working_;
    Meet(lock, rank, call, 0);
  }

  void Abort(const std::string& reason) {
    std::lock_guard lock(mutex_);
    Fail("aborted: " + reason);
  }

  void ThrowIfFailed() {
    std::lock_guard lock(mutex_);
    if (!failure_.empty()) throw Error(ErrorCode::kUnavailable, failure_);
  }

  void Depart(int rank) {
    std::lock_guard lock(mutex_);
    gone_[static_cast<size_t>(rank)] = true;
    changed_.notify_all();
  }

 private:
  void ThrowIfFailed(const Call& call) const {
    if (!failure_.empty()) {
      PLO_THROW(kUnavailable, call.Name(), ": ", failure_);
    }
  }

  void Fail(const std::string& failure) {
    if (failure_.empty()) failure_ = failure;
    changed_.notify_all();
  }

  void AwaitNoWork(std::unique_lock<std::mutex>& lock) {
    changed_.notify_all();
    changed_.wait(lock, [this] { return working_ == 0; });
  }

  std::vector<int> Missing(bool only_gone) const {
    std::vector<int> ranks;
    for (size_t r = 0; r < arrived_.size(); ++r) {
      if (!arrived_[r] && (gone_[r] || !only_gone)) {
        ranks.push_back(static_cast<int>(r));
      }
    }
    return ranks;
  }

  // Blocks until all ranks are here; then `working` ranks work.
  void Meet(std::unique_lock<std::mutex>& lock, int rank, const Call& call,
            int working) {
    if (!failure_.empty()) {
      AwaitNoWork(lock);
      ThrowIfFailed(call);
    }
    arrived_[static_cast<size_t>(rank)] = true;
    const uint64_t meeting = meeting_;
    if (++arrived_count_ == size()) {
      arrived_count_ = 0;
      arrived_.assign(arrived_.size(), false);
      working_ = working;
      ++meeting_;
      changed_.notify_all();
      return;
    }
    const auto deadline =
        std::chrono::steady_clock::now() +
        std::chrono::duration_cast<std::chrono::steady_clock::duration>(
            std::chrono::duration<double>(timeout_));
    while (meeting_ == meeting && failure_.empty()) {
      if (const auto gone = Missing(/*only_gone=*/true); !gone.empty()) {
        Fail(RankList(gone) + " left");
      } else if (changed_.wait_until(lock, deadline) ==
                     std::cv_status::timeout &&
                 meeting_ == meeting && failure_.empty()) {
        Fail(StrCat("no sign of ", RankList(Missing(false)), " within ",
                    timeout_, " s"));
      }
    }
    if (meeting_ != meeting) return;  // the meeting took place
    AwaitNoWork(lock);
    ThrowIfFailed(call);
  }

  const double timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Call> calls_;  // written by its rank, then read by all
  // Guarded by mutex_.
  std::vector<bool> arrived_;
  std::vector<bool> gone_;
  int arrived_count_ = 0;
  int working_ = 0;
  uint64_t meeting_ = 0;
  std::string failure_;
};

class ThreadComm : public Comm {
 public:
  ThreadComm(std::shared_ptr<Meeting> meeting, int rank)
      : meeting_(std::move(meeting)), rank_(rank) {}
  ~ThreadComm() override { meeting_->Depart(rank_); }

  int rank() const override { return rank_; }
  int size() const override { return meeting_->size(); }

  void AllReduce(void* data, int64_t count, DType dtype, Reduction reduction,
                 void*) override {
    CheckCollectiveArguments("all_reduce", data, count);
    const Call call{"all_reduce", count, dtype, static_cast<int>(reduction),
                    data,         data};
    const auto& calls = meeting_->Enter(rank_, call);
    // Slice r of every rank's data is read and written by rank r alone until
    // the ranks meet again.
    const int64_t bytes = SizeOf(dtype);
    const SliceRange own = OwnSlice(count, rank_, size());
    std::vector<const void*> inputs;
    for (const Call& theirs : calls) {
      inputs.push_back(Offset(theirs.input, own.begin * bytes));
    }
    Work(call, [&] {
      ReduceInRankOrder(inputs, Offset(data, own.begin * bytes), own.count,
                        dtype, reduction);
    });
    meeting_->Sync(rank_, call);
    for (int other = 0; other < size(); ++other) {
      if (other == rank_) continue;
      const SliceRange slice = OwnSlice(count, other, size());
      Copy(Offset(calls[static_cast<size_t>(other)].input, slice.begin * bytes),
           Offset(data, slice.begin * bytes), slice.count * bytes);
    }
    meeting_->Leave(rank_, call);
  }

  void ReduceScatter(const void* input, void* output, int64_t slice_count,
                     DType dtype, Reduction reduction, void*) override {
    CheckCollectiveArguments("reduce_scatter", input, slice_count);
    CheckCollectiveArguments("reduce_scatter", output, slice_count);
    const Call call{"reduce_scatter",
                    slice_count,
                    dtype,
                    static_cast<int>(reduction),
                    input,
                    output};
    std::vector<const void*> inputs;
    for (const Call& theirs : meeting_->Enter(rank_, call)) {
      inputs.push_back(
          Offset(theirs.input, slice_count * SizeOf(dtype) * rank_));
    }
    Work(call, [&] {
      ReduceInRankOrder(inputs, output, slice_count, dtype, reduction);
    });
    meeting_->Leave(rank_, call);
  }

  void AllGather(const void* input, void* output, int64_t slice_count,
                 DType dtype, void*) override {
    CheckCollectiveArguments("all_gather", input, slice_count);
    CheckCollectiveArguments("all_gather", output, slice_count);
    const Call call{"all_gather", slice_count, dtype, 0, input, output};
    const int64_t bytes = slice_count * SizeOf(dtype);
    int64_t offset = 0;
    for (const Call& theirs : meeting_->Enter(rank_, call)) {
      Copy(theirs.input, Offset(output, offset), bytes);
      offset += bytes;
    }
    meeting_->Leave(rank_, call);
  }

  void Broadcast(void* data, int64_t bytes, int root, void*) override {
    CheckCollectiveArguments("broadcast", data, bytes);
    PLO_ENFORCE(root >= 0 && root < size(), kInvalidArgument,
                "broadcast: root is ", root, " of ", size(), " ranks");
    const Call call{"broadcast", bytes, DType::kBool, root, data, data};
    const auto& calls = meeting_->Enter(rank_, call);
    Copy(calls[static_cast<size_t>(root)].input, data, bytes);
    meeting_->Leave(rank_, call);
  }

  void Barrier() override {
    const Call call{"barrier"};
    meeting_->Enter(rank_, call);
    meeting_->Leave(rank_, call);
  }

  void ThrowIfFailed() override { meeting_->ThrowIfFailed(); }
  void Abort(const std::string& reason) override { meeting_->Abort(reason); }
  int64_t staging_bytes() const override { return 0; }

 private:
  static const void* Offset(const void* data, int64_t bytes) {
    return static_cast<const char*>(data) + bytes;
  }
  static void* Offset(void* data, int64_t bytes) {
    return static_cast<char*>(data) + bytes;
  }
  static void Copy(const void* src, void* dst, int64_t bytes) {
    if (src != dst && bytes > 0) {
      std::memcpy(dst, src, static_cast<size_t>(bytes));
    }
  }
  // A rank that throws while others wait must still take part in the meeting.
  template <typename Function>
  void Work(const Call& call, const Function& function) {
    try {
      function();
    } catch (const Error& error) {
      meeting_->Abort(StrCat("rank ", rank_, ": ", error.message()));
      try {
        meeting_->Leave(rank_, call);
      } catch (const Error&) {
        // The cause is worth more than its echo.
      }
      throw;
    }
  }

  const std::shared_ptr<Meeting> meeting_;
  const int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Comm>> CreateThreadComms(
    int size, const CommOptions& options) {
  PLO_ENFORCE(size >= 1, kInvalidArgument, "a comm of ", size, " ranks");
  auto meeting = std::make_shared<Meeting>(size, options.timeout_seconds);
  std::vector<std::unique_ptr<Comm>> comms;
  for (int rank = 0; rank < size; ++rank) {
    comms.push_back(std::make_unique<ThreadComm>(meeting, rank));
  }
  return comms;
}

}  // namespace plo
