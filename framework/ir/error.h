// The one exception type of the library and the macros that throw it.
//
// A message names what is wrong and with what: the op and its index, the var
// names, the offending shapes. Layers that know more than the thrower add it
// with WithContext() and rethrow.
#ifndef PLO_FRAMEWORK_IR_ERROR_H_
#define PLO_FRAMEWORK_IR_ERROR_H_

#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <ostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace plo {

enum class ErrorCode {
  kInvalidArgument,
  kNotFound,
  kFailedPrecondition,
  kOutOfMemory,
  kUnimplemented,
  kUnavailable,
  kDataLoss,
  kInternal,
};

// "InvalidArgument", "NotFound", ...
std::string_view ErrorCodeName(ErrorCode code);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message)
      : std::runtime_error(std::string(ErrorCodeName(code)) + ": " + message),
        code_(code),
        message_(message) {}

  ErrorCode code() const { return code_; }
  // Without the code name that what() starts with.
  const std::string& message() const { return message_; }
  // The same error with "context: " in front of its message.
  Error WithContext(std::string_view context) const {
    return Error(code_, std::string(context) + ": " + message_);
  }

 private:
  ErrorCode code_;
  std::string message_;
};

// A printable argument of StrCat: where the value is and how to write it. Keeps
// the hundreds of call sites small; only the writer depends on the type.
class StrCatPiece {
 public:
  // NOLINTBEGIN(google-explicit-constructor)
  StrCatPiece(std::string_view text)
      : value_(text.data()), length_(text.size()) {}
  StrCatPiece(const std::string& text) : StrCatPiece(std::string_view(text)) {}
  StrCatPiece(const char* text) : StrCatPiece(std::string_view(text)) {}
  template <typename T>
  requires(!std::convertible_to<const T&, std::string_view>)
      StrCatPiece(const T& value)
      : value_(&value), write_([](std::ostream& out, const void* object) {
          out << *static_cast<const T*>(object);
        }) {}
  // NOLINTEND(google-explicit-constructor)

  void WriteTo(std::ostream& out) const;

 private:
  const void* value_;
  size_t length_ = 0;  // of text, which has no writer
  void (*write_)(std::ostream&, const void*) = nullptr;
};

std::string StrCatPieces(std::initializer_list<StrCatPiece> pieces);

template <typename... Args>
std::string StrCat(const Args&... args) {
  return StrCatPieces({StrCatPiece(args)...});
}

[[noreturn]] void ThrowError(ErrorCode code,
                             std::initializer_list<StrCatPiece> message);

}  // namespace plo

// PLO_THROW(kInvalidArgument, "heads ", heads, " does not divide hidden ", h);
#define PLO_THROW(code, ...) \
  ::plo::ThrowError(::plo::ErrorCode::code, {__VA_ARGS__})

// PLO_ENFORCE(condition, kInvalidArgument, "message pieces", value, ...);
#define PLO_ENFORCE(condition, code, ...)           \
  do {                                              \
    if (!(condition)) PLO_THROW(code, __VA_ARGS__); \
  } while (false)

#endif  // PLO_FRAMEWORK_IR_ERROR_H_
