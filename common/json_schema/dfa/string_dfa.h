// Byte automata of strings without a pattern.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/json_schema/dfa/byte_dfa.h"

namespace lime::json_schema {

// Any JSON string, with every escape that JSON has: no ill-formed UTF-8, no half of a surrogate
// pair. The only automaton with a boundary(): its matcher counts characters, so that bounds of the
// length need no states.
ByteDfaPtr AnyString(const ByteSet& writable);

// UTF-8 that ends with the first `stop`. `is_token`: `stop` is a token, so it counts as one byte.
// REQUIRES: `stop` is well-formed and not empty.
absl::StatusOr<ByteDfaPtr> TextUntil(std::string_view stop, bool is_token, const ByteSet& writable);

// One of the texts, byte for byte.
absl::StatusOr<ByteDfaPtr> OneOfTexts(const std::vector<std::string>& texts, const ByteSet& writable);

}  // namespace lime::json_schema
