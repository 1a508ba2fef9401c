#include "coordinator/client/answer_chunk.h"

#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "planner/base/json_text.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

using nlohmann::json;

constexpr char kName[] = "the answer";
constexpr size_t kMostText = 400;  // of an answer that is no JSON, in a sentence

// Reads fields of an object. The first one of a wrong type becomes the error.
class Fields {
 public:
  // `path`: of the object, as in choices[0]; empty for the answer itself.
  Fields(const json& object, std::string path, absl::Status& error) : object_(object), path_(std::move(path)), error_(error) {
    if (!object.is_object()) Wrong("", "an object");
  }

  // Null if it is absent or null.
  const json* Find(const char* key) const {
    if (!object_.is_object()) return nullptr;
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  const json* Array(const char* key) const {
    const json* const value = Find(key);
    if (value == nullptr || value->is_array()) return value;
    Wrong(key, "an array");
    return nullptr;
  }
  void Read(const char* key, std::string& to) const {
    const json* const value = Find(key);
    if (value == nullptr) return;
    if (!value->is_string()) return Wrong(key, "a text");
    to = value->get<std::string>();
  }
  template <typename T>
  void ReadInteger(const char* key, T& to) const {
    const json* const value = Find(key);
    if (value != nullptr) to = Integer<T>(*value, key);
  }
  void Read(const char* key, double& to) const {
    const json* const value = Find(key);
    if (value == nullptr) return;
    if (!value->is_number()) return Wrong(key, "a number");
    to = value->get<double>();
  }
  // 0 if it is none, with the error.
  template <typename T>
  T Integer(const json& value, const char* key) const {
    if (value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<T>::max())) return value.get<T>();
    Wrong(key, "an integer from 0 on");
    return 0;
  }
  Fields Below(const json& object, std::string_view place) const { return {object, PathOf(place), error_}; }
  std::string PathOf(std::string_view key) const {
    if (path_.empty() || key.empty()) return path_ + std::string(key);
    return absl::StrCat(path_, ".", Text(key));
  }
  void Wrong(std::string_view key, std::string_view expected) const {
    const std::string place = PathOf(key);
    error_.Update(Invalid(kName, place.empty() ? "" : absl::StrCat(": ", place), " is not ", Text(expected),
                          "; see whether --url names a server of OpenAI's API"));
  }

 private:
  const json& object_;
  const std::string path_;
  absl::Status& error_;
};

std::string Indexed(std::string_view key, size_t index) {
  return absl::StrCat(Text(key), "[", index, "]");
}

void ReadCalls(const Fields& message, ChoicePart& part) {
  const json* const calls = message.Array("tool_calls");
  for (size_t i = 0; calls != nullptr && i < calls->size(); ++i) {
    const Fields call = message.Below((*calls)[i], Indexed("tool_calls", i));
    CallPart& read = part.calls.emplace_back();
    read.index = static_cast<int64_t>(i);
    call.ReadInteger("index", read.index);
    call.Read("id", read.id);
    const json* const function = call.Find("function");
    if (function == nullptr) continue;
    const Fields fields = call.Below(*function, "function");
    fields.Read("name", read.name);
    fields.Read("arguments", read.arguments);
  }
}

void ReadMessage(const Fields& message, ChoicePart& part) {
  message.Read("content", part.content);
  message.Read("reasoning", part.reasoning);  // as some servers call it
  message.Read("reasoning_content", part.reasoning);
  ReadCalls(message, part);
}

void ReadTopLogits(const Fields& scores, const json& tops, ChoicePart& part) {
  for (const json& top : tops) {
    std::vector<std::pair<int32_t, float>>& read = part.top_logits.emplace_back();
    if (!top.is_array()) return scores.Wrong("top_logits", "an array of arrays");
    for (const json& entry : top) {
      if (!entry.is_array() || entry.size() != 2 || !entry[1].is_number()) return scores.Wrong("top_logits", "pairs of an id and a logit");
      read.emplace_back(scores.Integer<int32_t>(entry[0], "top_logits"), entry[1].get<float>());
    }
  }
}

// The old form. That of chat completions is not read: nobody asks for it.
void ReadScores(const Fields& choice, ChoicePart& part) {
  const json* const object = choice.Find("logprobs");
  if (object == nullptr) return;
  const Fields scores = choice.Below(*object, "logprobs");
  const json* const logprobs = scores.Array("token_logprobs");
  for (size_t i = 0; logprobs != nullptr && i < logprobs->size(); ++i) {
    const json& logprob = (*logprobs)[i];
    if (!logprob.is_null() && !logprob.is_number()) return scores.Wrong(Indexed("token_logprobs", i), "a number");
    part.token_logprobs.push_back(logprob.is_null() ? std::nullopt : std::optional(logprob.get<double>()));
  }
  if (const json* const tops = scores.Array("top_logits")) ReadTopLogits(scores, *tops, part);
}

ChoicePart ReadChoice(const Fields& choice, size_t place) {
  ChoicePart part{.index = static_cast<int64_t>(place)};
  choice.ReadInteger("index", part.index);
  choice.Read("text", part.content);
  for (const char* const key : {"delta", "message"}) {
    if (const json* const message = choice.Find(key)) ReadMessage(choice.Below(*message, key), part);
  }
  choice.Read("finish_reason", part.finish);
  choice.Read("logits_xxh3", part.logits_xxh3);
  if (const json* const ids = choice.Array("token_ids")) {
    for (const json& id : *ids) part.token_ids.push_back(choice.Integer<int32_t>(id, "token_ids"));
  }
  ReadScores(choice, part);
  return part;
}

void ReadUsage(const Fields& usage, AnswerReport& report) {
  usage.ReadInteger("prompt_tokens", report.prompt_tokens);
  usage.ReadInteger("completion_tokens", report.completion_tokens);
  if (const json* const details = usage.Find("prompt_tokens_details"))
    usage.Below(*details, "prompt_tokens_details").ReadInteger("cached_tokens", report.cached_tokens);
  if (const json* const details = usage.Find("completion_tokens_details"))
    usage.Below(*details, "completion_tokens_details").ReadInteger("reasoning_tokens", report.reasoning_tokens);
}

void ReadLime(const Fields& lime, AnswerReport& report) {
  lime.ReadInteger("seed", report.seed);
  std::string hash_state;
  lime.Read("hash_state", hash_state);
  if (!absl::Base64Unescape(hash_state, &report.hash_state)) lime.Wrong("hash_state", "base64");
  lime.Read("numerics_id", report.numerics_id);
  lime.ReadInteger("plan_epoch", report.plan_epoch);
  lime.ReadInteger("recoveries", report.recoveries);
  lime.ReadInteger("plan_changes", report.plan_changes);
  const json* const object = lime.Find("timings");
  if (object == nullptr) return;
  const Fields timings = lime.Below(*object, "timings");
  timings.Read("queue_ms", report.queue_ms);
  timings.Read("prompt_ms", report.prompt_ms);
  timings.Read("ttft_ms", report.ttft_ms);
  timings.Read("ms_per_token", report.ms_per_token);
  timings.Read("predicted_ms_per_token", report.predicted_ms_per_token);
}

// A string of an error object, or the digits of a number, which some servers write there.
std::string WordOf(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return "";
  if (found->is_string()) return found->get<std::string>();
  return found->is_number_integer() ? found->dump() : "";
}

// False if the object has no error in it.
bool ReadErrorObject(const json& answer, ApiError& error) {
  const auto found = answer.find("error");
  if (found == answer.end() || found->is_null()) return false;
  if (!found->is_object()) {
    error.message = found->is_string() ? found->get<std::string>() : found->dump(-1, ' ', false, json::error_handler_t::replace);
    return true;
  }
  error.message = WordOf(*found, "message");
  error.type = WordOf(*found, "type");
  error.code = WordOf(*found, "code");
  error.param = WordOf(*found, "param");
  return true;
}

}  // namespace

absl::StatusOr<AnswerChunk> ReadAnswerChunk(std::string_view text, Bytes max_bytes) {
  LIME_ASSIGN_OR_RETURN(const json answer, ParseJsonObject(text, kName, max_bytes));
  AnswerChunk chunk;
  if (ApiError failed{.status = 500}; ReadErrorObject(answer, failed)) {
    chunk.error = std::move(failed);
    return chunk;
  }
  absl::Status error;
  const Fields fields(answer, "", error);
  fields.Read("model", chunk.model);
  const json* const choices = fields.Array("choices");
  for (size_t i = 0; choices != nullptr && i < choices->size(); ++i)
    chunk.choices.push_back(ReadChoice(fields.Below((*choices)[i], Indexed("choices", i)), i));
  if (const json* const usage = fields.Find("usage")) {
    chunk.has_usage = true;
    ReadUsage(fields.Below(*usage, "usage"), chunk.report);
  }
  if (const json* const lime = fields.Find("lime")) {
    chunk.has_lime = true;
    ReadLime(fields.Below(*lime, "lime"), chunk.report);
  }
  if (!error.ok()) return error;
  return chunk;
}

ApiError ReadApiError(int status, std::string_view body) {
  ApiError error{.status = status, .type = "", .code = "", .param = "", .message = "", .headers = {}};
  const absl::StatusOr<json> answer = ParseJsonObject(body, kName);
  if (answer.ok() && ReadErrorObject(*answer, error) && !error.message.empty()) return error;
  error.message = body.empty() ? "without a word" : std::string(QuotedInput(body.substr(0, kMostText)));
  return error;
}

}  // namespace lime
