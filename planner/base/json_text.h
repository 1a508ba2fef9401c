// Parses and writes JSON. Input from a file, a peer or a user is untrusted: the result is a tree of
// bounded depth, or an error of one sentence.
#pragma once

#include <string>
#include <string_view>

#include "nlohmann/json.hpp"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

// The default limit. A tree takes up to about 20 times the memory of its text.
inline constexpr Bytes kMaxJsonBytes = 16 * kMiB;
inline constexpr int kMaxJsonDepth = 64;

// InvalidArgument if the text is longer than `max_bytes`, deeper than kMaxJsonDepth, or not JSON in
// UTF-8. Errors begin with `name`.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, std::string_view name, Bytes max_bytes = kMaxJsonBytes);

// The same, but the text must be an object.
absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, std::string_view name, Bytes max_bytes = kMaxJsonBytes);

// The same, with the keys of objects in the order of the text.
absl::StatusOr<nlohmann::ordered_json> ParseOrderedJsonObject(std::string_view text, std::string_view name,
                                                              Bytes max_bytes = kMaxJsonBytes);

// For files of Hugging Face models, which Python reads and writes. NaN, Infinity, -Infinity and
// numbers beyond the range of a double become strings of that spelling. A reader of such a field
// refuses the string; other readers ignore it. If another kind of file is in its place, the error
// says which (foreign_file.h).
absl::StatusOr<nlohmann::json> ParsePythonJson(std::string_view text, std::string_view name, Bytes max_bytes = kMaxJsonBytes);
absl::StatusOr<nlohmann::json> ParsePythonJsonObject(std::string_view text, std::string_view name, Bytes max_bytes = kMaxJsonBytes);

// One line, or with `indent` one line per value for people. Bytes that are not UTF-8 are replaced,
// because the content may come from outside.
std::string JsonText(const nlohmann::json& json, int indent = -1);
std::string JsonText(const nlohmann::ordered_json& json);

}  // namespace lime
