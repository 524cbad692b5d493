// What the printer and the parser of the text form agree on. Internal.
#ifndef PLO_FRAMEWORK_IR_TEXT_CHARS_H_
#define PLO_FRAMEWORK_IR_TEXT_CHARS_H_

#include <algorithm>
#include <string_view>

#include "framework/ir/types.h"

namespace plo {

inline bool IsWordChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '@' ||
         c == '/' || c == '-';
}

// True if `word` needs no quotes. "//" starts a comment.
inline bool IsBareWord(std::string_view word) {
  return !word.empty() && word.substr(0, 2) != "//" &&
         std::all_of(word.begin(), word.end(), IsWordChar);
}

// Left out of the text.
inline MemoryCategory DefaultCategory(VarKind kind) {
  return kind == VarKind::kParam ? MemoryCategory::kParams
                                 : MemoryCategory::kActivations;
}
inline Role DefaultRole(Section section) {
  return section == Section::kUpdate ? Role::kUpdate : Role::kForward;
}

// True if no control character but white space is in it.
inline bool IsText(std::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char c) {
    return (c & ~0x1f) != 0 || c == '\n' || c == '\t' || c == '\r';
  });
}

// True if `bytes` start as SerializeProto() writes them, in either form.
bool LooksLikeProto(std::string_view bytes);

}  // namespace plo

#endif  // PLO_FRAMEWORK_IR_TEXT_CHARS_H_
