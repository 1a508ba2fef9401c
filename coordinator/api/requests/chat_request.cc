// POST /v1/chat/completions, and /apply-template, which has its prompt alone.
#include "coordinator/api/requests/chat_messages.h"
#include "coordinator/api/requests/endpoint_parsers.h"
#include "coordinator/api/requests/generation_fields.h"
#include "coordinator/api/requests/tool_fields.h"

namespace lime {
namespace {

void ReadMaxTokens(RequestFields& fields, ApiRequest& request) {
  const std::optional<int64_t> old = fields.Int("max_tokens", 1, std::numeric_limits<int64_t>::max());
  const std::optional<int64_t> now = fields.Int("max_completion_tokens", 1, std::numeric_limits<int64_t>::max());
  request.max_tokens = now ? now : old;
}

void ReadLogprobs(RequestFields& fields, ApiRequest& request) {
  const bool wanted = fields.BoolOr("logprobs", false);
  const std::optional<int64_t> top = fields.Int("top_logprobs", 0, kMaxTopLogprobs);
  if (wanted) request.top_logprobs = static_cast<int32_t>(top.value_or(0));
  if (!wanted && top) fields.errors().Add(InvalidValue("top_logprobs", "it is allowed only where 'logprobs' is true"));
}

void ReadPrompt(RequestFields& fields, const ParseOptions& options, ApiRequest& request) {
  ChatPrompt& prompt = request.prompt.emplace<ChatPrompt>();
  request.add_special = false;
  prompt.messages = ReadChatMessages(fields);
  ReadChatTools(fields, options, request);
  ReadTemplateFields(fields, prompt);
  ReadReasoningEffort(fields, "reasoning_effort", prompt);
}

}  // namespace

void ParseChat(RequestFields& fields, const ParseOptions& options, ApiRequest& request) {
  ReadModel(fields, options, request);
  ReadPrompt(fields, options, request);
  ReadMaxTokens(fields, request);
  ReadSampling(fields, options, request.sampling);
  ReadN(fields, request);
  request.stop = ReadStop(fields, kMaxStops);
  ReadLogprobs(fields, request);
  ReadStream(fields, request);
  if (const Json* format = fields.Object("response_format")) {
    RequestFields inner(*format, "response_format", fields.errors());
    ReadFormat(inner, "json_schema", options, request.format);
  }
  ReadOurFields(fields, request);
}

void ParseApplyTemplate(RequestFields& fields, const ParseOptions& options, ApiRequest& request) {
  ReadModel(fields, options, request);
  ReadPrompt(fields, options, request);
}

}  // namespace lime
