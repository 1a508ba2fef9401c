#include "coordinator/text/normalizer.h"

#include "absl/strings/str_cat.h"
#include "coordinator/text/byte_level.h"
#include "coordinator/text/unicode.h"

namespace lime {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 29;

NormalizeStep UnicodeStep(NormalForm form) {
  return [form](std::string text) { return NormalizeUnicode(text, form); };
}

absl::StatusOr<NormalizeStep> ReplaceStep(const Json& json) {
  LIME_ASSIGN_OR_RETURN(auto pattern, ParsePattern(json));
  LIME_ASSIGN_OR_RETURN(auto content, RequiredString(json, "content"));
  return [pattern, content](std::string text) { return ReplaceAll(pattern, content, text); };
}

absl::StatusOr<NormalizeStep> PrependStep(const Json& json) {
  LIME_ASSIGN_OR_RETURN(auto prefix, RequiredString(json, "prepend"));
  return [prefix](std::string text) -> absl::StatusOr<std::string> { return text.empty() ? text : prefix + text; };
}

absl::StatusOr<NormalizeStep> StripStep(const Json& json) {
  LIME_ASSIGN_OR_RETURN(const bool left, BoolField(json, "strip_left", true));
  LIME_ASSIGN_OR_RETURN(const bool right, BoolField(json, "strip_right", true));
  return [left, right](std::string text) -> absl::StatusOr<std::string> {
    if (left) text.erase(0, LeadingSpace(text));
    if (right) text.resize(text.size() - TrailingSpace(text));
    return text;
  };
}

absl::StatusOr<NormalizeStep> ParseStep(const std::string& type, const Json& json) {
  using Result = absl::StatusOr<std::string>;
  if (type == "NFC") return UnicodeStep(NormalForm::kNfc);
  if (type == "NFD") return UnicodeStep(NormalForm::kNfd);
  if (type == "NFKC") return UnicodeStep(NormalForm::kNfkc);
  if (type == "NFKD") return UnicodeStep(NormalForm::kNfkd);
  if (type == "Lowercase") return [](std::string text) -> Result { return LowercaseUnicode(text); };
  if (type == "StripAccents") return [](std::string text) -> Result { return StripMarks(text); };
  if (type == "ByteLevel") return [](std::string text) -> Result { return ToByteLevel(text); };
  if (type == "Replace") return ReplaceStep(json);
  if (type == "Prepend") return PrependStep(json);
  if (type == "Strip") return StripStep(json);
  return absl::UnimplementedError(absl::StrCat(
      "normalizer \"", type,
      "\" is not supported; supported are NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, ByteLevel, Replace, Prepend, Strip and "
      "Sequence"));
}

absl::Status AppendSteps(const Json& json, std::vector<NormalizeStep>& steps) {
  LIME_ASSIGN_OR_RETURN(const std::string type, ComponentType(json));
  if (type.empty()) return absl::OkStatus();
  if (type == "Sequence") {
    for (const Json& part : Field(json, "normalizers")) LIME_RETURN_IF_ERROR(AppendSteps(part, steps));
    return absl::OkStatus();
  }
  LIME_ASSIGN_OR_RETURN(auto step, ParseStep(type, json));
  steps.push_back(std::move(step));
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTextSize(size_t bytes) {
  if (bytes <= kMaxTextBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("text of ", bytes, " bytes; at most ", kMaxTextBytes, " can be tokenised at once"));
}

absl::StatusOr<Regex> ParsePattern(const Json& component) {
  const Json& pattern = Field(component, "pattern");
  if (Field(pattern, "String").is_string()) return Regex::Literal(Field(pattern, "String").get_ref<const std::string&>());
  if (Field(pattern, "Regex").is_string()) return Regex::Compile(Field(pattern, "Regex").get_ref<const std::string&>());
  if (pattern.is_string()) return Regex::Literal(pattern.get_ref<const std::string&>());
  return absl::InvalidArgumentError("field \"pattern\" is neither {\"String\": text} nor {\"Regex\": expression}");
}

absl::StatusOr<std::string> ReplaceAll(const Regex& pattern, std::string_view content, std::string_view text) {
  std::vector<TextRange> matches;
  LIME_RETURN_IF_ERROR(pattern.FindAll(text, matches));
  LIME_RETURN_IF_ERROR(CheckTextSize(text.size() + matches.size() * content.size()));
  std::string out;
  size_t done = 0;
  for (const TextRange& match : matches) {
    out.append(text.substr(done, match.begin - done)).append(content);
    done = match.end;
  }
  out.append(text.substr(done));
  return out;
}

std::string ReplaceLiteral(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (size_t at = 0; !from.empty() && (at = text.find(from)) != std::string_view::npos;) {
    out.append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
  }
  return out.append(text);
}

absl::StatusOr<std::vector<NormalizeStep>> ParseNormalizer(const Json& json) {
  std::vector<NormalizeStep> steps;
  LIME_RETURN_IF_ERROR(AppendSteps(json, steps));
  return steps;
}

absl::StatusOr<std::string> Normalize(const std::vector<NormalizeStep>& steps, std::string_view text) {
  std::string result(text);
  for (const NormalizeStep& step : steps) {
    LIME_ASSIGN_OR_RETURN(result, step(std::move(result)));
    LIME_RETURN_IF_ERROR(CheckTextSize(result.size()));
  }
  return result;
}

}  // namespace lime
