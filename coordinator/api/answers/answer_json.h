// Parts of answers that several endpoints share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "coordinator/api/answers/answer_events.h"
#include "coordinator/api/api_request.h"

namespace lime {

inline constexpr std::string_view kSseKeepAlive = ": keep-alive\n\n";
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";

// "data: {...}" and an empty line; before it "event: NAME" if there is a name.
void AppendSse(const Json& data, std::string_view event, std::string& out);

// stop, length or tool_calls.
std::string_view FinishName(AnswerFinish finish);

// prompt_tokens, completion_tokens, ...
Json UsageJson(const AnswerReport& report);
// input_tokens, output_tokens, ..., as responses name them.
Json ResponsesUsageJson(const AnswerReport& report);
// seed, numerics_id, ..., timings.
Json LimeJson(const AnswerReport& report);
// Of a choice: 16 hexadecimal digits, as `lime run --hash-logits` prints them.
std::string HashHex(uint64_t hash);

// 2024-07-26T09:30:00Z.
std::string IsoTime(int64_t seconds);

// The text of a token. Bytes that are not UTF-8 are written as \xe2.
std::string TokenText(std::string_view token);
// Entries of token, logprob, bytes, top_logprobs.
Json ScoresJson(const std::vector<TokenScore>& scores);
// The old form: tokens, token_logprobs, top_logprobs, text_offset; where there are any also ours,
// top_logits: [[id, logit], ...] of the likeliest tokens behind each token. `offset`: the characters before
// the first token; afterwards, before the next one.
Json OldScoresJson(const std::vector<TokenScore>& scores, int64_t& offset);

}  // namespace lime
