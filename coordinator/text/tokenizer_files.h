// Reads each kind of tokenizer file into TokenizerParts.
#pragma once

#include <string>
#include <string_view>

#include "coordinator/text/tokenizer.h"
#include "coordinator/text/tokenizer_config.h"

namespace lime {

// tokenizer.json. REQUIRES: `json` was parsed with bounded depth (ParseJson).
absl::StatusOr<TokenizerParts> PartsFromJson(const TokenizerJson& json);

// SentencePiece's tokenizer.model. `config` overrides the model's BOS and EOS, whether they are
// added (default: BOS yes, EOS no), and whether a space is put before the text.
absl::StatusOr<TokenizerParts> PartsFromSentencePiece(std::string_view bytes, TokenizerConfig& config);

// vocab.json with merges.txt, converted to a tokenizer.json. Each class splits text and marks its
// ends in its own way, which only the code of transformers states. An unknown class is an error
// that names it. A class that says nothing (NamesNoClass) is treated as GPT-2's.
absl::StatusOr<TokenizerJson> JsonFromVocabAndMerges(TokenizerJson vocab, std::string_view merges_txt, const TokenizerConfig& config);

// The class for a model_type of config.json, used if tokenizer_config.json names none. An error
// with advice for a model_type that is unknown, or whose tokenizer has other files.
absl::StatusOr<std::string> ClassOfModelType(std::string_view model_type);

}  // namespace lime
