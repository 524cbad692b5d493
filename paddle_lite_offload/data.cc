#include "paddle_lite_offload/data.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <vector>

#include "framework/ir/error.h"
#include "paddle_lite_offload/hasher.h"

namespace plo {
namespace {

// Files up to this size are checked and hashed as a whole: a bad token shows
// before the first step.
constexpr int64_t kCheckedBytes = 64 << 20;
// So many tokens or bytes at a time.
constexpr int64_t kChunk = 1 << 18;
// What is hashed of larger ones.
constexpr int64_t kHashedEnd = 1 << 20;
constexpr int64_t kHashedParts = 1024;
constexpr int64_t kHashedOfPart = 4096;

uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// The place of `index` in a permutation of [0, count) given by `key`: a Feistel
// network over the next power of four, walked until it lands inside.
int64_t Permute(int64_t index, int64_t count, uint64_t key) {
  if (count == 1) return 0;
  const int bits = std::bit_width(static_cast<uint64_t>(count - 1));
  const int half = (bits + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  uint64_t value = static_cast<uint64_t>(index);
  do {
    uint64_t left = value >> half;
    uint64_t right = value & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t mixed = left ^ (Mix(Mix(key + round) ^ right) & mask);
      left = right;
      right = mixed;
    }
    value = left << half | right;
  } while (value >= static_cast<uint64_t>(count));
  return static_cast<int64_t>(value);
}

uint32_t TokenAt(const std::byte* at, int token_bytes) {
  switch (token_bytes) {
    case 1:
      return static_cast<uint32_t>(*at);
    case 2: {
      uint16_t token;
      std::memcpy(&token, at, sizeof(token));
      return token;
    }
    default: {
      uint32_t token;
      std::memcpy(&token, at, sizeof(token));
      return token;
    }
  }
}

}  // namespace

DataFile::DataFile(const std::string& path)
    : path_(path),
      // Non-blocking, because opening a FIFO would wait for its writer.
      fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  PLO_ENFORCE(fd_.valid() || errno != ENOENT, kNotFound, "no file \"", path,
              "\"");
  PLO_ENFORCE(fd_.valid(), kInvalidArgument, "cannot read \"", path,
              "\": ", std::strerror(errno));
  struct stat info {};
  PLO_ENFORCE(fstat(fd_.get(), &info) == 0, kInvalidArgument, "cannot read \"",
              path, "\": ", std::strerror(errno));
  PLO_ENFORCE(!S_ISDIR(info.st_mode), kInvalidArgument, "\"", path,
              "\" is a directory");
  PLO_ENFORCE(S_ISREG(info.st_mode), kInvalidArgument, "\"", path,
              "\" is not a regular file");
  PLO_ENFORCE(info.st_size > 0, kInvalidArgument, "\"", path, "\" is empty");
  bytes_ = info.st_size;
}

void DataFile::Read(int64_t offset, int64_t bytes, std::byte* to) const {
  while (bytes > 0) {
    const ssize_t got =
        pread(fd_.get(), to, static_cast<size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    PLO_ENFORCE(got >= 0, kDataLoss, "cannot read \"", path_,
                "\": ", std::strerror(errno));
    PLO_ENFORCE(got > 0, kDataLoss, "\"", path_, "\" had ", bytes_,
                " bytes when it was opened and has fewer now");
    to += got;
    offset += got;
    bytes -= got;
  }
}

uint64_t DataFile::ContentHash() const {
  Hasher hasher;
  std::vector<std::byte> chunk(kChunk);
  const auto add = [&](int64_t begin, int64_t count) {
    for (int64_t done = 0; done < count; done += kChunk) {
      const int64_t bytes = std::min(kChunk, count - done);
      Read(begin + done, bytes, chunk.data());
      hasher.Add(chunk.data(), static_cast<size_t>(bytes));
    }
  };
  if (bytes_ <= kCheckedBytes) {
    add(0, bytes_);
    return hasher.digest();
  }
  const int64_t part = bytes_ / kHashedParts;
  add(0, kHashedEnd);
  for (int64_t i = 0; i < kHashedParts; ++i) add(i * part, kHashedOfPart);
  add(bytes_ - kHashedEnd, kHashedEnd);
  return hasher.digest();
}

SequenceDataset::SequenceDataset(const std::string& path, int token_bytes,
                                 const SequenceOptions& options)
    : file_(path), token_bytes_(token_bytes), options_(options) {
  PLO_ENFORCE(options.seq_len > 0 && options.vocab_size > 0, kInvalidArgument,
              "seq_len ", options.seq_len, " and vocab_size ",
              options.vocab_size, " must be positive");
  PLO_ENFORCE(file_.bytes() % token_bytes == 0, kInvalidArgument, "\"", path,
              "\" has ", file_.bytes(), " bytes, which is no whole number of ",
              token_bytes, "-byte tokens (vocab_size ", options.vocab_size,
              ")");
  token_count_ = file_.bytes() / token_bytes;
  PLO_ENFORCE(token_count_ > options.seq_len, kInvalidArgument, "\"", path,
              "\" has ", token_count_,
              " tokens, fewer than seq_len + 1 = ", options.seq_len + 1);
  // One window less than fit leaves room to begin elsewhere in each epoch.
  windows_ = std::max<int64_t>(1, (token_count_ - 1) / options.seq_len - 1);
  if (file_.bytes() > kCheckedBytes) return;
  std::vector<int32_t> ids(static_cast<size_t>(std::min(token_count_, kChunk)));
  for (int64_t begin = 0; begin < token_count_; begin += kChunk) {
    Read(begin, std::min(kChunk, token_count_ - begin), ids.data());
  }
}

std::unique_ptr<SequenceDataset> SequenceDataset::OpenText(
    const std::string& path, const SequenceOptions& options) {
  return std::unique_ptr<SequenceDataset>(
      new SequenceDataset(path, 1, options));
}

std::unique_ptr<SequenceDataset> SequenceDataset::OpenTokens(
    const std::string& path, const SequenceOptions& options) {
  const int token_bytes = options.vocab_size <= 65536 ? 2 : 4;
  return std::unique_ptr<SequenceDataset>(
      new SequenceDataset(path, token_bytes, options));
}

void SequenceDataset::Read(int64_t begin, int64_t count, int32_t* ids) const {
  std::vector<std::byte> raw(static_cast<size_t>(count * token_bytes_));
  file_.Read(begin * token_bytes_, count * token_bytes_, raw.data());
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t token = TokenAt(raw.data() + i * token_bytes_, token_bytes_);
    PLO_ENFORCE(token < options_.vocab_size, kInvalidArgument, "token id ",
                token, " at position ", begin + i, " of \"", file_.path(),
                "\" is out of range [0, ", options_.vocab_size, ")");
    ids[i] = static_cast<int32_t>(token);
  }
}

int64_t SequenceDataset::StartOf(int64_t sample) const {
  PLO_ENFORCE(sample >= 0, kInvalidArgument, "sample ", sample);
  const uint64_t key =
      Mix(Mix(options_.seed) ^ static_cast<uint64_t>(sample / windows_));
  const int64_t spare = token_count_ - 1 - windows_ * options_.seq_len;
  const auto shift =
      static_cast<int64_t>(Mix(key ^ 1) % static_cast<uint64_t>(spare + 1));
  return shift + Permute(sample % windows_, windows_, key) * options_.seq_len;
}

void SequenceDataset::Fill(int64_t sample, int32_t* tokens,
                           int32_t* labels) const {
  std::vector<int32_t> ids(static_cast<size_t>(options_.seq_len + 1));
  Read(StartOf(sample), options_.seq_len + 1, ids.data());
  std::copy(ids.begin(), ids.end() - 1, tokens);
  std::copy(ids.begin() + 1, ids.end(), labels);
}

}  // namespace plo
