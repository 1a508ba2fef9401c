// A parsed pattern.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "planner/base/status.h"

namespace lime::json_schema {

struct CodeRange {
  uint32_t first = 0, last = 0;
};

enum class PatternKind : uint8_t {
  kSet,     // one character of `set`
  kAll,     // `parts`, one after another
  kEither,  // one of `parts`
  kRepeat,  // parts[0], from `min` to `max` times
  kBegin,   // ^
  kEnd,     // $
};

struct PatternNode {
  static constexpr int kNoMax = -1;

  PatternKind kind = PatternKind::kAll;
  std::vector<PatternNode> parts;
  std::vector<CodeRange> set;  // ascending, disjoint
  int min = 1, max = 1;
};

absl::StatusOr<PatternNode> ParsePattern(std::string_view pattern);

}  // namespace lime::json_schema
