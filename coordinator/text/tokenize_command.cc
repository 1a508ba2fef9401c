#include "coordinator/text/tokenize_command.h"

#include <charconv>
#include <istream>
#include <iterator>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "coordinator/text/components/json_access.h"

namespace lime {
namespace {

EncodeOptions ForEncode(const TokenizeOptions& options) {
  return {.add_special = !options.no_special, .parse_special = !options.no_special};
}

DecodeOptions ForDecode(const TokenizeOptions& options) {
  return {.skip_special = !options.no_special};
}

absl::Status CheckId(int64_t id, const Tokenizer& tokenizer) {
  if (id >= 0 && id < tokenizer.vocab_size()) return absl::OkStatus();
  return Invalid("id ", id, " is outside the vocabulary, need 0 to ", tokenizer.vocab_size() - 1);
}

// Ids between white space, commas or brackets.
absl::StatusOr<std::vector<int32_t>> ParseIds(std::string_view text, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (size_t at = 0; (at = text.find_first_not_of(" \t\r\n,[]", at)) != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_of(" \t\r\n,[]", at), text.size());
    int64_t id = 0;
    const auto parsed = std::from_chars(text.data() + at, text.data() + end, id);
    if (parsed.ec != std::errc() || parsed.ptr != text.data() + end) {
      return Invalid("\"", std::string(text.substr(at, std::min<size_t>(end - at, 40))), "\" is not a token id");
    }
    LIME_RETURN_IF_ERROR(CheckId(id, tokenizer));
    ids.push_back(static_cast<int32_t>(id));
    at = end;
  }
  return ids;
}

absl::StatusOr<std::vector<int32_t>> IdsFromJson(const TokenizerJson& json, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (const TokenizerJson& entry : json) {
    if (!entry.is_number_integer()) return absl::InvalidArgumentError("\"ids\" holds an element that is not a whole number");
    if (entry.is_number_unsigned() && entry.get<uint64_t>() > INT64_MAX) return Invalid("id ", entry.dump(), " is outside the vocabulary");
    LIME_RETURN_IF_ERROR(CheckId(entry.get<int64_t>(), tokenizer));
    ids.push_back(entry.get<int32_t>());
  }
  return ids;
}

// Answers one object of a --jsonl stream.
absl::StatusOr<TokenizerJson> Answer(const Tokenizer& tokenizer, std::string_view line, const TokenizeOptions& options) {
  LIME_ASSIGN_OR_RETURN(const TokenizerJson request, ParseJson(line, "the line"));
  const TokenizerJson &text = Field(request, "text"), &ids = Field(request, "ids");
  if (text.is_string() == ids.is_array()) {
    return absl::InvalidArgumentError("need an object with either \"text\" (a string) or \"ids\" (an array)");
  }
  if (text.is_string()) {
    LIME_ASSIGN_OR_RETURN(const auto encoded, tokenizer.Encode(text.get_ref<const std::string&>(), ForEncode(options)));
    return TokenizerJson{{"ids", encoded}};
  }
  LIME_ASSIGN_OR_RETURN(const auto list, IdsFromJson(ids, tokenizer));
  return TokenizerJson{{"text", tokenizer.Decode(list, ForDecode(options))}};
}

absl::Status RunLines(const Tokenizer& tokenizer, std::istream& in, std::ostream& out, const TokenizeOptions& options) {
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto answer = Answer(tokenizer, line, options);
    if (!answer.ok()) return absl::Status(answer.status().code(), absl::StrCat("line ", number, ": ", answer.status().message()));
    out << answer->dump() << "\n";
  }
  return absl::OkStatus();
}

void WriteIds(const std::vector<int32_t>& ids, std::ostream& out) {
  for (size_t i = 0; i < ids.size(); ++i) out << (i == 0 ? "" : " ") << ids[i];
  out << "\n";
}

}  // namespace

absl::Status RunTokenize(const Tokenizer& tokenizer, std::istream& in, std::ostream& out, const TokenizeOptions& options) {
  if (options.jsonl) return RunLines(tokenizer, in, out, options);
  const std::string input(std::istreambuf_iterator<char>(in), {});
  if (options.decode) {
    LIME_ASSIGN_OR_RETURN(const auto ids, ParseIds(input, tokenizer));
    const std::string text = tokenizer.Decode(ids, ForDecode(options));
    out << (options.json ? TokenizerJson{{"text", text}}.dump() + "\n" : text);
  } else {
    LIME_ASSIGN_OR_RETURN(const auto ids, tokenizer.Encode(input, ForEncode(options)));
    options.json ? void(out << TokenizerJson{{"ids", ids}}.dump() << "\n") : WriteIds(ids, out);
  }
  return absl::OkStatus();
}

}  // namespace lime
