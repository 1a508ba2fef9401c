#include "coordinator/api/answers/answer_json.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "coordinator/text/unicode/utf8.h"
#include "planner/base/json_text.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

// As OpenAI writes an impossible token, since JSON has no infinity.
constexpr double kImpossible = -9999;

Json Logprob(double logprob) {
  return std::isfinite(logprob) ? logprob : kImpossible;
}

// In microseconds at most: nobody reads more digits.
Json Milliseconds(double ms) {
  return std::isfinite(ms) ? Json(std::round(ms * 1000) / 1000) : Json();
}

Json Bytes(std::string_view token) {
  Json bytes = Json::array();
  for (const char c : token) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

Json Entry(std::string_view token, const Json& logprob) {
  return {{"token", TokenText(token)}, {"logprob", logprob}, {"bytes", Bytes(token)}};
}

std::string OldTokenText(std::string_view token) {
  return IsUtf8(token) ? std::string(token) : absl::StrCat("bytes:", TokenText(token));
}

Json NextJson(const std::vector<TokenScore>& scores) {
  Json all = Json::array();
  for (const TokenScore& score : scores) {
    Json next = Json::array();
    for (const auto& [id, logit] : score.next) next.push_back(Json::array({id, logit}));
    all.push_back(std::move(next));
  }
  return all;
}

// Characters that begin in `token`.
int64_t Characters(std::string_view token) {
  return std::ranges::count_if(token, [](unsigned char c) { return (c & 0xC0) != 0x80; });
}

}  // namespace

void AppendSse(const Json& data, std::string_view event, std::string& out) {
  if (!event.empty()) absl::StrAppend(&out, "event: ", Text(event), "\n");
  absl::StrAppend(&out, "data: ", JsonText(data), "\n\n");
}

std::string_view FinishName(AnswerFinish finish) {
  switch (finish) {
    case AnswerFinish::kStop:
      return "stop";
    case AnswerFinish::kLength:
      return "length";
    case AnswerFinish::kToolCalls:
      return "tool_calls";
  }
  return "stop";
}

Json UsageJson(const AnswerReport& report) {
  return {{"prompt_tokens", report.prompt_tokens},
          {"completion_tokens", report.completion_tokens},
          {"total_tokens", report.prompt_tokens + report.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", report.cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", report.reasoning_tokens}}}};
}

Json ResponsesUsageJson(const AnswerReport& report) {
  return {{"input_tokens", report.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", report.cached_tokens}}},
          {"output_tokens", report.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", report.reasoning_tokens}}},
          {"total_tokens", report.prompt_tokens + report.completion_tokens}};
}

Json LimeJson(const AnswerReport& report) {
  Json lime = {{"seed", report.seed},
               {"numerics_id", report.numerics_id},
               {"plan_epoch", report.plan_epoch},
               {"recoveries", report.recoveries},
               {"plan_changes", report.plan_changes},
               {"timings",
                {{"queue_ms", Milliseconds(report.queue_ms)},
                 {"prompt_ms", Milliseconds(report.prompt_ms)},
                 {"ttft_ms", Milliseconds(report.ttft_ms)},
                 {"ms_per_token", Milliseconds(report.ms_per_token)},
                 {"predicted_ms_per_token", Milliseconds(report.predicted_ms_per_token)}}}};
  if (!report.hash_state.empty()) lime["hash_state"] = absl::Base64Escape(report.hash_state);
  return lime;
}

std::string HashHex(uint64_t hash) {
  return absl::StrFormat("%016x", hash);
}

std::string IsoTime(int64_t seconds) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixSeconds(seconds), absl::UTCTimeZone());
}

std::string TokenText(std::string_view token) {
  std::string text;
  while (!token.empty()) {
    const Utf8Char next = DecodeUtf8(token);
    const std::string_view bytes = token.substr(0, next.length);
    if (next.ok) text += bytes;
    for (size_t i = 0; !next.ok && i < bytes.size(); ++i) absl::StrAppendFormat(&text, "\\x%02x", static_cast<unsigned char>(bytes[i]));
    token.remove_prefix(bytes.size());
  }
  return text;
}

Json ScoresJson(const std::vector<TokenScore>& scores) {
  Json entries = Json::array();
  for (const TokenScore& score : scores) {
    Json entry = Entry(score.token, score.logprob ? Logprob(*score.logprob) : Json());
    entry["top_logprobs"] = Json::array();
    for (const auto& [token, logprob] : score.top) entry["top_logprobs"].push_back(Entry(token, Logprob(logprob)));
    entries.push_back(std::move(entry));
  }
  return entries;
}

Json OldScoresJson(const std::vector<TokenScore>& scores, int64_t& offset) {
  Json tokens = Json::array(), logprobs = Json::array(), tops = Json::array(), offsets = Json::array();
  for (const TokenScore& score : scores) {
    tokens.push_back(OldTokenText(score.token));
    logprobs.push_back(score.logprob ? Logprob(*score.logprob) : Json());
    Json top;
    for (const auto& [token, logprob] : score.top) {
      if (const std::string key = OldTokenText(token); !top.contains(key)) top[key] = Logprob(logprob);
    }
    // The token itself is always there.
    if (const std::string key = OldTokenText(score.token); score.logprob && !top.contains(key)) top[key] = Logprob(*score.logprob);
    tops.push_back(std::move(top));
    offsets.push_back(offset);
    if (score.is_in_text) offset += Characters(score.token);
  }
  Json json = {{"tokens", std::move(tokens)},
               {"token_logprobs", std::move(logprobs)},
               {"top_logprobs", std::move(tops)},
               {"text_offset", std::move(offsets)}};
  if (std::ranges::any_of(scores, [](const TokenScore& score) { return !score.next.empty(); })) json["top_logits"] = NextJson(scores);
  return json;
}

}  // namespace lime
