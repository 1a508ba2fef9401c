#include "coordinator/text/components/normalizer.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "coordinator/text/components/charsmap.h"
#include "coordinator/text/unicode/byte_level.h"
#include "coordinator/text/unicode/unicode.h"
#include "coordinator/text/unicode/unicode_data.h"
#include "coordinator/text/unicode/utf8.h"

namespace lime {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 29;
// For longer ones, Precompiled looks at single characters.
constexpr size_t kMaxGraphemeBytes = 6;

// Applies `change` to the text and to its start. `change` must work on single characters.
template <typename Change>
void Rewrite(NormalizedText& text, Change change) {
  if (text.start_bytes > 0) text.start_bytes = change(std::string_view(text.text).substr(0, text.start_bytes)).size();
  text.text = change(text.text);
}

NormalizeStep RewriteStep(std::string (*change)(std::string_view)) {
  return [change](NormalizedText& text) {
    Rewrite(text, change);
    return absl::OkStatus();
  };
}

// Sets the text to `changed`. `start` is the result for its start alone. If the start was joined
// with what follows, the first character stands for it.
void Replace(NormalizedText& text, std::string changed, std::string_view start) {
  if (text.start_bytes > 0 && !changed.empty()) {
    text.start_bytes = changed.starts_with(start) ? start.size() : static_cast<size_t>(DecodeUtf8(changed).length);
  }
  text.text = std::move(changed);
}

absl::Status ToNormalForm(NormalizedText& text, NormalForm form) {
  LIME_ASSIGN_OR_RETURN(const std::string start, NormalizeUnicode(std::string_view(text.text).substr(0, text.start_bytes), form));
  LIME_ASSIGN_OR_RETURN(std::string changed, NormalizeUnicode(text.text, form));
  Replace(text, std::move(changed), start);
  return absl::OkStatus();
}

NormalizeStep UnicodeStep(NormalForm form) {
  return [form](NormalizedText& text) { return ToNormalForm(text, form); };
}

void KeepOnly(bool (*keep)(char32_t), NormalizedText& text) {
  Rewrite(text, [keep](std::string_view part) { return Filter(part, keep); });
}

NormalizeStep FilterStep(bool (*keep)(char32_t)) {
  return [keep](NormalizedText& text) {
    KeepOnly(keep, text);
    return absl::OkStatus();
  };
}

// Replaces each character by `change` of it, which is the same character for most.
std::string MapCharacters(std::string_view text, char32_t (*change)(char32_t)) {
  std::string out;
  out.reserve(text.size());
  for (; !text.empty(); text.remove_prefix(DecodeUtf8(text).length)) AppendUtf8(change(DecodeUtf8(text).code), out);
  return out;
}

absl::StatusOr<std::string> ReplaceRanges(const std::vector<TextRange>& ranges, std::string_view content, std::string_view text) {
  LIME_RETURN_IF_ERROR(CheckTextSize(text.size() + ranges.size() * content.size()));
  std::string out;
  size_t done = 0;
  for (const TextRange& range : ranges) {
    out.append(text.substr(done, range.begin - done)).append(content);
    done = range.end;
  }
  out.append(text.substr(done));
  return out;
}

// Bytes of the start that are left after replacements. If a replacement covers several characters,
// it stands for the last of them.
size_t StartBehind(const std::vector<TextRange>& ranges, size_t content_bytes, size_t start_bytes) {
  size_t left = 0, done = 0;
  for (const TextRange& range : ranges) {
    if (range.end > start_bytes) return left + std::min(range.begin, start_bytes) - std::min(done, start_bytes);
    left += range.begin - done + content_bytes;
    done = range.end;
  }
  return left + start_bytes - done;
}

absl::StatusOr<NormalizeStep> ReplaceStep(const TokenizerJson& json) {
  LIME_ASSIGN_OR_RETURN(auto pattern, ParsePattern(json));
  LIME_ASSIGN_OR_RETURN(auto content, RequiredString(json, "content"));
  return [pattern, content](NormalizedText& text) -> absl::Status {
    std::vector<TextRange> matches;
    LIME_RETURN_IF_ERROR(pattern.FindAll(text.text, matches));
    if (text.start_bytes > 0) text.start_bytes = StartBehind(matches, content.size(), text.start_bytes);
    LIME_ASSIGN_OR_RETURN(text.text, ReplaceRanges(matches, content, text.text));
    return absl::OkStatus();
  };
}

absl::StatusOr<NormalizeStep> PrependStep(const TokenizerJson& json) {
  LIME_ASSIGN_OR_RETURN(auto prefix, RequiredString(json, "prepend"));
  return [prefix](NormalizedText& text) {
    if (!text.text.empty()) text.text.insert(0, prefix);
    if (text.start_bytes > 0) text.start_bytes += prefix.size();
    return absl::OkStatus();
  };
}

absl::StatusOr<NormalizeStep> StripStep(const TokenizerJson& json) {
  LIME_ASSIGN_OR_RETURN(const bool left, BoolField(json, "strip_left", true));
  LIME_ASSIGN_OR_RETURN(const bool right, BoolField(json, "strip_right", true));
  return [left, right](NormalizedText& text) {
    const size_t leading = left ? LeadingSpace(text.text) : 0;
    text.start_bytes -= std::min(leading, text.start_bytes);
    text.text.erase(0, leading);
    if (right) text.text.resize(text.text.size() - TrailingSpace(text.text));
    return absl::OkStatus();
  };
}

// SentencePiece's own clean-up of training data: the characters that stay.
bool SurvivesNmt(char32_t code) {
  const bool control = (code >= 1 && code <= 8) || (code >= 0xE && code <= 0x1F);
  return !control && code != 0xB && code != 0x7F && code != 0x8F && code != 0x9F;
}

char32_t NmtCharacter(char32_t code) {
  switch (code) {
    case '\t':
    case '\n':
    case '\f':
    case '\r':
    case 0x1680:
    case 0x2028:
    case 0x2029:
    case 0x2581:
    case 0xFEFF:
    case 0xFFFD:
      return ' ';
    default:
      return code >= 0x200B && code <= 0x200F ? U' ' : code;
  }
}

absl::Status NmtStep(NormalizedText& text) {
  KeepOnly(SurvivesNmt, text);
  Rewrite(text, [](std::string_view part) { return MapCharacters(part, NmtCharacter); });
  return absl::OkStatus();
}

bool SurvivesBert(char32_t code) {
  if (code == '\t' || code == '\n' || code == '\r') return true;
  return code != 0 && code != 0xFFFD && !IsControl(code);
}

char32_t BertSpace(char32_t code) {
  return IsUnicodeSpace(code) ? U' ' : code;
}

bool IsNoNonspacingMark(char32_t code) {
  return !IsNonspacingMark(code);
}

bool IsNoCombiningMark(char32_t code) {
  return !IsCombiningMark(code);
}

bool IsChinese(char32_t code) {
  constexpr CodeRange kRanges[] = {{0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},   {0x20000, 0x2A6DF},
                                   {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0x2F800, 0x2FA1F}};
  return Contains(kRanges, code);
}

std::string SetChineseApart(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Utf8Char next = DecodeUtf8(text);
    const std::string_view space = IsChinese(next.code) ? " " : "";
    out.append(space).append(text.substr(0, next.length)).append(space);
    text.remove_prefix(next.length);
  }
  return out;
}

absl::StatusOr<NormalizeStep> BertStep(const TokenizerJson& json) {
  LIME_ASSIGN_OR_RETURN(const bool clean_text, BoolField(json, "clean_text", true));
  LIME_ASSIGN_OR_RETURN(const bool chinese_apart, BoolField(json, "handle_chinese_chars", true));
  LIME_ASSIGN_OR_RETURN(const bool lowercase, BoolField(json, "lowercase", true));
  LIME_ASSIGN_OR_RETURN(const bool strip_accents, BoolField(json, "strip_accents", lowercase));
  return [=](NormalizedText& text) -> absl::Status {
    if (clean_text) {
      KeepOnly(SurvivesBert, text);
      Rewrite(text, [](std::string_view part) { return MapCharacters(part, BertSpace); });
    }
    if (chinese_apart) Rewrite(text, SetChineseApart);
    if (strip_accents) {
      LIME_RETURN_IF_ERROR(ToNormalForm(text, NormalForm::kNfd));
      KeepOnly(IsNoNonspacingMark, text);
    }
    if (lowercase) Rewrite(text, LowercaseUnicode);
    return absl::OkStatus();
  };
}

// Applies SentencePiece's map as the library does: to a grapheme cluster if it is short, otherwise
// to its characters, and always with the shortest matching string of the map.
std::string ApplyCharsmap(const Charsmap& map, std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    std::string_view cluster = text.substr(0, GraphemeLength(text));
    text.remove_prefix(cluster.size());
    if (const auto match = map.ShortestPrefix(cluster); cluster.size() < kMaxGraphemeBytes && match.length > 0) {
      out.append(match.replacement);
      continue;
    }
    while (!cluster.empty()) {
      const std::string_view character = cluster.substr(0, DecodeUtf8(cluster).length);
      const auto match = map.ShortestPrefix(character);
      out.append(match.length > 0 ? match.replacement : character);
      cluster.remove_prefix(character.size());
    }
  }
  return out;
}

absl::StatusOr<NormalizeStep> PrecompiledStep(const TokenizerJson& json) {
  LIME_ASSIGN_OR_RETURN(const std::string encoded, StringField(json, "precompiled_charsmap", ""));
  std::string bytes;
  if (!absl::Base64Unescape(encoded, &bytes)) return absl::InvalidArgumentError("normalizer: \"precompiled_charsmap\" is not Base64");
  LIME_ASSIGN_OR_RETURN(auto map, Charsmap::Parse(bytes));
  return [map = std::move(map)](NormalizedText& text) {
    const std::string start = ApplyCharsmap(map, std::string_view(text.text).substr(0, text.start_bytes));
    Replace(text, ApplyCharsmap(map, text.text), start);
    return absl::OkStatus();
  };
}

absl::StatusOr<NormalizeStep> ParseStep(const std::string& type, const TokenizerJson& json) {
  if (type == "NFC") return UnicodeStep(NormalForm::kNfc);
  if (type == "NFD") return UnicodeStep(NormalForm::kNfd);
  if (type == "NFKC") return UnicodeStep(NormalForm::kNfkc);
  if (type == "NFKD") return UnicodeStep(NormalForm::kNfkd);
  if (type == "Lowercase") return RewriteStep(LowercaseUnicode);
  if (type == "StripAccents") return FilterStep(IsNoCombiningMark);
  if (type == "ByteLevel") return RewriteStep(ToByteLevel);
  if (type == "Nmt") return NormalizeStep(NmtStep);
  if (type == "Replace") return ReplaceStep(json);
  if (type == "Prepend") return PrependStep(json);
  if (type == "Strip") return StripStep(json);
  if (type == "BertNormalizer") return BertStep(json);
  if (type == "Precompiled") return PrecompiledStep(json);
  return absl::UnimplementedError(absl::StrCat(
      "normalizer \"", type,
      "\" is not supported; supported are NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, ByteLevel, Nmt, Replace, Prepend, Strip, "
      "BertNormalizer, Precompiled and Sequence"));
}

absl::Status AppendSteps(const TokenizerJson& json, std::vector<NormalizeStep>& steps) {
  LIME_ASSIGN_OR_RETURN(const std::string type, ComponentType(json));
  if (type.empty()) return absl::OkStatus();
  if (type == "Sequence") {
    for (const TokenizerJson& part : Field(json, "normalizers")) LIME_RETURN_IF_ERROR(AppendSteps(part, steps));
    return absl::OkStatus();
  }
  LIME_ASSIGN_OR_RETURN(auto step, ParseStep(type, json));
  steps.push_back(std::move(step));
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTextSize(size_t bytes) {
  if (bytes <= kMaxTextBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the text has ", bytes, " bytes; LIME tokenises at most ", kMaxTextBytes, " at once"));
}

absl::StatusOr<Regex> ParsePattern(const TokenizerJson& component) {
  const TokenizerJson& pattern = Field(component, "pattern");
  if (Field(pattern, "String").is_string()) return Regex::Literal(Field(pattern, "String").get_ref<const std::string&>());
  if (Field(pattern, "Regex").is_string()) return Regex::Compile(Field(pattern, "Regex").get_ref<const std::string&>());
  if (pattern.is_string()) return Regex::Literal(pattern.get_ref<const std::string&>());
  return absl::InvalidArgumentError("field \"pattern\" is neither {\"String\": text} nor {\"Regex\": expression}");
}

absl::StatusOr<std::string> ReplaceAll(const Regex& pattern, std::string_view content, std::string_view text) {
  std::vector<TextRange> matches;
  LIME_RETURN_IF_ERROR(pattern.FindAll(text, matches));
  return ReplaceRanges(matches, content, text);
}

std::string ReplaceLiteral(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (size_t at = 0; !from.empty() && (at = text.find(from)) != std::string_view::npos;) {
    out.append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
  }
  return out.append(text);
}

absl::StatusOr<std::vector<NormalizeStep>> ParseNormalizer(const TokenizerJson& json) {
  std::vector<NormalizeStep> steps;
  LIME_RETURN_IF_ERROR(AppendSteps(json, steps));
  return steps;
}

absl::Status Normalize(const std::vector<NormalizeStep>& steps, NormalizedText& text) {
  for (const NormalizeStep& step : steps) {
    LIME_RETURN_IF_ERROR(step(text));
    LIME_RETURN_IF_ERROR(CheckTextSize(text.text.size()));
  }
  return absl::OkStatus();
}

}  // namespace lime
