#include "planner/base/json_text.h"

#include "absl/strings/str_cat.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

// Brackets outside strings, counted before anything is built of them. Of a text that is no JSON the count means nothing, and the parser
// says so.
bool NestsTooDeep(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '\\') ++i;
    if (c == '"') quoted = !quoted;
    if (quoted) continue;
    if ((c == '[' || c == '{') && ++depth > kMaxJsonDepth) return true;
    if (c == ']' || c == '}') --depth;
  }
  return false;
}

absl::Status Wrong(std::string_view name, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(Text(name), ": ", Text(what)));
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, std::string_view name, Bytes max_bytes) {
  if (static_cast<Bytes>(text.size()) > max_bytes) return Wrong(name, absl::StrCat("is larger than ", max_bytes, " bytes"));
  if (NestsTooDeep(text)) return Wrong(name, absl::StrCat("nests more than ", kMaxJsonDepth, " levels deep"));
  try {
    return nlohmann::json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::parse_error& error) {
    return Wrong(name, absl::StrCat("is not valid JSON in UTF-8 at byte ", error.byte));
  } catch (const nlohmann::json::exception&) {
    return Wrong(name, "holds a number beyond the range of a double");
  }
}

absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, std::string_view name, Bytes max_bytes) {
  absl::StatusOr<nlohmann::json> json = ParseJson(text, name, max_bytes);
  if (json.ok() && !json->is_object()) return Wrong(name, absl::StrCat("is not a JSON object but ", json->type_name()));
  return json;
}

}  // namespace lime
