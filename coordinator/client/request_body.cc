#include "coordinator/client/request_body.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "coordinator/api/requests/chat_messages.h"
#include "planner/base/json_text.h"

namespace lime {
namespace {

template <typename T>
void Put(Json& body, const char* key, const std::optional<T>& value) {
  if (value) body[key] = *value;
}
void PutIf(Json& body, const char* key, bool differs, const Json& value) {
  if (differs) body[key] = value;
}

void PutSampling(const RequestedSampling& sampling, Json& body) {
  Put(body, "temperature", sampling.temperature);
  Put(body, "top_p", sampling.top_p);
  Put(body, "top_k", sampling.top_k);
  Put(body, "min_p", sampling.min_p);
  Put(body, "repetition_penalty", sampling.repetition_penalty);
  PutIf(body, "frequency_penalty", sampling.frequency_penalty != 0, sampling.frequency_penalty);
  PutIf(body, "presence_penalty", sampling.presence_penalty != 0, sampling.presence_penalty);
  for (const auto& [id, bias] : sampling.logit_bias) body["logit_bias"][absl::StrCat(id)] = bias;
  Put(body, "seed", sampling.seed);
}

// What both endpoints have.
Json CommonBody(const ApiRequest& request) {
  Json body = Json::object();
  PutIf(body, "model", !request.model.empty(), request.model);
  Put(body, "max_tokens", request.max_tokens);
  PutSampling(request.sampling, body);
  PutIf(body, "n", request.n != 1, request.n);
  PutIf(body, "stop", !request.stop.empty(), request.stop);
  PutIf(body, "stream", request.stream, true);
  PutIf(body, "stream_options", request.include_usage, {{"include_usage", true}});
  PutIf(body, "ignore_eos", request.ignore_eos, true);
  PutIf(body, "hash_logits", request.hash_logits, true);
  PutIf(body, "return_token_ids", request.return_token_ids, true);
  PutIf(body, "cache_prompt", !request.cache_prompt, false);
  return body;
}

}  // namespace

std::string ChatBody(const ApiRequest& request) {
  Json body = CommonBody(request);
  body["messages"] = Json::array();
  for (const ChatMessage& message : request.chat()->messages)
    body["messages"].push_back({{"role", kRoles.Of(message.role)}, {"content", message.content.value_or("")}});
  return JsonText(body);
}

std::string CompletionBody(const ApiRequest& request) {
  Json body = CommonBody(request);
  body["prompt"] = Json::array();
  for (const TextPrompt& prompt : std::get<TextPrompts>(request.prompt))
    std::visit([&](const auto& text) { body["prompt"].push_back(text); }, prompt);
  Put(body, "logprobs", request.top_logprobs);
  PutIf(body, "echo", request.echo, true);
  if (request.hash_state) body["lime"]["hash_state"] = absl::Base64Escape(*request.hash_state);
  return JsonText(body);
}

}  // namespace lime
