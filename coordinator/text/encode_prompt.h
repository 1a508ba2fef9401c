// A prompt of a user as ids.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "coordinator/text/tokenizer.h"

namespace lime {

// With BOS in front if the tokenizer asks for it. An empty prompt is `bos` alone. An error if there
// is none, or if an id is not one of the model's `vocab_size` ids.
absl::StatusOr<std::vector<int32_t>> EncodePrompt(const Tokenizer& tokenizer, std::string_view text, std::optional<int32_t> bos,
                                                  int64_t vocab_size);

// An error if one of the tokenizer's ids is not one of the model's.
absl::Status CheckIdsOfModel(std::span<const int32_t> ids, int64_t vocab_size);

}  // namespace lime
