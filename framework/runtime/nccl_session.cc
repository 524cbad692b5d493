#include "framework/runtime/nccl_session.h"

#include <chrono>
#include <thread>

#include "framework/runtime/socket_utils.h"

namespace plo {
namespace {

using std::chrono::microseconds;

constexpr int kYields = 1000;
constexpr microseconds kPollTime(50);
// What a caller inside NCCL, which does not block, may take.
constexpr std::chrono::seconds kCallTime(2);
constexpr double kFinalizeSeconds = 5;

// Waits a little longer as the wait goes on.
void Pause(int poll) {
  if (poll < kYields) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(kPollTime);
  }
}

}  // namespace

NcclSession::NcclSession(const ncclUniqueId& id, int rank, int size,
                         double timeout_seconds, const Check& check)
    : timeout_seconds_(timeout_seconds) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t result =
      ncclCommInitRankConfig(&comm_, size, id, rank, &config);
  PLO_ENFORCE(result == ncclSuccess || result == ncclInProgress, kUnavailable,
              "NCCL cannot start: ", Describe(result));
  try {
    AwaitReady(check);
  } catch (...) {
    Abort();
    throw;
  }
}

NcclSession::~NcclSession() {
  if (comm_ == nullptr) return;
  if (Finalize(kFinalizeSeconds)) {
    ncclCommDestroy(comm_);
  } else {
    ncclCommAbort(comm_);
  }
}

void NcclSession::Enqueue(const Call& call, const Check& check) {
  {
    std::lock_guard lock(mutex_);
    PLO_ENFORCE(comm_ != nullptr, kUnavailable, "NCCL was aborted");
    const ncclResult_t result = call(comm_);
    if (result == ncclSuccess) return;
    PLO_ENFORCE(result == ncclInProgress, kUnavailable, Describe(result));
  }
  AwaitReady(check);
}

void NcclSession::AwaitReady(const Check& check) {
  const Deadline deadline = DeadlineIn(timeout_seconds_);
  for (int poll = 0;; ++poll) {
    {
      std::lock_guard lock(mutex_);
      PLO_ENFORCE(comm_ != nullptr, kUnavailable, "NCCL was aborted");
      ncclResult_t state = ncclSuccess;
      const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
      PLO_ENFORCE(asked == ncclSuccess, kUnavailable, Describe(asked));
      if (state == ncclSuccess) return;
      PLO_ENFORCE(state == ncclInProgress, kUnavailable, Describe(state));
    }
    check();
    PLO_ENFORCE(std::chrono::steady_clock::now() < deadline, kUnavailable,
                "NCCL did not reach the other ranks within ", timeout_seconds_,
                " s");
    Pause(poll);
  }
}

std::string NcclSession::AsyncError() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || comm_ == nullptr) return "";
  ncclResult_t state = ncclSuccess;
  ncclResult_t result = ncclCommGetAsyncError(comm_, &state);
  if (result == ncclSuccess) result = state;
  const bool fine = result == ncclSuccess || result == ncclInProgress;
  return fine ? "" : Describe(result);
}

void NcclSession::Abort() {
  // A caller that does not come back is stuck behind the very collectives that
  // the abort ends.
  std::unique_lock lock(mutex_, kCallTime);
  ncclComm_t comm = comm_;
  comm_ = nullptr;
  if (comm != nullptr) ncclCommAbort(comm);
}

bool NcclSession::Finalize(double seconds) {
  ncclResult_t state = ncclCommFinalize(comm_);
  const Deadline deadline = DeadlineIn(seconds);
  for (int poll = 0; state == ncclInProgress; ++poll) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    Pause(poll);
    if (ncclCommGetAsyncError(comm_, &state) != ncclSuccess) return false;
  }
  return state == ncclSuccess;
}

std::string NcclSession::Describe(ncclResult_t result) const {
  std::string text = StrCat("NCCL: ", ncclGetErrorString(result));
  const char* detail = ncclGetLastError(comm_);
  if (detail != nullptr && detail[0] != 0) text += StrCat(" (", detail, ")");
  return text;
}

}  // namespace plo
