// The regular part of ECMA-262's patterns, which JSON Schema uses.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "common/json_schema/dfa/char_dfa.h"

namespace lime::json_schema {

// Work that patterns may need together: looks at an edge, about 0.3 s.
inline constexpr int64_t kMaxPatternWork = 10'000'000;

// Strings in which the pattern matches somewhere, as `pattern` means it. Supported: characters and
// their escapes, ".", classes, \d \w \s and their opposites, groups, "|", "*", "+", "?", "{n,m}",
// "^" and "$". InvalidArgument for anything else, with the position; ResourceExhausted if the
// automaton is too large. `work_left` is what this and later patterns may need.
absl::StatusOr<CharDfa> CompilePattern(std::string_view pattern, int64_t& work_left);

// The strings of a `format`; null if there is no such format.
std::shared_ptr<const CharDfa> FormatDfa(std::string_view name);

}  // namespace lime::json_schema
