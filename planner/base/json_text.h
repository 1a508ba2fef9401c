// JSON as text. From outside, parsed with bounds: whatever a file, a peer or a user writes, the answer is a tree of bounded depth or one
// sentence.
#pragma once

#include <string>
#include <string_view>

#include "nlohmann/json.hpp"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

inline constexpr Bytes kMaxJsonBytes = 16 * kMiB;  // where nothing else is said; a tree takes up to some twenty times its text
inline constexpr int kMaxJsonDepth = 64;

// InvalidArgument, opened by `name`, for a text that is longer than `max_bytes`, deeper than kMaxJsonDepth, or no JSON in UTF-8.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, std::string_view name, Bytes max_bytes = kMaxJsonBytes);

// The same, and refuses what is no object.
absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, std::string_view name, Bytes max_bytes = kMaxJsonBytes);

// For the files of Hugging Face models, which Python writes and reads. Takes the words NaN, Infinity and -Infinity, and numbers beyond the
// range of a double, each as a string of that spelling: whoever wants a number of that field refuses it, everybody else passes it over.
// What is no JSON because something else was put in its place is called by its name (foreign_file.h).
absl::StatusOr<nlohmann::json> ParsePythonJson(std::string_view text, std::string_view name, Bytes max_bytes = kMaxJsonBytes);
absl::StatusOr<nlohmann::json> ParsePythonJsonObject(std::string_view text, std::string_view name, Bytes max_bytes = kMaxJsonBytes);

// One line, for programs, or with `indent` one line a value, for people. Bytes that are no UTF-8 are replaced: what is told may come from
// outside.
std::string JsonText(const nlohmann::json& json, int indent = -1);
std::string JsonText(const nlohmann::ordered_json& json);

}  // namespace lime
