#include "coordinator/text/tools/json_scanner.h"

#include "planner/base/json_text.h"

namespace lime {
namespace {

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

// -1 if it is none.
int HexValue(char c) {
  if (IsDigit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

JsonScanner::Step JsonScanner::Go(Expect next) {
  expect_ = next;
  return Step::kMore;
}

JsonScanner::Step JsonScanner::Open(bool object) {
  if (objects_.size() >= static_cast<size_t>(kMaxJsonDepth)) return Step::kRefused;
  objects_.push_back(object);
  return Go(object ? Expect::kKeyOrEnd : Expect::kItemOrEnd);
}

JsonScanner::Step JsonScanner::Close(bool object) {
  if (objects_.empty() || objects_.back() != object) return Step::kRefused;
  objects_.pop_back();
  if (objects_.empty()) return Step::kOver;
  return Go(Expect::kCommaOrEnd);
}

JsonScanner::Step JsonScanner::BeginString(bool key) {
  is_key_ = key;
  return Go(Expect::kString);
}

JsonScanner::Step JsonScanner::EndString() {
  if (is_key_) return Go(Expect::kColon);
  if (objects_.empty()) return Step::kOver;
  return Go(Expect::kCommaOrEnd);
}

JsonScanner::Step JsonScanner::BeginValue(char c) {
  if (c == '{' || c == '[') return Open(c == '{');
  if (c == '"') return BeginString(false);
  if (objects_.empty()) return Step::kRefused;
  if (c == '-') return Go(Expect::kMinus);
  if (IsDigit(c)) return Go(c == '0' ? Expect::kZero : Expect::kInteger);
  for (const std::string_view literal : {"true", "false", "null"}) {
    if (c != literal[0]) continue;
    literal_ = literal.substr(1);
    return Go(Expect::kLiteral);
  }
  return Step::kRefused;
}

JsonScanner::Step JsonScanner::ReadLiteral(char c) {
  if (c != literal_[0]) return Step::kRefused;
  literal_.remove_prefix(1);
  return Go(literal_.empty() ? Expect::kCommaOrEnd : Expect::kLiteral);
}

JsonScanner::Step JsonScanner::ReadString(char c) {
  switch (expect_) {
    case Expect::kEscape:
      if (c == 'u') {
        hex_ = 0;
        hex_digits_ = 0;
        return Go(Expect::kHex);
      }
      return std::string_view("\"\\/bfnrt").find(c) == std::string_view::npos ? Step::kRefused : Go(Expect::kString);
    case Expect::kHex:
      return ReadHex(c);
    case Expect::kLowEscape:
      return c == '\\' ? Go(Expect::kLowU) : Step::kRefused;
    case Expect::kLowU:
      if (c != 'u') return Step::kRefused;
      hex_ = 0;
      hex_digits_ = 0;
      low_half_ = true;
      return Go(Expect::kHex);
    default:
      if (c == '"') return EndString();
      if (c == '\\') return Go(Expect::kEscape);
      return static_cast<unsigned char>(c) < 0x20 ? Step::kRefused : Step::kMore;
  }
}

// Halves of surrogate pairs come in pairs.
JsonScanner::Step JsonScanner::ReadHex(char c) {
  const int value = HexValue(c);
  if (value < 0) return Step::kRefused;
  hex_ = hex_ * 16 + static_cast<uint32_t>(value);
  if (++hex_digits_ < 4) return Step::kMore;
  const bool is_low = hex_ >= 0xDC00 && hex_ < 0xE000;
  if (is_low != low_half_) return Step::kRefused;
  low_half_ = false;
  return Go(hex_ >= 0xD800 && hex_ < 0xDC00 ? Expect::kLowEscape : Expect::kString);
}

JsonScanner::Step JsonScanner::ReadNumber(char c) {
  switch (expect_) {
    case Expect::kMinus:
      return !IsDigit(c) ? Step::kRefused : Go(c == '0' ? Expect::kZero : Expect::kInteger);
    case Expect::kPoint:
      return IsDigit(c) ? Go(Expect::kFraction) : Step::kRefused;
    case Expect::kExponent:
      if (c == '+' || c == '-') return Go(Expect::kExponentSign);
      [[fallthrough]];
    case Expect::kExponentSign:
      return IsDigit(c) ? Go(Expect::kExponentDigits) : Step::kRefused;
    default:
      break;
  }
  // The number may end here.
  if (IsDigit(c)) return expect_ == Expect::kZero ? Step::kRefused : Step::kMore;
  const bool is_integer = expect_ == Expect::kZero || expect_ == Expect::kInteger;
  if (c == '.' && is_integer) return Go(Expect::kPoint);
  if ((c == 'e' || c == 'E') && expect_ != Expect::kExponentDigits) return Go(Expect::kExponent);
  expect_ = Expect::kCommaOrEnd;
  return Read(c);
}

JsonScanner::Step JsonScanner::Read(char c) {
  if (expect_ >= Expect::kMinus) return ReadNumber(c);
  if (expect_ == Expect::kLiteral) return ReadLiteral(c);
  if (expect_ >= Expect::kString) return ReadString(c);
  if (IsBlank(c)) return Step::kMore;
  switch (expect_) {
    case Expect::kItemOrEnd:
      return c == ']' ? Close(false) : BeginValue(c);
    case Expect::kKeyOrEnd:
      if (c == '}') return Close(true);
      [[fallthrough]];
    case Expect::kKey:
      return c == '"' ? BeginString(true) : Step::kRefused;
    case Expect::kColon:
      return c == ':' ? Go(Expect::kValue) : Step::kRefused;
    case Expect::kCommaOrEnd:
      if (c == ',') return Go(objects_.back() ? Expect::kKey : Expect::kValue);
      return c == '}' || c == ']' ? Close(c == '}') : Step::kRefused;
    default:
      return BeginValue(c);
  }
}

}  // namespace lime
