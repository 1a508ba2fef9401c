// Reads tokenizer.json.
#pragma once

#include "coordinator/text/tokenizer.h"

namespace lime {

// REQUIRES: `json` has been parsed with bounded depth (ParseJson).
absl::StatusOr<TokenizerParts> PartsFromJson(const Json& json);

// The tokenizer.json that GPT-2 and OPT folders leave out: byte-level BPE over their vocab.json and merges.txt.
Json JsonFromVocabAndMerges(Json vocab, std::string_view merges_txt);

}  // namespace lime
