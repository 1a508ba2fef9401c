// Reads SentencePiece's tokenizer.model.
#pragma once

#include "coordinator/text/tokenizer.h"

namespace lime {

// `config` overrides the model's own BOS, EOS and whether they are added (BOS: yes, EOS: no).
absl::StatusOr<TokenizerParts> PartsFromSentencePiece(std::string_view bytes, SpecialTokensConfig& config);

}  // namespace lime
