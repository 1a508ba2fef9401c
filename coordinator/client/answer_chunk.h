// Reads answers of OpenAI's API: chunks of a stream, and whole answers. Pure.
//
// The reader takes answers of other servers, too: a field that is absent or null is left as it is, one
// that nobody needs is ignored. A needed field of a wrong type is an error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/api/answers/answer_events.h"
#include "coordinator/api/api_error.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

// A call of a tool, or a piece of one: the first piece has `id` and `name`.
struct CallPart {
  int64_t index = 0;
  std::string id, name, arguments;

  friend bool operator==(const CallPart&, const CallPart&) = default;
};

// What a chunk says about one choice, or the whole choice.
struct ChoicePart {
  int64_t index = 0;
  std::string content;  // of a message, a delta, or a completion
  std::string reasoning;
  std::vector<CallPart> calls;
  std::string finish;  // finish_reason; empty: goes on
  // Ours, in the last chunk of the choice.
  std::vector<int32_t> token_ids;
  std::string logits_xxh3;
  // Completions: of the tokens in this chunk; nullopt for the first token of a prompt.
  std::vector<std::optional<double>> token_logprobs;
  // Ours: ids and logits of the likeliest tokens behind each of these tokens.
  std::vector<std::vector<std::pair<int32_t, float>>> top_logits;
};

struct AnswerChunk {
  std::string model;
  std::vector<ChoicePart> choices;
  bool has_usage = false, has_lime = false;
  AnswerReport report;            // the counts if has_usage, the rest if has_lime
  std::optional<ApiError> error;  // then the rest is empty
};

// InvalidArgument, with the place, if the text is no such answer.
absl::StatusOr<AnswerChunk> ReadAnswerChunk(std::string_view json, Bytes max_bytes = 16 * kMiB);

// What the body of an answer with this status says: OpenAI's error object, Ollama's, or any text.
ApiError ReadApiError(int status, std::string_view body);

}  // namespace lime
