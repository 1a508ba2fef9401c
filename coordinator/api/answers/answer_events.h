// What happens to an answer, from the first piece of text to the counts at its end. Pure data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace lime {

// What all parts of an answer repeat.
struct AnswerHead {
  std::string id;           // chatcmpl-..., cmpl-..., resp_...
  int64_t created = 0;      // seconds of Unix time
  std::string model;        // its id
  std::string fingerprint;  // system_fingerprint
  // Completions without echo: the characters of each choice's prompt, at which text_offset begins.
  // Empty: 0.
  std::vector<int64_t> first_offsets;
};

// Text of the answer. Pieces may end within a character.
struct ContentPiece {
  std::string text;
};
// Text of the thinking before it.
struct ReasoningPiece {
  std::string text;
};
// A call of a tool begins. It ends with CallEnd, with text, or with the next call.
struct CallBegin {
  std::string id, name;
};
// REQUIRES: a call has begun and not ended.
struct CallArguments {
  std::string text;
};
struct CallEnd {};

// Log-probabilities of one token. They go out with the next piece of text.
struct TokenScore {
  std::string token;                                // its bytes, which may be part of a character
  std::optional<double> logprob;                    // nullopt: the first token of a prompt
  std::vector<std::pair<std::string, double>> top;  // likeliest first
  bool is_in_text = true;                           // false: a special token, whose name is not in the text
  // Of a prompt that is scored, where ids are asked for: ids and logits of the likeliest tokens
  // behind this one.
  std::vector<std::pair<int32_t, float>> next;
};
// The id of a token, where ids are asked for.
struct TokenId {
  int32_t id = 0;
};

enum class AnswerFinish {
  kStop,       // an end token or a stop string
  kLength,     // no tokens left
  kToolCalls,  // a call
};
// The last event of a choice.
struct ChoiceEnd {
  AnswerFinish finish = AnswerFinish::kStop;
  uint64_t logits_hash = 0;  // where it is asked for
};

using ChoiceEvent = std::variant<ContentPiece, ReasoningPiece, CallBegin, CallArguments, CallEnd, TokenScore, TokenId, ChoiceEnd>;

// Counts and times of a whole answer.
struct AnswerReport {
  int64_t prompt_tokens = 0, cached_tokens = 0;
  int64_t completion_tokens = 0, reasoning_tokens = 0;
  uint64_t seed = 0;
  std::string hash_state;  // bytes of LogitsHash::State behind a scored prompt, where it is asked for
  std::string numerics_id;
  int64_t plan_epoch = 0, recoveries = 0, plan_changes = 0;
  double queue_ms = 0, prompt_ms = 0, ttft_ms = 0, ms_per_token = 0, predicted_ms_per_token = 0;
  double total_ms = 0, generation_ms = 0;  // for Ollama alone
};

}  // namespace lime
