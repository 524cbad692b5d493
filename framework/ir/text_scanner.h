// The characters of the text form: blanks, words, strings, numbers, lists. The
// base of the parser (program_parse.cc). Internal.
#ifndef PLO_FRAMEWORK_IR_TEXT_SCANNER_H_
#define PLO_FRAMEWORK_IR_TEXT_SCANNER_H_

#include <charconv>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "framework/ir/error.h"
#include "framework/ir/program.h"
#include "framework/ir/text_chars.h"

namespace plo {

// Errors are InvalidArgument with line and column.
class TextScanner {
 public:
  explicit TextScanner(std::string_view text) : text_(text) {}

 protected:
  [[noreturn]] void Fail(const std::string& message) const {
    FailAt(pos_, message);
  }
  [[noreturn]] void FailAt(size_t pos, const std::string& message) const {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < pos && i < text_.size(); ++i) {
      ++column;
      if (text_[i] == '\n') {
        ++line;
        column = 1;
      }
    }
    PLO_THROW(kInvalidArgument, "program text, line ", line, ", column ",
              column, ": ", message);
  }

  bool AtEnd() const { return pos_ >= text_.size(); }
  bool Peek(char c) const { return !AtEnd() && text_[pos_] == c; }
  bool PeekDigit() const {
    return !AtEnd() && text_[pos_] >= '0' && text_[pos_] <= '9';
  }
  // Blanks within a line.
  void SkipSpace() {
    while (Peek(' ') || Peek('\t') || Peek('\r')) ++pos_;
    if (text_.substr(pos_, 2) == "//") {
      while (!AtEnd() && text_[pos_] != '\n') ++pos_;
    }
  }
  // Blanks and line ends.
  void SkipBlank() {
    SkipSpace();
    while (Peek('\n')) {
      ++pos_;
      SkipSpace();
    }
  }
  bool Accept(char c) {
    SkipSpace();
    if (!Peek(c)) return false;
    ++pos_;
    return true;
  }
  void Expect(char c) {
    if (Accept(c)) return;
    Fail(StrCat("expected '", c, "'",
                AtEnd() ? ", found the end of the text"
                        : StrCat(", found '", text_[pos_], "'")));
  }
  void ExpectKeyword(std::string_view keyword) {
    const size_t start = pos_;
    if (Word(keyword) != keyword) {
      FailAt(start, StrCat("expected '", keyword, "'"));
    }
  }

  std::string Word(std::string_view what) {
    SkipSpace();
    if (Peek('"')) return Quoted();
    const size_t start = pos_;
    while (!AtEnd() && IsWordChar(text_[pos_])) ++pos_;
    if (start == pos_) Fail(StrCat("expected ", what));
    return std::string(text_.substr(start, pos_ - start));
  }

  int HexDigit() {
    if (AtEnd()) Fail("the string does not end");
    const char c = text_[pos_++];
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    FailAt(pos_ - 1, "expected a hexadecimal digit");
  }

  std::string Quoted() {
    SkipSpace();
    const size_t start = pos_;
    Expect('"');
    std::string out;
    while (!AtEnd() && text_[pos_] != '"' && text_[pos_] != '\n') {
      char c = text_[pos_++];
      if (c == '\\' && !AtEnd()) {
        c = text_[pos_++];
        if (c == 'n') {
          c = '\n';
        } else if (c == 'x') {
          const int high = HexDigit();
          c = static_cast<char>(high * 16 + HexDigit());
        } else if (c != '"' && c != '\\') {
          FailAt(pos_ - 1, StrCat("unknown escape '\\", c, "'"));
        }
      }
      out += c;
    }
    if (!Peek('"')) FailAt(start, "the string does not end on its line");
    ++pos_;
    return out;
  }

  // The characters of a number.
  std::string_view Digits() {
    SkipSpace();
    const size_t start = pos_;
    while (!AtEnd() && (IsWordChar(text_[pos_]) || text_[pos_] == '+')) {
      // A plus belongs to a number only as the sign of its exponent.
      if (text_[pos_] == '+' && (pos_ == start || text_[pos_ - 1] != 'e')) {
        break;
      }
      ++pos_;
    }
    return text_.substr(start, pos_ - start);
  }

  template <typename T>
  static bool ReadNumber(std::string_view digits, T* value) {
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), *value);
    return error == std::errc() && end == digits.data() + digits.size();
  }

  int64_t Int() {
    SkipSpace();
    const size_t start = pos_;
    int64_t value = 0;
    const std::string_view digits = Digits();
    if (!ReadNumber(digits, &value)) {
      FailAt(start, StrCat("expected a 64-bit integer, found '", digits, "'"));
    }
    return value;
  }
  int32_t Int32() {
    SkipSpace();
    const size_t start = pos_;
    const int64_t value = Int();
    if (value < 0 || value >= std::numeric_limits<int32_t>::max()) {
      FailAt(start, StrCat(value, " is out of range"));
    }
    return static_cast<int32_t>(value);
  }
  double Float() {
    SkipSpace();
    const size_t start = pos_;
    double value = 0;
    const std::string_view digits = Digits();
    if (!ReadNumber(digits, &value)) {
      FailAt(start, StrCat("expected a number, found '", digits, "'"));
    }
    return value;
  }
  bool Bool() {
    SkipSpace();
    const size_t start = pos_;
    const std::string word = Word("true or false");
    if (word == "true") return true;
    if (word != "false") FailAt(start, "expected true or false");
    return false;
  }
  OpId OpNumber() {
    Expect('#');
    return Int32();
  }

  template <typename Item>
  auto List(Item item) {
    std::vector<decltype(item())> items;
    Expect('[');
    if (!Accept(']')) {
      do {
        items.push_back(item());
      } while (Accept(','));
      Expect(']');
    }
    return items;
  }

  // Runs `body`, giving errors of the value just read its position.
  template <typename Body>
  auto Located(size_t start, Body body) {
    try {
      return body();
    } catch (const Error& error) {
      FailAt(start, error.message());
    }
  }

  std::string_view text_;
  size_t pos_ = 0;
};

}  // namespace plo

#endif  // PLO_FRAMEWORK_IR_TEXT_SCANNER_H_
