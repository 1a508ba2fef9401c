// The files that tokenizers come in, each read into the parts of one.
#pragma once

#include <string>
#include <string_view>

#include "coordinator/text/tokenizer.h"
#include "coordinator/text/tokenizer_config.h"

namespace lime {

// tokenizer.json.  REQUIRES: `json` has been parsed with bounded depth (ParseJson).
absl::StatusOr<TokenizerParts> PartsFromJson(const Json& json);

// SentencePiece's tokenizer.model.  `config` overrides the model's own BOS, EOS, whether they are added (BOS: yes, EOS: no), and where a
// space is put before the text.
absl::StatusOr<TokenizerParts> PartsFromSentencePiece(std::string_view bytes, TokenizerConfig& config);

// vocab.json with merges.txt, as the tokenizer.json that was not shipped with them.  Each class splits text and marks its ends in a way of
// its own, which only its code tells: an error that names the class for one that is not known. One that says nothing (NamesNoClass) is
// GPT-2's.
absl::StatusOr<Json> JsonFromVocabAndMerges(Json vocab, std::string_view merges_txt, const TokenizerConfig& config);

// The class that a model_type of config.json stands for where tokenizer_config.json names none. An error that says what to do for a
// model_type whose tokenizer has no such files, or is not known.
absl::StatusOr<std::string> ClassOfModelType(std::string_view model_type);

}  // namespace lime
