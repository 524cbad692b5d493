// A NCCL comm that takes host memory, for the tests that all comms share: each
// call copies its operands to the rank's GPU and back, and waits.
#ifndef PLO_TESTS_FRAMEWORK_STAGED_NCCL_COMM_H_
#define PLO_TESTS_FRAMEWORK_STAGED_NCCL_COMM_H_

#include <functional>
#include <memory>
#include <string>

#include "framework/runtime/comm.h"
#include "framework/runtime/device.h"

namespace plo {

// Why there are no GPUs for so many local ranks; empty when there are.
std::string WhyTooFewGpus(int count);

class StagedNcclComm : public Comm {
 public:
  StagedNcclComm(const LaunchInfo& info, const CommOptions& options);
  ~StagedNcclComm() override;

  int rank() const override { return comm_->rank(); }
  int size() const override { return comm_->size(); }
  void AllReduce(void* data, int64_t count, DType dtype, Reduction reduction,
                 void* native_stream) override;
  void ReduceScatter(const void* input, void* output, int64_t slice_count,
                     DType dtype, Reduction reduction,
                     void* native_stream) override;
  void AllGather(const void* input, void* output, int64_t slice_count,
                 DType dtype, void* native_stream) override;
  void Broadcast(void* data, int64_t bytes, int root,
                 void* native_stream) override;
  void Barrier() override { comm_->Barrier(); }
  Comm& host() override { return comm_->host(); }
  void ThrowIfFailed() override { comm_->ThrowIfFailed(); }
  void Abort(const std::string& reason) override { comm_->Abort(reason); }
  int64_t staging_bytes() const override { return comm_->staging_bytes(); }

 private:
  // Calls with device memory that has the contents of [data, data + bytes),
  // then copies it back.
  void Staged(void* data, int64_t bytes,
              const std::function<void(char* data, void* stream)>& call);
  void OnStream(const std::function<void(void* stream)>& call);

  std::unique_ptr<Device> device_;
  std::unique_ptr<Comm> comm_;
  StreamId stream_;
};

}  // namespace plo

#endif  // PLO_TESTS_FRAMEWORK_STAGED_NCCL_COMM_H_
