// Checks bounds of message fields; the error names the first wrong one. Also makes text safe to
// send or show.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "planner/base/status.h"

namespace lime::fields {

inline constexpr int64_t kMaxCount = std::numeric_limits<int64_t>::max();
inline constexpr size_t kMaxName = 512;
inline constexpr size_t kMaxSentence = 4096;
inline constexpr int32_t kMaxLayer = 100'000;

template <typename... What>
absl::Status Wrong(const What&... what) {
  return Invalid("message: ", what...);
}

inline absl::Status Within(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Wrong("field \"", field, "\" = ", value, " is outside ", low, " to ", high);
}

inline absl::Status Between(const char* field, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();  // false for NaN
  return Wrong("field \"", field, "\" = ", value, " is outside ", low, " to ", high);
}

inline absl::Status Milliseconds(const char* field, double value) {
  if (std::isfinite(value) && value >= 0) return absl::OkStatus();
  return Wrong("field \"", field, "\" = ", value, " is not a time");
}

inline absl::Status Printable(const char* field, std::string_view text, size_t most) {
  if (text.size() > most) return Wrong("field \"", field, "\" has ", text.size(), " bytes, the limit is ", most);
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::ranges::any_of(text, control)) return Wrong("field \"", field, "\" holds control characters");
  return absl::OkStatus();
}

// Makes another program's error text safe for a terminal.
inline std::string Sentence(std::string_view text) {
  std::string sentence(text.substr(0, kMaxSentence));
  std::ranges::replace_if(
      sentence, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, ' ');
  return sentence;
}

// The same, in ASCII. Protobuf strings are UTF-8, but an error may quote other bytes from a file.
inline std::string Ascii(std::string_view text) {
  std::string sentence = Sentence(text);
  std::ranges::replace_if(
      sentence, [](char c) { return static_cast<unsigned char>(c) > 0x7f; }, '?');
  return sentence;
}

// The first `most` bytes of a name for people, with other characters replaced by '?'.
inline std::string Plain(std::string_view text, size_t most) {
  std::string plain(text.substr(0, most));
  std::ranges::replace_if(
      plain, [](char c) { return static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e; }, '?');
  return plain;
}

inline std::string PlainName(std::string_view name) {
  return Plain(name, kMaxName);
}

}  // namespace lime::fields
