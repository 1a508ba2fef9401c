// What the files beside a tokenizer say about it: tokenizer_config.json, special_tokens_map.json and added_tokens.json.
//
// Read as transformers reads them. "added_tokens_decoder" of tokenizer_config.json replaces the two other files; without it the tokens that
// special_tokens_map.json names override those of tokenizer_config.json. Tokens that neither names are those of the class
// (class_tokens.cc).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/text/added_tokens.h"
#include "coordinator/text/json_access.h"

namespace lime {

struct TokenizerConfig {
  std::string tokenizer_class;  // without "Fast"; empty where nothing names it
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::optional<bool> add_prefix_space;
  bool legacy = true;                 // a prefix of tokenizer.model stands behind every added token, not only at the text's start
  std::string pretokenize_regex;      // in place of the pattern of a Qwen class; empty: that of the class
  bool split_special_tokens = false;  // special tokens in a text are text
  // Those with an id first, in the order of their ids; then those without, which have id -1.
  std::vector<AddedToken> added_tokens;
};

// Null for a file that is not there.
struct TokenizerConfigFiles {
  Json tokenizer_config;
  Json special_tokens_map;
  Json added_tokens;
  std::string implied_class;  // where tokenizer_config.json names none; without "Fast"
};

// Errors open with the name of the file that is wrong.
absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(const TokenizerConfigFiles& files);

// No class at all, or one that says nothing of how text is split.
bool NamesNoClass(std::string_view tokenizer_class);

// LlamaTokenizer and its kin, whose post-processor follows the flags and not tokenizer.json.
bool IsLlamaClass(const TokenizerConfig& config);

// Puts the flags of `config` into the components of a tokenizer.json.
void ApplyFlags(const TokenizerConfig& config, Json& tokenizer);

// The added tokens of `config` that say more than `tokens`: a special token without an id that is there already stays as it is.
std::vector<AddedToken> TokensBeside(const TokenizerConfig& config, const std::vector<AddedToken>& tokens);

// The special tokens that a tokenizer's class has in transformers where no file names them: {"bos_token": ..., ...} of the class, whose
// name is without "Fast". Empty for a class that has none, or is not known.
const Json& TokensOfClass(std::string_view tokenizer_class);

}  // namespace lime
