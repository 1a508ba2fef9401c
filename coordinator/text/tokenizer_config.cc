#include "coordinator/text/tokenizer_config.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/str_cat.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

// Fields that name one special token each, in the order in which new tokens get ids.
constexpr std::string_view kTokenFields[] = {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};
constexpr std::string_view kTokenLists[] = {"additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens"};

absl::Status InFile(std::string_view file, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(Text(file), ": ", status.message()));
}

absl::StatusOr<std::optional<bool>> OptionalBool(const TokenizerJson& json, std::string_view key) {
  if (Field(json, key).is_null()) return std::nullopt;
  return BoolField(json, key, false);
}

// Parses a token: a string, or an object with "content" and flags.
absl::StatusOr<AddedToken> ParseNamedToken(const TokenizerJson& value, std::string_view key, bool special) {
  AddedToken token{.id = -1, .special = special};
  if (value.is_string()) {
    token.content = value.get<std::string>();
  } else if (value.is_object()) {
    LIME_ASSIGN_OR_RETURN(token.content, RequiredString(value, "content"));
    LIME_ASSIGN_OR_RETURN(token.special, BoolField(value, "special", special));
    LIME_ASSIGN_OR_RETURN(token.single_word, BoolField(value, "single_word", false));
    LIME_ASSIGN_OR_RETURN(token.lstrip, BoolField(value, "lstrip", false));
    LIME_ASSIGN_OR_RETURN(token.rstrip, BoolField(value, "rstrip", false));
  } else {
    return Invalid("field \"", Text(key), "\" is ", value.type_name(), ", need a token: a string or {\"content\": ...}");
  }
  LIME_ASSIGN_OR_RETURN(token.normalized, BoolField(value, "normalized", !token.special));
  return token;
}

bool Holds(const std::vector<AddedToken>& tokens, std::string_view content) {
  return std::any_of(tokens.begin(), tokens.end(), [&](const AddedToken& token) { return token.content == content; });
}

// Reads "added_tokens_decoder", {"id": token}.
absl::Status ReadDecoder(const TokenizerJson& decoder, std::vector<AddedToken>& tokens) {
  if (!decoder.is_object()) return absl::InvalidArgumentError("field \"added_tokens_decoder\" is not an object");
  for (const auto& [key, value] : decoder.items()) {
    LIME_ASSIGN_OR_RETURN(AddedToken token, ParseNamedToken(value, key, false));
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), token.id);
    if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size() || token.id < 0) {
      return Invalid("field \"added_tokens_decoder\": \"", Text(key), "\" is not a token id");
    }
    tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

// Reads added_tokens.json, {"content": id}.
absl::Status ReadAddedTokens(const TokenizerJson& file, const std::vector<AddedToken>& named, std::vector<AddedToken>& tokens) {
  for (const auto& [content, id] : file.items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(kMaxTokenId)) {
      return Invalid("the id of \"", content, "\" is not a token id");
    }
    const bool special = Holds(named, content);
    tokens.push_back({.id = id.get<int32_t>(), .content = content, .normalized = !special, .special = special});
  }
  return absl::OkStatus();
}

// Looks up a field: in special_tokens_map.json if that file counts and has it, otherwise in
// tokenizer_config.json, otherwise in the class.
class Fields {
 public:
  Fields(const TokenizerConfigFiles& files, bool map_counts, std::string_view tokenizer_class)
      : files_(files), map_counts_(map_counts), of_class_(TokensOfClass(tokenizer_class)) {}

  const TokenizerJson& operator()(std::string_view key) const {
    if (OfMap(key)) return Field(files_.special_tokens_map, key);
    return files_.tokenizer_config.contains(key) ? Field(files_.tokenizer_config, key) : Field(of_class_, key);
  }

  std::string_view FileOf(std::string_view key) const { return OfMap(key) ? "special_tokens_map.json" : "tokenizer_config.json"; }

  // Whether the field exists and is null.
  bool IsNull(const char* key) const {
    return !OfMap(key) && files_.tokenizer_config.contains(key) && files_.tokenizer_config[key].is_null();
  }

 private:
  bool OfMap(std::string_view key) const { return map_counts_ && !Field(files_.special_tokens_map, key).is_null(); }

  const TokenizerConfigFiles& files_;
  const bool map_counts_;
  const TokenizerJson& of_class_;
};

absl::StatusOr<std::vector<AddedToken>> NamedTokens(const Fields& fields) {
  std::vector<AddedToken> tokens;
  const auto add = [&](const TokenizerJson& value, std::string_view key) -> absl::Status {
    auto token = ParseNamedToken(value, key, true);
    if (!token.ok()) return InFile(fields.FileOf(key), token.status());
    if (!Holds(tokens, token->content)) tokens.push_back(*std::move(token));
    return absl::OkStatus();
  };
  for (const std::string_view key : kTokenFields) {
    if (!fields(key).is_null()) LIME_RETURN_IF_ERROR(add(fields(key), key));
  }
  for (const std::string_view key : kTokenLists) {
    for (const TokenizerJson& value : fields(key)) {
      if (value.is_string() || value.is_object()) LIME_RETURN_IF_ERROR(add(value, key));
    }
  }
  return tokens;
}

std::optional<std::string> Content(const TokenizerJson& value) {
  if (value.is_string()) return value.get<std::string>();
  if (Field(value, "content").is_string()) return Field(value, "content").get<std::string>();
  return std::nullopt;
}

bool IsOneOf(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Sets the defaults of LlamaTokenizer and related classes. A flag that is null is off; a token that
// is null does not exist.
absl::Status CompleteLlamaClass(const Fields& fields, TokenizerConfig& config) {
  const bool gemma = config.tokenizer_class == "GemmaTokenizer", cohere = config.tokenizer_class == "CohereTokenizer";
  if (!IsLlamaClass(config)) return absl::OkStatus();
  if (!config.add_bos_token.has_value()) config.add_bos_token = !fields.IsNull("add_bos_token");
  if (!config.add_eos_token.has_value()) config.add_eos_token = false;
  const bool no_bos = fields.IsNull("bos_token"), no_eos = fields.IsNull("eos_token");
  if ((no_bos && *config.add_bos_token) || (no_eos && *config.add_eos_token)) {
    const std::string_view end = no_bos && *config.add_bos_token ? "bos" : "eos";
    return Invalid("field \"", Text(end), "_token\" is null, but the text gets that token: \"add_", Text(end), "_token\" is true for ",
                   config.tokenizer_class, "; name the token, or set \"add_", Text(end), "_token\" to false");
  }
  if (!config.bos_token.has_value() && !no_bos) config.bos_token = gemma ? "<bos>" : cohere ? "<BOS_TOKEN>" : "<s>";
  if (!config.eos_token.has_value() && !no_eos) config.eos_token = gemma ? "<eos>" : cohere ? "<|END_OF_TURN_TOKEN|>" : "</s>";
  return absl::OkStatus();
}

absl::Status ReadFlags(const TokenizerJson& json, TokenizerConfig& config) {
  LIME_ASSIGN_OR_RETURN(config.tokenizer_class, StringField(json, "tokenizer_class", ""));
  if (config.tokenizer_class.ends_with("Fast")) config.tokenizer_class.resize(config.tokenizer_class.size() - 4);
  LIME_ASSIGN_OR_RETURN(config.add_bos_token, OptionalBool(json, "add_bos_token"));
  LIME_ASSIGN_OR_RETURN(config.add_eos_token, OptionalBool(json, "add_eos_token"));
  LIME_ASSIGN_OR_RETURN(config.add_prefix_space, OptionalBool(json, "add_prefix_space"));
  LIME_ASSIGN_OR_RETURN(config.legacy, BoolField(json, "legacy", true));
  LIME_ASSIGN_OR_RETURN(config.pretokenize_regex, StringField(json, "pretokenize_regex", ""));
  LIME_ASSIGN_OR_RETURN(config.split_special_tokens, BoolField(json, "split_special_tokens", false));
  return absl::OkStatus();
}

absl::Status CheckObjects(const TokenizerConfigFiles& files) {
  for (const auto& [name, file] :
       {std::pair("tokenizer_config.json", &files.tokenizer_config), std::pair("special_tokens_map.json", &files.special_tokens_map),
        std::pair("added_tokens.json", &files.added_tokens)}) {
    if (!file->is_null() && !file->is_object()) return Invalid(name, ": is ", file->type_name(), ", need an object: {\"name\": ...}");
  }
  return absl::OkStatus();
}

// Sets add_prefix_space in one component, if it has such a setting.
void SetPrefixSpace(bool value, bool llama, TokenizerJson& component) {
  if (!component.is_object()) return;
  const std::string type = Field(component, "type").is_string() ? component["type"].get<std::string>() : "";
  if (type == "ByteLevel") component["add_prefix_space"] = value;
  if (!llama || value) return;
  if (type == "Prepend") component["prepend"] = "";
  if (type == "Metaspace") component["prepend_scheme"] = "never", component["add_prefix_space"] = false;
  for (const std::string_view parts : {"normalizers", "pretokenizers"}) {
    const auto list = component.find(parts);
    if (list == component.end() || !list->is_array()) continue;
    for (TokenizerJson& part : *list) {
      if (Field(part, "type") != "ByteLevel") SetPrefixSpace(value, llama, part);
    }
  }
}

}  // namespace

absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(const TokenizerConfigFiles& files) {
  LIME_RETURN_IF_ERROR(CheckObjects(files));
  TokenizerConfig config;
  const TokenizerJson& json = files.tokenizer_config;
  const TokenizerJson& decoder = Field(json, "added_tokens_decoder");
  LIME_RETURN_IF_ERROR(InFile("tokenizer_config.json", ReadFlags(json, config)));
  if (NamesNoClass(config.tokenizer_class) && !files.implied_class.empty()) config.tokenizer_class = files.implied_class;
  const Fields fields(files, decoder.is_null(), config.tokenizer_class);
  LIME_ASSIGN_OR_RETURN(const std::vector<AddedToken> named, NamedTokens(fields));
  config.bos_token = Content(fields("bos_token"));
  config.eos_token = Content(fields("eos_token"));
  LIME_RETURN_IF_ERROR(InFile("tokenizer_config.json", CompleteLlamaClass(fields, config)));
  if (!decoder.is_null()) {
    LIME_RETURN_IF_ERROR(InFile("tokenizer_config.json", ReadDecoder(decoder, config.added_tokens)));
  } else if (!files.added_tokens.is_null()) {
    LIME_RETURN_IF_ERROR(InFile("added_tokens.json", ReadAddedTokens(files.added_tokens, named, config.added_tokens)));
  }
  std::stable_sort(config.added_tokens.begin(), config.added_tokens.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  for (AddedToken& token : config.added_tokens) token.special = token.special || Holds(named, token.content);
  for (const AddedToken& token : named) {
    if (!Holds(config.added_tokens, token.content)) config.added_tokens.push_back(token);
  }
  return config;
}

bool NamesNoClass(std::string_view tokenizer_class) {
  return tokenizer_class.empty() || IsOneOf(tokenizer_class, {"PreTrainedTokenizer", "TokenizersBackend"});
}

bool IsLlamaClass(const TokenizerConfig& config) {
  return IsOneOf(config.tokenizer_class, {"LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "CohereTokenizer"});
}

void ApplyFlags(const TokenizerConfig& config, TokenizerJson& tokenizer) {
  if (!config.add_prefix_space.has_value() || !tokenizer.is_object()) return;
  for (const std::string_view key : {"normalizer", "pre_tokenizer"}) {
    const auto component = tokenizer.find(key);
    if (component != tokenizer.end()) SetPrefixSpace(*config.add_prefix_space, IsLlamaClass(config), *component);
  }
}

std::vector<AddedToken> TokensBeside(const TokenizerConfig& config, const std::vector<AddedToken>& tokens) {
  std::vector<AddedToken> beside;
  for (const AddedToken& token : config.added_tokens) {
    if (token.id >= 0 || !Holds(tokens, token.content)) beside.push_back(token);
  }
  return beside;
}

}  // namespace lime
