#include "paddle_lite_offload/hasher.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace plo {

void Hasher::Add(const void* data, size_t bytes) {
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

void Hasher::Add(std::string_view text) {
  const uint64_t length = text.size();
  Add(&length, sizeof(length));
  Add(text.data(), text.size());
}

uint64_t Hasher::digest() const {
  uint64_t x = state_;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

std::string DigestText(uint64_t digest) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx",
                static_cast<unsigned long long>(digest));
  return text;
}

}  // namespace plo
