#include "paddle_lite_offload/data.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "framework/ir/error.h"
#include "framework/runtime/socket_utils.h"
#include "paddle_lite_offload/hasher.h"

namespace plo {
namespace {

// Files up to this size are checked and hashed as a whole: a bad token shows
// before the first step.
constexpr int64_t kCheckedBytes = 64 << 20;
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

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  // Non-blocking, because opening a FIFO would wait for its writer.
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  PLO_ENFORCE(fd.valid() || errno != ENOENT, kNotFound, "no file \"", path,
              "\"");
  PLO_ENFORCE(fd.valid(), kInvalidArgument, "cannot read \"", path,
              "\": ", std::strerror(errno));
  struct stat info {};
  PLO_ENFORCE(fstat(fd.get(), &info) == 0, kInvalidArgument, "cannot read \"",
              path, "\": ", std::strerror(errno));
  PLO_ENFORCE(!S_ISDIR(info.st_mode), kInvalidArgument, "\"", path,
              "\" is a directory");
  PLO_ENFORCE(S_ISREG(info.st_mode), kInvalidArgument, "\"", path,
              "\" is not a regular file");
  PLO_ENFORCE(info.st_size > 0, kInvalidArgument, "\"", path, "\" is empty");
  bytes_ = info.st_size;
  void* data = mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ,
                    MAP_PRIVATE, fd.get(), 0);
  PLO_ENFORCE(data != MAP_FAILED, kInvalidArgument, "cannot read \"", path,
              "\": ", std::strerror(errno));
  data_ = static_cast<const std::byte*>(data);
}

MappedFile::~MappedFile() {
  munmap(const_cast<std::byte*>(data_), static_cast<size_t>(bytes_));
}

uint64_t MappedFile::ContentHash() const {
  Hasher hasher;
  const auto add = [&](int64_t begin, int64_t count) {
    hasher.Add(data_ + begin, static_cast<size_t>(count));
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
  if (file_.bytes() <= kCheckedBytes) CheckTokens(0, token_count_);
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

uint32_t SequenceDataset::TokenAt(int64_t position) const {
  const std::byte* at = file_.data() + position * token_bytes_;
  switch (token_bytes_) {
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

void SequenceDataset::CheckTokens(int64_t begin, int64_t count) const {
  for (int64_t position = begin; position < begin + count; ++position) {
    const uint32_t token = TokenAt(position);
    PLO_ENFORCE(token < options_.vocab_size, kInvalidArgument, "token id ",
                token, " at position ", position, " of \"", file_.path(),
                "\" is out of range [0, ", options_.vocab_size, ")");
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
  const int64_t start = StartOf(sample);
  if (file_.bytes() > kCheckedBytes) CheckTokens(start, options_.seq_len + 1);
  for (int64_t i = 0; i < options_.seq_len; ++i) {
    tokens[i] = static_cast<int32_t>(TokenAt(start + i));
    labels[i] = static_cast<int32_t>(TokenAt(start + i + 1));
  }
}

}  // namespace plo
