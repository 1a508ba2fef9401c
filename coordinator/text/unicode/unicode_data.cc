#include "coordinator/text/unicode/unicode_data.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>

#include "planner/base/check.h"

namespace lime {
namespace {

// A set: `count` ranges of kRanges, from `begin` on.
struct Span {
  uint32_t begin;
  uint32_t count;
};

struct Name {
  std::string_view name;
  uint16_t span;
};

#include "unicode_tables.inc"

}  // namespace

std::optional<CodeSet> FindCodeSet(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (c != ' ' && c != '-' && c != '_') plain.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
  }
  const auto found =
      std::lower_bound(std::begin(kNames), std::end(kNames), plain, [](const Name& a, const std::string& b) { return a.name < b; });
  if (found == std::end(kNames) || found->name != plain) return std::nullopt;
  const Span span = kSpans[found->span];
  return CodeSet(kRanges + span.begin, span.count);
}

CodeSet GetCodeSet(std::string_view name) {
  const std::optional<CodeSet> set = FindCodeSet(name);
  LIME_CHECK(set.has_value()) << std::string(name);
  return *set;
}

bool Contains(CodeSet set, char32_t code) {
  const auto next =
      std::upper_bound(set.begin(), set.end(), code, [](char32_t value, const CodeRange& range) { return value < range.first; });
  return next != set.begin() && code <= std::prev(next)->last;
}

}  // namespace lime
