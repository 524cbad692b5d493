// Marks on a CUDA stream that tell the host, without a call into the driver,
// which collective the stream has reached and which one it has completed.
#ifndef PLO_FRAMEWORK_RUNTIME_STREAM_MARKS_H_
#define PLO_FRAMEWORK_RUNTIME_STREAM_MARKS_H_

#include <cstdint>

namespace plo {

// Of the device current at construction. Enqueued by one thread at a time; read
// by any.
class StreamMarks {
 public:
  StreamMarks();
  ~StreamMarks();
  StreamMarks(const StreamMarks&) = delete;
  StreamMarks& operator=(const StreamMarks&) = delete;

  // The stream stores the number when it gets there. Numbers ascend from 1.
  void EnqueueStarted(void* native_stream, uint64_t number);
  void EnqueueFinished(void* native_stream, uint64_t number);
  uint64_t started() const;
  uint64_t finished() const;

 private:
  // On cache lines of their own.
  struct Words {
    alignas(64) uint64_t started;
    alignas(64) uint64_t finished;
  };
  Words* words_ = nullptr;  // pinned
};

}  // namespace plo

#endif  // PLO_FRAMEWORK_RUNTIME_STREAM_MARKS_H_
