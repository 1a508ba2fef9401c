// Reads SentencePiece's tokenizer.model.
#pragma once

#include "coordinator/text/tokenizer.h"

namespace lime {

// `config` overrides the model's own BOS, EOS, whether they are added (BOS: yes, EOS: no), and where a space is put before the text.
absl::StatusOr<TokenizerParts> PartsFromSentencePiece(std::string_view bytes, TokenizerConfig& config);

}  // namespace lime
