#include "coordinator/text/unicode/utf8.h"

#include <algorithm>

namespace lime {
namespace {

struct Lead {
  int length;  // bytes of the character; 0: no character begins with this byte
  // Bounds of the second byte. They exclude overlong forms, surrogates, and code points above
  // U+10FFFF.
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
};

Lead ClassifyLead(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

}  // namespace

Utf8Char DecodeUtf8(std::string_view text) {
  const auto byte = [&](int i) { return static_cast<uint8_t>(text[i]); };
  const Lead lead = ClassifyLead(byte(0));
  if (lead.length == 1) return {byte(0), 1, true, false};
  if (lead.length == 0) return {0xFFFD, 1, false, false};
  char32_t code = byte(0) & (0x7F >> lead.length);
  for (int i = 1; i < lead.length; ++i) {
    if (static_cast<size_t>(i) == text.size()) return {0xFFFD, i, false, true};
    const bool good = i == 1 ? byte(1) >= lead.low && byte(1) <= lead.high : (byte(i) & 0xC0) == 0x80;
    if (!good) return {0xFFFD, i, false, false};
    code = code << 6 | (byte(i) & 0x3F);
  }
  return {code, lead.length, true, false};
}

void AppendUtf8(char32_t code, std::string& out) {
  const auto tail = [&](int shift) { out.push_back(static_cast<char>(0x80 | (code >> shift & 0x3F))); };
  if (code < 0x80) {
    out.push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    out.push_back(static_cast<char>(0xC0 | code >> 6));
    tail(0);
  } else if (code < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | code >> 12));
    tail(6);
    tail(0);
  } else {
    out.push_back(static_cast<char>(0xF0 | code >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Char next = DecodeUtf8(text);
    if (!next.ok) return false;
    text.remove_prefix(next.length);
  }
  return true;
}

void AppendLossyUtf8(std::string_view text, std::string& out) {
  while (!text.empty()) {
    const Utf8Char next = DecodeUtf8(text);
    out.append(next.ok ? text.substr(0, next.length) : kReplacementCharacter);
    text.remove_prefix(next.length);
  }
}

void AppendLossyUtf8ByByte(std::string_view text, std::string& out) {
  while (!text.empty()) {
    const Utf8Char next = DecodeUtf8(text);
    if (next.ok) out.append(text.substr(0, next.length));
    for (int i = 0; i < next.length && !next.ok; ++i) out.append(kReplacementCharacter);
    text.remove_prefix(next.length);
  }
}

size_t IncompleteUtf8Suffix(std::string_view text) {
  for (size_t length = std::min<size_t>(3, text.size()); length > 0; --length) {
    const Utf8Char last = DecodeUtf8(text.substr(text.size() - length));
    if (last.truncated && static_cast<size_t>(last.length) == length) return length;
  }
  return 0;
}

}  // namespace lime
