#include "framework/ir/error.h"

#include <sstream>

namespace plo {

std::string_view ErrorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "InvalidArgument";
    case ErrorCode::kNotFound:
      return "NotFound";
    case ErrorCode::kFailedPrecondition:
      return "FailedPrecondition";
    case ErrorCode::kOutOfMemory:
      return "OutOfMemory";
    case ErrorCode::kUnimplemented:
      return "Unimplemented";
    case ErrorCode::kUnavailable:
      return "Unavailable";
    case ErrorCode::kDataLoss:
      return "DataLoss";
    case ErrorCode::kInternal:
      return "Internal";
  }
  return "Unknown";
}

void StrCatPiece::WriteTo(std::ostream& out) const {
  if (write_ != nullptr) {
    write_(out, value_);
  } else {
    out << std::string_view(static_cast<const char*>(value_), length_);
  }
}

std::string StrCatPieces(std::initializer_list<StrCatPiece> pieces) {
  std::ostringstream out;
  for (const StrCatPiece& piece : pieces) piece.WriteTo(out);
  return out.str();
}

void ThrowError(ErrorCode code, std::initializer_list<StrCatPiece> message) {
  throw Error(code, StrCatPieces(message));
}

}  // namespace plo
