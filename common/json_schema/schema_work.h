// What the schemas of one grammar, or of one request, may need together. So many small schemas take
// no longer than a large one.
#pragma once

#include <cstdint>

#include "common/json_schema/dfa/regex.h"

namespace lime::json_schema {

// Properties, items and rules of all forms that are made: bounds time and memory of schemas whose
// alternatives multiply.
inline constexpr int64_t kMaxParts = 100'000;

struct SchemaWork {
  int64_t patterns_left = kMaxPatternWork;
  int64_t parts_left = kMaxParts;
};

}  // namespace lime::json_schema
