// Prompts of a request as text and as ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/civil_time.h"
#include "coordinator/api/api_error.h"
#include "coordinator/api/api_request.h"
#include "coordinator/generation/served_model.h"

namespace lime {

// The text of a chat: by the model's template, or without one the contents, joined by line feeds.
// `param`: the field that holds the prompt, for errors.
ApiResult<std::string> ChatText(const ServedModel& model, const ChatPrompt& prompt, std::string_view param, absl::CivilSecond now);

// Ids of a text. `add_special`: as `lime run` encodes a prompt.  `most`: more ids than these are an
// error (context_length_exceeded), which comes early where the text is far too long.
ApiResult<std::vector<int32_t>> TextIds(const ServedModel& model, std::string_view text, bool add_special, std::string_view param,
                                        int64_t most);

// Whether ChatText needs BOS and the like: a template writes its own.
inline bool AddsSpecialToChat(const ServedModel& model) {
  return model.is_plain();
}

}  // namespace lime
