// A vocabulary as bytes, for a device that makes masks. For each id, in their order:
//
//   length * 4 + use   in groups of 7 bits, lowest first; bit 7: another group follows
//   the text           nothing if the token is never written, or ends an answer
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "common/json_schema/vocabulary.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime::json_schema {

inline constexpr Bytes kMaxVocabularyBytes = 64 * kMiB;
inline constexpr size_t kMaxVocabularyTokens = size_t{1} << 20;

std::string VocabularyBytes(const Vocabulary& vocabulary);

// InvalidArgument for bytes that VocabularyBytes does not return.
absl::StatusOr<VocabularyPtr> ParseVocabularyBytes(std::string_view bytes);

}  // namespace lime::json_schema
