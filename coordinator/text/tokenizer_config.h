// The settings in the files beside a tokenizer: tokenizer_config.json, special_tokens_map.json and
// added_tokens.json.
//
// They are read as in transformers. "added_tokens_decoder" of tokenizer_config.json replaces the
// two other files. Without it, tokens in special_tokens_map.json override those of
// tokenizer_config.json. Tokens that neither file names come from the class (class_tokens.cc).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/text/components/added_tokens.h"
#include "coordinator/text/components/json_access.h"

namespace lime {

struct TokenizerConfig {
  std::string tokenizer_class;  // without "Fast"; empty: no file names one
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::optional<bool> add_prefix_space;
  // The prefix of tokenizer.model is added behind every added token, not only at the start of the
  // text.
  bool legacy = true;
  // Replaces the pattern of a Qwen class. Empty: the class's pattern.
  std::string pretokenize_regex;
  bool split_special_tokens = false;  // special tokens in a text stay text
  // First the tokens with an id, by id; then those without, which have id -1.
  std::vector<AddedToken> added_tokens;
};

// A file that does not exist is null.
struct TokenizerConfigFiles {
  TokenizerJson tokenizer_config;
  TokenizerJson special_tokens_map;
  TokenizerJson added_tokens;
  // Used if tokenizer_config.json names no class. Without "Fast".
  std::string implied_class;
};

// Errors begin with the name of the faulty file.
absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(const TokenizerConfigFiles& files);

// No class, or one that does not say how text is split.
bool NamesNoClass(std::string_view tokenizer_class);

// LlamaTokenizer and related classes: their post-processor follows the flags, not tokenizer.json.
bool IsLlamaClass(const TokenizerConfig& config);

// Applies the flags of `config` to the components of a tokenizer.json.
void ApplyFlags(const TokenizerConfig& config, TokenizerJson& tokenizer);

// The added tokens of `config` that change `tokens`. A special token without an id that is in
// `tokens` already is left out.
std::vector<AddedToken> TokensBeside(const TokenizerConfig& config, const std::vector<AddedToken>& tokens);

// The special tokens that a class has in transformers if no file names them: {"bos_token": ...,
// ...}. The class name is without "Fast". Empty for a class without such tokens, or an unknown
// class.
const TokenizerJson& TokensOfClass(std::string_view tokenizer_class);

}  // namespace lime
