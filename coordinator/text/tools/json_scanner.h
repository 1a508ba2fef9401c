// Reads JSON one byte at a time and says where it stops being JSON.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace lime {

// Blanks of JSON.
inline bool IsBlank(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

// One value that begins with a bracket or a quote: an object, an array or a string. Its end is then
// certain at its last byte. Does not check UTF-8.
class JsonScanner {
 public:
  enum class Step {
    kMore,     // the byte belongs to the value, which goes on
    kOver,     // the byte is the last of the value
    kRefused,  // no JSON goes on like this, or it is deeper than kMaxJsonDepth
  };

  // Do not call it again after kOver or kRefused; Reset begins another value.
  Step Read(char c);
  void Reset() { *this = JsonScanner(); }

 private:
  enum class Expect : uint8_t {
    kValue,
    kItemOrEnd,  // behind [
    kKeyOrEnd,   // behind {
    kKey,
    kColon,
    kCommaOrEnd,
    kString,
    kEscape,
    kHex,
    kLowEscape,  // the backslash of the second half of a surrogate pair
    kLowU,       // its u
    kLiteral,    // the rest of true, false or null
    kMinus,
    kZero,
    kInteger,
    kPoint,
    kFraction,
    kExponent,
    kExponentSign,
    kExponentDigits,
  };

  Step Open(bool object);
  Step Close(bool object);
  Step BeginValue(char c);
  Step BeginString(bool key);
  Step EndString();
  Step ReadString(char c);
  Step ReadHex(char c);
  Step ReadLiteral(char c);
  Step ReadNumber(char c);
  Step Go(Expect next);

  Expect expect_ = Expect::kValue;
  std::vector<bool> objects_;  // the open objects (true) and arrays
  bool is_key_ = false;        // of the string
  bool low_half_ = false;      // of the escape
  int hex_digits_ = 0;
  uint32_t hex_ = 0;
  std::string_view literal_;  // what is still to come
};

}  // namespace lime
