#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/text/tokenizer_files.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// GPT-2's byte-level BPE, and how a class differs from it.
struct KnownClass {
  std::string_view name;
  std::string_view pattern;   // splits text; empty: GPT-2's pattern
  bool composes = false;      // the normalizer is NFC
  bool between_ends = false;  // adds <s> and </s> around the text
};

constexpr KnownClass kClasses[] = {
    {.name = "GPT2Tokenizer"},
    {.name = "OPTTokenizer"},
    {.name = "CodeGenTokenizer"},
    {.name = "GPTNeoXTokenizer", .composes = true},
    {.name = "Qwen2Tokenizer", .pattern = kQwen2Pattern, .composes = true},
    {.name = "Qwen3_5Tokenizer", .pattern = kQwen35Pattern, .composes = true},
    {.name = "RobertaTokenizer", .between_ends = true},
    {.name = "BartTokenizer", .between_ends = true},
    {.name = "LongformerTokenizer", .between_ends = true},
};

std::string KnownClasses() {
  std::string known;
  for (const KnownClass& entry : kClasses) absl::StrAppend(&known, known.empty() ? "" : ", ", Text(entry.name));
  return known;
}

absl::StatusOr<KnownClass> FindClass(const std::string& name) {
  for (const KnownClass& entry : kClasses) {
    if (entry.name == name || NamesNoClass(name)) return entry;
  }
  return absl::UnimplementedError(absl::StrCat("tokenizer_class \"", name,
                                               "\" of vocab.json with merges.txt is not supported; supported are ", KnownClasses(),
                                               "; LIME would read a tokenizer.json beside them instead"));
}

TokenizerJson ParseMergeLines(std::string_view text) {
  TokenizerJson merges = TokenizerJson::array();
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) merges.push_back(std::string(line));
  }
  return merges;
}

// Returns [content, id] of a token for RobertaProcessing.
absl::StatusOr<TokenizerJson> EndToken(const TokenizerJson& vocab, const std::optional<std::string>& named, std::string_view standard) {
  const std::string content = named.value_or(std::string(standard));
  if (!Field(vocab, content).is_number()) return Invalid("\"", content, "\" is not in vocab.json");
  return TokenizerJson::array({content, vocab[content]});
}

TokenizerJson SplitByPattern(std::string_view pattern, const TokenizerJson& byte_level) {
  const TokenizerJson split = {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  TokenizerJson bytes = byte_level;
  bytes["use_regex"] = false;
  return {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}};
}

}  // namespace

absl::StatusOr<TokenizerJson> JsonFromVocabAndMerges(TokenizerJson vocab, std::string_view merges_txt, const TokenizerConfig& config) {
  LIME_ASSIGN_OR_RETURN(const KnownClass known, FindClass(config.tokenizer_class));
  const TokenizerJson byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", config.add_prefix_space.value_or(false)}, {"use_regex", true}};
  TokenizerJson json = {{"pre_tokenizer", byte_level}, {"decoder", byte_level}};
  if (known.composes) json["normalizer"] = {{"type", "NFC"}};
  if (!known.pattern.empty()) {
    const std::string_view pattern = config.pretokenize_regex.empty() ? known.pattern : std::string_view(config.pretokenize_regex);
    json["pre_tokenizer"] = SplitByPattern(pattern, byte_level);
  }
  if (known.between_ends) {
    LIME_ASSIGN_OR_RETURN(TokenizerJson cls, EndToken(vocab, config.bos_token, "<s>"));
    LIME_ASSIGN_OR_RETURN(TokenizerJson sep, EndToken(vocab, config.eos_token, "</s>"));
    json["post_processor"] = {{"type", "RobertaProcessing"}, {"cls", std::move(cls)}, {"sep", std::move(sep)}};
  }
  json["model"] = {{"type", "BPE"}, {"vocab", std::move(vocab)}, {"merges", ParseMergeLines(merges_txt)}};
  return json;
}

absl::StatusOr<std::string> ClassOfModelType(std::string_view model_type) {
  constexpr std::pair<std::string_view, std::string_view> kModels[] = {
      {"gpt2", "GPT2Tokenizer"},        {"gpt_neo", "GPT2Tokenizer"}, {"gptj", "GPT2Tokenizer"},
      {"gpt_bigcode", "GPT2Tokenizer"}, {"opt", "GPT2Tokenizer"},     {"starcoder2", "GPT2Tokenizer"},
      {"codegen", "CodeGenTokenizer"},  {"phi", "CodeGenTokenizer"},  {"gpt_neox", "GPTNeoXTokenizer"},
      {"roberta", "RobertaTokenizer"},  {"bart", "BartTokenizer"},    {"longformer", "LongformerTokenizer"}};
  for (const auto& [type, name] : kModels) {
    if (model_type == type) return std::string(name);
  }
  if (model_type.starts_with("qwen3_5")) return "Qwen3_5Tokenizer";
  if (model_type.starts_with("qwen2") || model_type.starts_with("qwen3")) return "Qwen2Tokenizer";
  return absl::UnimplementedError(
      absl::StrCat("no file says how this tokenizer splits a text: config.json has model_type \"", Text(model_type.substr(0, 80)),
                   "\", which uses other tokenizer files; download its tokenizer.json or tokenizer.model, or name "
                   "the \"tokenizer_class\" in tokenizer_config.json: ",
                   KnownClasses()));
}

}  // namespace lime
