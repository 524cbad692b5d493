// A hash of bytes that is fast enough for models and data sets.
#ifndef PLO_PADDLE_LITE_OFFLOAD_HASHER_H_
#define PLO_PADDLE_LITE_OFFLOAD_HASHER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace plo {

// FNV-1a over words of eight bytes, so that billions of bytes take seconds; the
// last word of what is added at once is padded with zeros. The final mixing
// spreads late words over all digits.
class Hasher {
 public:
  void Add(const void* data, size_t bytes);
  void Add(std::string_view text);  // and its length
  uint64_t digest() const;

 private:
  uint64_t state_ = 0xcbf29ce484222325ull;
};

// 16 hexadecimal digits.
std::string DigestText(uint64_t digest);

}  // namespace plo

#endif  // PLO_PADDLE_LITE_OFFLOAD_HASHER_H_
