// The "normalizer" of tokenizer.json: changes a text before it is split into words.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/text/components/json_access.h"
#include "coordinator/text/unicode/regex.h"

namespace lime {

// The text between two added tokens, on its way to the model. Well-formed UTF-8.
struct NormalizedText {
  std::string text;
  // Bytes at the beginning that come from the first character of the whole input.
  size_t start_bytes = 0;
};

using NormalizeStep = std::function<absl::Status(NormalizedText& text)>;

// The steps in order, with sequences flattened. Null gives no steps.
absl::StatusOr<std::vector<NormalizeStep>> ParseNormalizer(const TokenizerJson& json);

absl::Status Normalize(const std::vector<NormalizeStep>& steps, NormalizedText& text);

// Parses "pattern": {"String": ...} or {"Regex": ...}, which several components have.
absl::StatusOr<Regex> ParsePattern(const TokenizerJson& component);

// Replaces each match of `pattern` in `text` by `content`.
absl::StatusOr<std::string> ReplaceAll(const Regex& pattern, std::string_view content, std::string_view text);

// The same for a fixed string. An empty `from` matches nowhere.
std::string ReplaceLiteral(std::string_view text, std::string_view from, std::string_view to);

// An error if a step has made the text longer than any prompt can need.
absl::Status CheckTextSize(size_t bytes);

}  // namespace lime
