// The "normalizer" of tokenizer.json: what is done to a text before it is split into words.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/text/json_access.h"
#include "coordinator/text/regex.h"

namespace lime {

// Well-formed UTF-8 between two added tokens, on its way to the model.
struct NormalizedText {
  std::string text;
  size_t start_bytes = 0;  // bytes in front that stand for the first character of the whole input
};

using NormalizeStep = std::function<absl::Status(NormalizedText& text)>;

// Sequences flattened, in order. Null gives no steps.
absl::StatusOr<std::vector<NormalizeStep>> ParseNormalizer(const Json& json);

absl::Status Normalize(const std::vector<NormalizeStep>& steps, NormalizedText& text);

// "pattern": {"String": ...} or {"Regex": ...}, as several components have it.
absl::StatusOr<Regex> ParsePattern(const Json& component);

// `text` with each match of `pattern` replaced by `content`.
absl::StatusOr<std::string> ReplaceAll(const Regex& pattern, std::string_view content, std::string_view text);

// The same for a fixed string; an empty `from` is nowhere.
std::string ReplaceLiteral(std::string_view text, std::string_view from, std::string_view to);

// An error once a step has made text beyond what any prompt can need.
absl::Status CheckTextSize(size_t bytes);

}  // namespace lime
