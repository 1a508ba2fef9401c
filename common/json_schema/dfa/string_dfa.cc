#include "common/json_schema/dfa/string_dfa.h"

#include <algorithm>
#include <array>
#include <map>

namespace lime::json_schema {
namespace {

// Where in a character of UTF-8 the next byte is. 0: between two characters.
struct Utf8Edge {
  int from;
  uint8_t first, last;
  int to;
};
constexpr int kUtf8States = 8;
constexpr Utf8Edge kUtf8[] = {
    {0, 0xC2, 0xDF, 1}, {0, 0xE0, 0xE0, 4}, {0, 0xE1, 0xEC, 2}, {0, 0xED, 0xED, 5}, {0, 0xEE, 0xEF, 2},
    {0, 0xF0, 0xF0, 6}, {0, 0xF1, 0xF3, 3}, {0, 0xF4, 0xF4, 7}, {1, 0x80, 0xBF, 0}, {2, 0x80, 0xBF, 1},
    {3, 0x80, 0xBF, 2}, {4, 0xA0, 0xBF, 1}, {5, 0x80, 0x9F, 1}, {6, 0x90, 0xBF, 2}, {7, 0x80, 0x8F, 2},
};

void AddHexEdges(ByteDfaBuilder& builder, int from, int to) {
  builder.AddEdge(from, '0', '9', to);
  builder.AddEdge(from, 'A', 'F', to);
  builder.AddEdge(from, 'a', 'f', to);
}

void AddDigitEdges(ByteDfaBuilder& builder, int from, char first_letter, int to) {
  builder.AddEdge(from, static_cast<uint8_t>(first_letter), 'F', to);
  builder.AddEdge(from, static_cast<uint8_t>(first_letter - 'A' + 'a'), 'f', to);
}

// `count` hexadecimal digits, then `to`.
int HexDigits(ByteDfaBuilder& builder, int count, int to) {
  for (int i = 0; i < count; ++i) {
    const int before = builder.AddState(false);
    AddHexEdges(builder, before, to);
    to = before;
  }
  return to;
}

// The four digits after \u, and for the first half of a surrogate pair the second half.
int UnicodeEscape(ByteDfaBuilder& builder, int to) {
  const int digits = builder.AddState(false), after_d = builder.AddState(false);
  const int second_half = builder.AddState(false), second_u = builder.AddState(false);
  const int second_d = builder.AddState(false), second_rest = builder.AddState(false);
  const int last_two = HexDigits(builder, 2, to);
  builder.AddEdge(digits, '0', '9', HexDigits(builder, 3, to));
  const int last_three = HexDigits(builder, 3, to);
  for (const char letter : std::string_view("abcefABCEF")) builder.AddEdge(digits, letter, last_three);
  for (const char letter : std::string_view("dD")) {
    builder.AddEdge(digits, letter, after_d);
    builder.AddEdge(second_d, letter, second_rest);
  }
  const int first_half = HexDigits(builder, 2, second_half);
  builder.AddEdge(after_d, '0', '7', last_two);
  builder.AddEdge(after_d, '8', '9', first_half);
  for (const char letter : std::string_view("abAB")) builder.AddEdge(after_d, letter, first_half);
  builder.AddEdge(second_half, '\\', second_u);
  builder.AddEdge(second_u, 'u', second_d);
  AddDigitEdges(builder, second_rest, 'C', last_two);
  return digits;
}

ByteDfaPtr MakeAnyString(const ByteSet& writable) {
  ByteDfaBuilder builder;
  const int start = builder.AddState(false), end = builder.AddState(true), escape = builder.AddState(false);
  std::array<int, kUtf8States> utf8{};
  for (int& state : utf8) state = builder.AddState(false);
  builder.AddEdge(start, '"', utf8[0]);
  builder.AddEdge(utf8[0], '"', end);
  builder.AddEdge(utf8[0], 0x20, 0x21, utf8[0]);
  builder.AddEdge(utf8[0], 0x23, 0x5B, utf8[0]);
  builder.AddEdge(utf8[0], 0x5D, 0x7F, utf8[0]);
  builder.AddEdge(utf8[0], '\\', escape);
  for (const Utf8Edge& edge : kUtf8)
    builder.AddEdge(utf8[static_cast<size_t>(edge.from)], edge.first, edge.last, utf8[static_cast<size_t>(edge.to)]);
  for (const char letter : std::string_view("\"\\/bfnrt")) builder.AddEdge(escape, letter, utf8[0]);
  builder.AddEdge(escape, 'u', UnicodeEscape(builder, utf8[0]));
  return builder.Finish(start, writable, utf8[0]).value();
}

// How much of `stop` has been seen, for each byte that follows.
std::vector<std::array<int, 256>> StopTable(std::string_view stop) {
  std::vector<std::array<int, 256>> next(stop.size());
  for (size_t seen = 0, shorter = 0; seen < stop.size(); ++seen) {
    const auto byte = static_cast<uint8_t>(stop[seen]);
    if (seen > 0) next[seen] = next[shorter];
    const int fallen_back = next[seen][byte];
    next[seen][byte] = static_cast<int>(seen) + 1;
    if (seen > 0) shorter = static_cast<size_t>(fallen_back);
  }
  return next;
}

// Whether `stop` ends the text exactly there, and not before, if `seen` bytes of another one precede
// it.
bool EndsAtItsEnd(std::string_view stop, const std::vector<std::array<int, 256>>& next, int seen) {
  for (size_t i = 0; i < stop.size(); ++i) {
    if (seen == static_cast<int>(stop.size())) return false;
    seen = next[static_cast<size_t>(seen)][static_cast<uint8_t>(stop[i])];
  }
  return seen == static_cast<int>(stop.size());
}

}  // namespace

ByteDfaPtr AnyString(const ByteSet& writable) {
  static const ByteDfaPtr* const of_all_bytes = new ByteDfaPtr(MakeAnyString(ByteSet().set()));
  return writable.all() ? *of_all_bytes : MakeAnyString(writable);
}

absl::StatusOr<ByteDfaPtr> TextUntil(std::string_view stop, bool is_token, const ByteSet& writable) {
  const std::vector<std::array<int, 256>> next = StopTable(stop);
  ByteDfaBuilder builder;
  std::vector<int> numbers(stop.size() * kUtf8States);
  for (int& number : numbers) number = builder.AddState(false);
  const int end = builder.AddState(true);
  const auto number = [&](int seen, int utf8) {
    return seen == static_cast<int>(stop.size()) ? end : numbers[static_cast<size_t>(seen) * kUtf8States + static_cast<size_t>(utf8)];
  };
  for (int seen = 0; seen < static_cast<int>(stop.size()); ++seen) {
    const auto add = [&](int from, int first, int last, int to) {
      for (int byte = first; byte <= last; ++byte)
        builder.AddEdge(number(seen, from), static_cast<uint8_t>(byte), static_cast<uint8_t>(byte),
                        number(next[static_cast<size_t>(seen)][static_cast<size_t>(byte)], to));
    };
    add(0, 0, 0x7F, 0);
    for (const Utf8Edge& edge : kUtf8) add(edge.from, edge.first, edge.last, edge.to);
  }
  for (int seen = 0; is_token && seen < static_cast<int>(stop.size()); ++seen) {
    if (EndsAtItsEnd(stop, next, seen)) builder.AddToken(number(seen, 0), end);
  }
  return builder.Finish(number(0, 0), writable);
}

absl::StatusOr<ByteDfaPtr> OneOfTexts(const std::vector<std::string>& texts, const ByteSet& writable) {
  ByteDfaBuilder builder;
  const int start = builder.AddState(false);
  std::map<std::pair<int, char>, int> children;
  for (const std::string& text : texts) {
    int at = start;
    for (const char byte : text) {
      const auto [child, is_new] = children.try_emplace({at, byte}, 0);
      if (is_new) {
        child->second = builder.AddState(false);
        builder.AddEdge(at, byte, child->second);
      }
      at = child->second;
    }
    builder.SetAccepts(at);
  }
  return builder.Finish(start, writable);
}

}  // namespace lime::json_schema
