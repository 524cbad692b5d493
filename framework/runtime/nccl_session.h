// One NCCL communicator that never blocks its caller for good: every wait polls
// and can be ended from another thread.
#ifndef PLO_FRAMEWORK_RUNTIME_NCCL_SESSION_H_
#define PLO_FRAMEWORK_RUNTIME_NCCL_SESSION_H_

#include <nccl.h>

#include <functional>
#include <mutex>
#include <string>

#include "framework/ir/error.h"

namespace plo {

class NcclSession {
 public:
  // Throws when the wait it is called from is to end.
  using Check = std::function<void()>;
  using Call = std::function<ncclResult_t(ncclComm_t)>;

  // Connects the ranks that have this id; on the current device. Throws
  // Unavailable when that takes longer than the time limit.
  NcclSession(const ncclUniqueId& id, int rank, int size,
              double timeout_seconds, const Check& check);
  // Ends an open communicator together with the other ranks, or alone when they
  // are not there.
  ~NcclSession();
  NcclSession(const NcclSession&) = delete;
  NcclSession& operator=(const NcclSession&) = delete;

  // Enqueues a collective and returns when NCCL has done so. Throws Unavailable
  // when it fails or is not accepted within the time limit, as it is when the
  // others do not take part in the first ones.
  void Enqueue(const Call& call, const Check& check);
  // What went wrong in the background; empty while nothing has. Never waits.
  std::string AsyncError();
  // Ends the collectives under way, on the GPU too. From any thread, once the
  // comm has failed.
  void Abort();

 private:
  void AwaitReady(const Check& check);
  // Whether NCCL finished its part within `seconds`.
  bool Finalize(double seconds);
  std::string Describe(ncclResult_t result) const;

  const double timeout_seconds_;
  std::timed_mutex mutex_;     // held during calls into NCCL
  ncclComm_t comm_ = nullptr;  // null after an abort
};

}  // namespace plo

#endif  // PLO_FRAMEWORK_RUNTIME_NCCL_SESSION_H_
