#include "planner/base/json_text.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "planner/base/foreign_file.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

// Counts brackets outside strings before parsing. If the text is not JSON, the count has no
// meaning, but the parser reports the error.
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
  return Invalid(Text(name), ": ", Text(what));
}

bool IsBlank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

bool IsOfWord(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '+' || c == '-';
}

// Python's words for numbers that JSON does not have, and numbers that exceed a double.
bool IsNoJsonNumber(std::string_view word) {
  if (word == "NaN" || word == "Infinity" || word == "-Infinity") return true;
  // A number with at most this many digits and no exponent is finite.
  constexpr size_t kMostDigits = 308;
  const bool is_number = absl::ascii_isdigit(static_cast<unsigned char>(word.front())) || word.front() == '-';
  if (!is_number || (word.size() <= kMostDigits && word.find_first_of("eE") == std::string_view::npos)) return false;
  double value = 0;
  return absl::SimpleAtod(Text(word), &value) && std::isinf(value);
}

struct QuotedText {
  std::string text;
  std::vector<size_t> ends;  // in `text`: after the closing quote of each word that was quoted

  // The original offset of byte `at` of `text`.
  size_t Before(size_t at) const {
    return at - 2 * static_cast<size_t>(std::ranges::count_if(ends, [at](size_t end) { return end <= at; }));
  }
};

QuotedText QuoteWords(std::string_view text) {
  QuotedText quoted;
  quoted.text.reserve(text.size() + 64);
  bool in_string = false;
  for (size_t i = 0; i < text.size();) {
    size_t end = i + 1;
    if (in_string && text[i] == '\\') end = std::min(i + 2, text.size());
    if (text[i] == '"') in_string = !in_string;
    const bool is_word = !in_string && IsOfWord(text[i]);
    while (is_word && end < text.size() && IsOfWord(text[end])) ++end;
    const std::string_view word = text.substr(i, end - i);
    if (is_word && IsNoJsonNumber(word)) {
      quoted.text.append(1, '"').append(word).append(1, '"');
      quoted.ends.push_back(quoted.text.size());
    } else {
      quoted.text.append(word);
    }
    i = end;
  }
  return quoted;
}

template <typename Json = nlohmann::json>
absl::StatusOr<Json> Parse(std::string_view text, std::string_view name, const QuotedText* quoted) {
  const auto not_json = [&](size_t byte) {
    return Wrong(name, absl::StrCat("is not valid JSON in UTF-8 at byte ", quoted == nullptr ? byte : quoted->Before(byte)));
  };
  // nlohmann takes a zero byte for the end of the text.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) return not_json(zero + 1);
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::parse_error& error) {
    return not_json(error.byte);
  } catch (const nlohmann::json::exception&) {
    return Wrong(name, "holds a number beyond the range of a double");
  }
}

absl::Status CheckBounds(std::string_view text, std::string_view name, Bytes max_bytes) {
  if (static_cast<Bytes>(text.size()) > max_bytes) return Wrong(name, absl::StrCat("is larger than ", max_bytes, " bytes"));
  if (IsBlank(text)) return Wrong(name, "is empty");
  if (const std::string_view wide = WideJson(text); !wide.empty())
    return Wrong(name, absl::StrCat("is ", Text(wide), "; save it as UTF-8"));
  if (NestsTooDeep(text)) return Wrong(name, absl::StrCat("nests more than ", kMaxJsonDepth, " levels deep"));
  return absl::OkStatus();
}

template <typename Json>
absl::StatusOr<Json> ObjectOnly(absl::StatusOr<Json> json, std::string_view name) {
  if (json.ok() && !json->is_object()) return Wrong(name, absl::StrCat("is not a JSON object but ", json->type_name()));
  return json;
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, std::string_view name, Bytes max_bytes) {
  LIME_RETURN_IF_ERROR(CheckBounds(text, name, max_bytes));
  return Parse(text, name, nullptr);
}

absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, std::string_view name, Bytes max_bytes) {
  return ObjectOnly(ParseJson(text, name, max_bytes), name);
}

absl::StatusOr<nlohmann::ordered_json> ParseOrderedJsonObject(std::string_view text, std::string_view name, Bytes max_bytes) {
  LIME_RETURN_IF_ERROR(CheckBounds(text, name, max_bytes));
  return ObjectOnly(Parse<nlohmann::ordered_json>(text, name, nullptr), name);
}

absl::StatusOr<nlohmann::json> ParsePythonJson(std::string_view text, std::string_view name, Bytes max_bytes) {
  LIME_RETURN_IF_ERROR(RefuseForeignFile(text, name));
  if (IsBlank(text) && static_cast<Bytes>(text.size()) <= max_bytes) return Wrong(name, "is empty; download it again");
  LIME_RETURN_IF_ERROR(CheckBounds(text, name, max_bytes));
  const QuotedText quoted = QuoteWords(text);
  return Parse(quoted.text, name, &quoted);
}

absl::StatusOr<nlohmann::json> ParsePythonJsonObject(std::string_view text, std::string_view name, Bytes max_bytes) {
  return ObjectOnly(ParsePythonJson(text, name, max_bytes), name);
}

std::string JsonText(const nlohmann::json& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

std::string JsonText(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace lime
