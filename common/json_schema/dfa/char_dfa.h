// A deterministic automaton over the characters (code points) of a string: what `pattern`,
// `format`, the bounds of the length and the names of properties allow together.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/json_schema/dfa/byte_dfa.h"

namespace lime::json_schema {

inline constexpr uint32_t kLastCodePoint = 0x10FFFF;

// How characters become bytes.
enum class Spelling : uint8_t {
  kJson,  // a JSON string with its quotes; escapes stand only where JSON needs one, in one form
  kRaw,   // UTF-8
};

struct CharRange {
  uint32_t first = 0, last = 0;
  int to = 0;
};

class CharDfa {
 public:
  static constexpr size_t kMaxStates = 8192;

  struct State {
    bool accepts = false;
    std::vector<CharRange> ranges;  // ascending; what is between them is refused
  };

  // Any string with so many characters. ResourceExhausted beyond kMaxStates.
  static absl::StatusOr<CharDfa> OfLength(int64_t min, int64_t max);
  // Any string but these.
  static absl::StatusOr<CharDfa> AllBut(const std::vector<std::string>& strings);
  static absl::StatusOr<CharDfa> Intersect(const CharDfa& a, const CharDfa& b);

  // The first state is where it starts.
  std::vector<State>& states() { return states_; }
  const std::vector<State>& states() const { return states_; }

  bool Matches(std::string_view utf8) const;
  // For kRaw, `stop` follows the string. Strings with the first character of `stop` are left out,
  // so that the first `stop` is the end.
  absl::StatusOr<ByteDfaPtr> ToBytes(Spelling spelling, std::string_view stop, const ByteSet& writable) const;

 private:
  std::vector<State> states_;
};

// The code points of UTF-8; ill-formed bytes become U+FFFD.
std::vector<uint32_t> CodePoints(std::string_view utf8);

}  // namespace lime::json_schema
