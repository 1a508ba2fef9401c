#include "common/json_schema/dfa/char_bytes.h"

#include <algorithm>
#include <string_view>

namespace lime::json_schema {
namespace {

// The letters that follow a backslash, for the characters that JSON writes so.
struct ShortEscape {
  uint32_t code;
  char letter;
};
constexpr ShortEscape kShortEscapes[] = {{'\b', 'b'}, {'\t', 't'}, {'\n', 'n'}, {'\f', 'f'}, {'\r', 'r'}, {'"', '"'}, {'\\', '\\'}};

std::vector<CharRange> Clip(const std::vector<CharRange>& ranges, uint32_t first, uint32_t last) {
  std::vector<CharRange> clipped;
  for (const CharRange& range : ranges) {
    const CharRange part = {std::max(range.first, first), std::min(range.last, last), range.to};
    if (part.first <= part.last) clipped.push_back(part);
  }
  return clipped;
}

int TargetOf(const std::vector<CharRange>& ranges, uint32_t code) {
  const auto range = std::ranges::lower_bound(ranges, code, {}, &CharRange::last);
  return range == ranges.end() || range->first > code ? 0 : range->to;
}

}  // namespace

std::vector<CharRange> WithoutCode(const std::vector<CharRange>& ranges, uint32_t code) {
  std::vector<CharRange> rest = code == 0 ? std::vector<CharRange>() : Clip(ranges, 0, code - 1);
  const std::vector<CharRange> above = Clip(ranges, code + 1, kLastCodePoint);
  rest.insert(rest.end(), above.begin(), above.end());
  return rest;
}

void CharBytes::Append(Edges& edges, int first, int last, int to) {
  if (to == 0) return;
  if (!edges.empty() && edges.back().to == to && edges.back().last + 1 == first) {
    edges.back().last = last;
  } else {
    edges.push_back({first, last, to});
  }
}

// 0 if there are none.
int CharBytes::StateWith(Edges edges) {
  if (edges.empty()) return 0;
  const auto found = states_.find(edges);
  if (found != states_.end()) return found->second;
  const int state = builder_.AddState(false);
  for (const Edge& edge : edges) builder_.AddEdge(state, static_cast<uint8_t>(edge.first), static_cast<uint8_t>(edge.last), edge.to);
  states_.emplace(std::move(edges), state);
  return state;
}

void CharBytes::AddEdges(int from, const std::vector<CharRange>& ranges) {
  Edges edges;
  AddAscii(ranges, edges);
  if (spelling_ == Spelling::kJson) AddEscapes(ranges, edges);
  AddMultiByte(ranges, edges);
  for (const Edge& edge : edges) builder_.AddEdge(from, static_cast<uint8_t>(edge.first), static_cast<uint8_t>(edge.last), edge.to);
}

void CharBytes::AddAscii(const std::vector<CharRange>& ranges, Edges& edges) {
  std::vector<CharRange> plain = Clip(ranges, spelling_ == Spelling::kJson ? ' ' : 0, 0x7F);
  if (spelling_ == Spelling::kJson) plain = WithoutCode(WithoutCode(plain, '"'), '\\');
  for (const CharRange& range : plain) Append(edges, static_cast<int>(range.first), static_cast<int>(range.last), range.to);
}

void CharBytes::AddEscapes(const std::vector<CharRange>& ranges, Edges& edges) {
  Edges escapes;
  for (const ShortEscape& escape : kShortEscapes) Append(escapes, escape.letter, escape.letter, TargetOf(ranges, escape.code));
  constexpr std::string_view kHex = "0123456789abcdef";
  Edges high_digits;
  for (uint32_t high = 0; high < 2; ++high) {
    Edges low_digits;
    for (uint32_t low = 0; low < 16; ++low) {
      const uint32_t code = 16 * high + low;
      const bool is_short = std::ranges::any_of(kShortEscapes, [code](const ShortEscape& escape) { return escape.code == code; });
      if (!is_short) Append(low_digits, kHex[low], kHex[low], TargetOf(ranges, code));
    }
    Append(high_digits, kHex[high], kHex[high], StateWith(std::move(low_digits)));
  }
  int digits = StateWith(std::move(high_digits));
  for (int zeros = 0; zeros < 2 && digits != 0; ++zeros) digits = StateWith({{'0', '0', digits}});
  Append(escapes, 'u', 'u', digits);
  Append(edges, '\\', '\\', StateWith(std::move(escapes)));
}

void CharBytes::AddMultiByte(const std::vector<CharRange>& ranges, Edges& edges) {
  const std::vector<CharRange> two = Clip(ranges, 0x80, 0x7FF);
  std::vector<CharRange> three = Clip(ranges, 0x800, 0xD7FF);  // without surrogates
  const std::vector<CharRange> above = Clip(ranges, 0xE000, 0xFFFF);
  three.insert(three.end(), above.begin(), above.end());
  const std::vector<CharRange> four = Clip(ranges, 0x10000, kLastCodePoint);
  for (uint32_t lead = 0xC2; lead <= 0xDF; ++lead)
    Append(edges, static_cast<int>(lead), static_cast<int>(lead), Continuation(two, (lead & 0x1F) << 6, 1));
  for (uint32_t lead = 0xE0; lead <= 0xEF; ++lead)
    Append(edges, static_cast<int>(lead), static_cast<int>(lead), Continuation(three, (lead & 0xF) << 12, 2));
  for (uint32_t lead = 0xF0; lead <= 0xF4; ++lead)
    Append(edges, static_cast<int>(lead), static_cast<int>(lead), Continuation(four, (lead & 7) << 18, 3));
}

// The state before the last `bytes_left` bytes of the characters from `base` on; 0 if all of them
// are refused. A block of characters with one target needs no look at each.
int CharBytes::Continuation(const std::vector<CharRange>& ranges, uint32_t base, int bytes_left) {
  const uint32_t last = base + (1u << (6 * bytes_left)) - 1;
  const auto range = std::ranges::lower_bound(ranges, base, {}, &CharRange::last);
  if (range == ranges.end() || range->first > last) return 0;
  if (range->first <= base && range->last >= last) {
    int state = range->to;
    for (int i = 0; i < bytes_left; ++i) state = StateWith({{0x80, 0xBF, state}});
    return state;
  }
  Edges edges;
  for (uint32_t i = 0; i < 64; ++i) {
    const uint32_t child = base + (i << (6 * (bytes_left - 1)));
    const int to = bytes_left == 1 ? TargetOf(ranges, child) : Continuation(ranges, child, bytes_left - 1);
    Append(edges, static_cast<int>(0x80 + i), static_cast<int>(0x80 + i), to);
  }
  return StateWith(std::move(edges));
}

}  // namespace lime::json_schema
