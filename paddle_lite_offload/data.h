// Token sequences from files.
#ifndef PLO_PADDLE_LITE_OFFLOAD_DATA_H_
#define PLO_PADDLE_LITE_OFFLOAD_DATA_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "framework/runtime/socket_utils.h"

namespace plo {

// A file read piece by piece: a mapping would end the process with SIGBUS when
// someone shortens the file. Thread-safe once built.
class DataFile {
 public:
  // Throws NotFound, or InvalidArgument for what is no readable, non-empty
  // regular file; the message names the path.
  explicit DataFile(const std::string& path);

  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }  // when it was opened
  // Throws DataLoss when the file has become shorter or fails to be read.
  void Read(int64_t offset, int64_t bytes, std::byte* to) const;
  // Of all bytes up to 64 MiB; of larger files the first and the last MiB and a
  // page in each of 1024 equal parts, so that no run waits for its data to be
  // read twice.
  uint64_t ContentHash() const;

 private:
  const std::string path_;
  Fd fd_;
  int64_t bytes_ = 0;
};

struct SequenceOptions {
  int64_t seq_len = 128;
  int64_t vocab_size = 256;
  uint64_t seed = 0;
};

// Windows of seq_len tokens and the token that follows each. Which window a
// sample is depends on the seed and the sample's number in the run alone. One
// epoch visits every window once, in an order and from a first token of its
// own. Thread-safe once built.
class SequenceDataset {
 public:
  // Windows of one epoch.
  int64_t epoch_samples() const { return windows_; }
  int64_t token_count() const { return token_count_; }
  const DataFile& file() const { return file_; }
  // Position in the file of the first token of a sample.
  int64_t StartOf(int64_t sample) const;
  // Writes seq_len tokens and labels (the next tokens). Throws InvalidArgument
  // naming a token outside the vocabulary and its position.
  void Fill(int64_t sample, int32_t* tokens, int32_t* labels) const;

  // One token per byte of the file.
  static std::unique_ptr<SequenceDataset> OpenText(
      const std::string& path, const SequenceOptions& options);
  // Ids in the machine's byte order: uint16 where the vocabulary fits, else
  // uint32.
  static std::unique_ptr<SequenceDataset> OpenTokens(
      const std::string& path, const SequenceOptions& options);

 private:
  SequenceDataset(const std::string& path, int token_bytes,
                  const SequenceOptions& options);
  // Reads and checks the ids of `count` tokens.
  void Read(int64_t begin, int64_t count, int32_t* ids) const;

  const DataFile file_;
  const int token_bytes_;
  const SequenceOptions options_;
  int64_t token_count_ = 0;
  int64_t windows_ = 0;
};

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_DATA_H_
