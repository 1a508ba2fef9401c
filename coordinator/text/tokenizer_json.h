// Reads tokenizer.json.
#pragma once

#include "coordinator/text/tokenizer.h"

namespace lime {

// REQUIRES: `json` has been parsed with bounded depth (ParseJson).
absl::StatusOr<TokenizerParts> PartsFromJson(const Json& json);

}  // namespace lime
