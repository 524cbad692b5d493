#include "framework/runtime/stream_marks.h"

#include <atomic>

#include "framework/runtime/cuda_driver.h"

namespace plo {
namespace {

void EnqueueWrite(void* native_stream, uint64_t* word, uint64_t value) {
  static const auto write_value =
      DriverFunction<PFN_cuStreamWriteValue64_v11070>("cuStreamWriteValue64");
  const CUresult status =
      write_value(static_cast<CUstream>(native_stream),
                  static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(word)),
                  value, CU_STREAM_WRITE_VALUE_DEFAULT);
  PLO_ENFORCE(status == CUDA_SUCCESS, kInternal, "cuStreamWriteValue64: error ",
              static_cast<int>(status));
}

uint64_t Load(uint64_t& word) {
  return std::atomic_ref(word).load(std::memory_order_acquire);
}

}  // namespace

StreamMarks::StreamMarks() {
  void* memory = nullptr;
  CheckCuda(cudaHostAlloc(&memory, sizeof(Words),
                          cudaHostAllocMapped | cudaHostAllocPortable),
            "cudaHostAlloc");
  words_ = new (memory) Words{};
}

StreamMarks::~StreamMarks() { cudaFreeHost(words_); }

void StreamMarks::EnqueueStarted(void* native_stream, uint64_t number) {
  EnqueueWrite(native_stream, &words_->started, number);
}
void StreamMarks::EnqueueFinished(void* native_stream, uint64_t number) {
  EnqueueWrite(native_stream, &words_->finished, number);
}
uint64_t StreamMarks::started() const { return Load(words_->started); }
uint64_t StreamMarks::finished() const { return Load(words_->finished); }

}  // namespace plo
