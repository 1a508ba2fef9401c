// The "post_processor" of tokenizer.json: ids before and after the text (BOS, EOS).
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/text/components/json_access.h"

namespace lime {

struct PostProcessor {
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;
};

// Null adds no ids.
absl::StatusOr<PostProcessor> ParsePostProcessor(const TokenizerJson& json);

}  // namespace lime
