#include "paddle_lite_offload/param_digest.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

namespace plo {
namespace {

// FNV-1a over words of eight bytes, so that models of billions of params take
// seconds; the last word is padded with zeros. The final mixing spreads late
// words over all digits.
class Hasher {
 public:
  void Add(const void* data, size_t bytes) {
    const auto* at = static_cast<const unsigned char*>(data);
    for (size_t left = bytes; left > 0;) {
      const size_t taken = std::min<size_t>(left, 8);
      uint64_t word = 0;
      std::memcpy(&word, at, taken);
      state_ = (state_ ^ word) * 0x100000001b3ull;
      state_ ^= state_ >> 32;
      at += taken;
      left -= taken;
    }
  }
  void Add(std::string_view text) {
    const uint64_t length = text.size();
    Add(&length, sizeof(length));
    Add(text.data(), text.size());
  }
  uint64_t digest() const {
    uint64_t x = state_;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
  }

 private:
  uint64_t state_ = 0xcbf29ce484222325ull;
};

}  // namespace

uint64_t ParamDigest(Executor& executor) {
  const Program& program = executor.program();
  std::vector<std::string> names;
  for (VarId id : program.Params()) names.push_back(program.var(id).name);
  std::sort(names.begin(), names.end());
  Hasher hasher;
  for (const std::string& name : names) {
    const HostTensor tensor = executor.ReadVar(name);
    hasher.Add(name);
    hasher.Add(DTypeName(tensor.dtype));
    hasher.Add(tensor.shape.ToString());
    hasher.Add(tensor.data.data(), tensor.data.size());
  }
  return hasher.digest();
}

std::string DigestText(uint64_t digest) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx",
                static_cast<unsigned long long>(digest));
  return text;
}

}  // namespace plo
