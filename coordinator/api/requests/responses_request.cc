// POST /v1/responses: items become messages. Nothing is remembered from one request to the next.
#include <algorithm>

#include "coordinator/api/requests/chat_messages.h"
#include "coordinator/api/requests/endpoint_parsers.h"
#include "coordinator/api/requests/generation_fields.h"
#include "coordinator/api/requests/tool_fields.h"
#include "planner/base/json_text.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

using Role = ChatMessage::Role;

constexpr std::string_view kInput = "input";
// The ids of reasoning begin so, ours and OpenAI's.
constexpr std::string_view kReasoningId = "rs_";

enum class ItemKind { kMessage, kCall, kCallOutput, kCustomCall, kCustomCallOutput, kReasoning, kReference };
constexpr Names<ItemKind, 7> kItems = {{{ItemKind::kMessage, "message"},
                                        {ItemKind::kCall, "function_call"},
                                        {ItemKind::kCallOutput, "function_call_output"},
                                        {ItemKind::kCustomCall, "custom_tool_call"},
                                        {ItemKind::kCustomCallOutput, "custom_tool_call_output"},
                                        {ItemKind::kReasoning, "reasoning"},
                                        {ItemKind::kReference, "item_reference"}}};

// Outputs of tools are items of their own.
constexpr Names<Role, 4> kItemRoles = {
    {{Role::kSystem, "system"}, {Role::kSystem, "developer"}, {Role::kUser, "user"}, {Role::kAssistant, "assistant"}}};

void AddMessage(RequestFields& fields, std::vector<ChatMessage>& messages) {
  fields.Needed("role");
  fields.Needed("content");
  const Role role = fields.OneOf("role", kItemRoles).value_or(Role::kUser);
  std::optional<std::string> content = ReadContent(fields, "content", {"input_text", "output_text", "text"});
  // Templates want one system message; agents send instructions and more of them.
  if (role == Role::kSystem && messages.size() == 1 && messages[0].role == Role::kSystem) {
    absl::StrAppend(&*messages[0].content, "\n\n", content.value_or(""));
  } else {
    messages.push_back({.role = role, .content = content.value_or("")});
  }
}

// The items of one turn are one message.
void AddCall(RequestFields& fields, bool is_custom, std::vector<ChatMessage>& messages) {
  ChatMessage::Call call = {.id = fields.NeededString("call_id"), .name = fields.NeededString("name")};
  call.arguments = is_custom ? JsonText(Json{{"input", fields.NeededString("input")}}) : ReadArguments(fields, "arguments");
  if (messages.empty() || messages.back().role != Role::kAssistant) messages.push_back({.role = Role::kAssistant});
  messages.back().calls.push_back(std::move(call));
}

void AddOutput(RequestFields& fields, std::vector<ChatMessage>& messages) {
  ChatMessage message = {.role = Role::kTool, .tool_call_id = fields.NeededString("call_id")};
  fields.Needed("output");
  message.content = ReadContent(fields, "output", {"input_text", "output_text", "text"}).value_or("");
  messages.push_back(std::move(message));
}

// Reasoning is skipped, and so are references to it.
void ReadReference(RequestFields& fields) {
  const std::string id = fields.NeededString("id");
  if (!fields.ok() || id.starts_with(kReasoningId)) return;
  fields.errors().Add(
      UnsupportedContent(fields.PathOf("type"),
                         absl::StrCat("the server keeps no items, so it does not know ", QuotedInput(id),
                                      "; send the item itself, as clients do if 'store' is false (AI SDK: providerOptions.openai.store)")));
}

void AddItem(RequestFields& fields, std::vector<ChatMessage>& messages) {
  const std::string type = fields.String("type").value_or("message");
  if (!fields.ok()) return;
  const std::optional<ItemKind> kind = kItems.Find(type);
  if (!kind) {
    return fields.errors().Add(
        UnsupportedContent(fields.PathOf("type"), absl::StrCat("items ", QuotedInput(type), " are not understood; leave them out")));
  }
  switch (*kind) {
    case ItemKind::kMessage:
      return AddMessage(fields, messages);
    case ItemKind::kCall:
    case ItemKind::kCustomCall:
      return AddCall(fields, *kind == ItemKind::kCustomCall, messages);
    case ItemKind::kCallOutput:
    case ItemKind::kCustomCallOutput:
      return AddOutput(fields, messages);
    case ItemKind::kReference:
      return ReadReference(fields);
    case ItemKind::kReasoning:
      return;
  }
}

void ReadInput(RequestFields& fields, std::vector<ChatMessage>& messages) {
  const Json* input = fields.Needed(kInput);
  if (const std::optional<std::string> instructions = fields.String("instructions")) {
    messages.push_back({.role = Role::kSystem, .content = *instructions});
  }
  if (input == nullptr) return;
  if (input->is_string()) return messages.push_back({.role = Role::kUser, .content = input->get<std::string>()});
  if (!input->is_array()) return static_cast<void>(fields.Wrong(kInput, "a string or an array of items", *input));
  if (input->empty()) return fields.errors().Add(InvalidValue(kInput, "expected at least one item, but got an empty array"));
  if (fields.Array(kInput, kMaxMessages) == nullptr) return;
  for (size_t i = 0; i < input->size() && fields.ok(); ++i) {
    const std::string path = fields.PathOf(kInput, i);
    if (!IsObject((*input)[i], path, fields.errors())) return;
    RequestFields inner((*input)[i], path, fields.errors());
    AddItem(inner, messages);
  }
  if (fields.ok() && messages.empty()) {
    fields.errors().Add(InvalidValue(kInput, "it has no message, function call or its output; send at least one"));
  }
}

void RefuseMemory(RequestFields& fields) {
  constexpr std::string_view kWhy = "the server keeps no responses, so send the whole conversation in 'input'";
  for (const std::string_view key : {"previous_response_id", "conversation"}) {
    if (fields.Find(key) != nullptr) fields.errors().Add(UnsupportedParameter(key, kWhy));
  }
  if (fields.BoolOr("background", false)) {
    fields.errors().Add(UnsupportedParameter("background", "the server keeps no responses, so wait for the answer or stream it"));
  }
}

// include: ["message.output_text.logprobs"]
void ReadIncluded(RequestFields& fields, ApiRequest& request) {
  const int64_t top = fields.Int("top_logprobs", 0, kMaxTopLogprobs).value_or(0);
  const Json* include = fields.Array("include", kMaxObjectKeys);
  if (include == nullptr || std::ranges::find(*include, Json("message.output_text.logprobs")) == include->end()) return;
  request.top_logprobs = static_cast<int32_t>(top);
}

void ReadBelow(RequestFields& fields, const ParseOptions& options, ApiRequest& request) {
  if (const Json* text = fields.Object("text")) {
    RequestFields inner(*text, "text", fields.errors());
    if (const Json* format = inner.Object("format")) {
      RequestFields of_format(*format, "text.format", fields.errors());
      ReadFormat(of_format, "", options, request.format);
    }
  }
  if (const Json* reasoning = fields.Object("reasoning")) {
    RequestFields inner(*reasoning, "reasoning", fields.errors());
    ReadReasoningEffort(inner, "effort", std::get<ChatPrompt>(request.prompt));
  }
}

void ReadMetadata(RequestFields& fields) {
  constexpr std::string_view kKey = "metadata";
  const Json* metadata = fields.Object(kKey);
  if (metadata == nullptr) return;
  for (const Json& value : *metadata) {
    if (!value.is_string()) fields.Wrong(kKey, "strings as values", value);
  }
}

// The answer repeats these, or says what holds without them.
Json Repeated(const RequestFields& fields) {
  const auto given = [&](std::string_view key, const Json& otherwise) {
    const Json* value = fields.Find(key);
    return value != nullptr ? *value : otherwise;
  };
  const auto below = [&](std::string_view key, std::string_view inner, const Json& otherwise) {
    const Json* value = fields.Find(key);
    if (value == nullptr || !value->contains(inner) || value->at(std::string(inner)).is_null()) return otherwise;
    return value->at(std::string(inner));
  };
  Json repeated = Json::object();
  repeated["instructions"] = given("instructions", nullptr);
  repeated["max_output_tokens"] = given("max_output_tokens", nullptr);
  repeated["metadata"] = given("metadata", Json::object());
  repeated["parallel_tool_calls"] = given("parallel_tool_calls", true);
  repeated["reasoning"] = Json{{"effort", below("reasoning", "effort", nullptr)}, {"summary", nullptr}};
  repeated["temperature"] = given("temperature", nullptr);
  repeated["text"] = Json{{"format", below("text", "format", Json{{"type", "text"}})}};
  repeated["tool_choice"] = given("tool_choice", "auto");
  repeated["tools"] = given("tools", Json::array());
  repeated["top_p"] = given("top_p", nullptr);
  return repeated;
}

}  // namespace

void ParseResponses(RequestFields& fields, const ParseOptions& options, ApiRequest& request) {
  RefuseMemory(fields);
  ReadModel(fields, options, request);
  ChatPrompt& prompt = request.prompt.emplace<ChatPrompt>();
  request.add_special = false;
  ReadInput(fields, prompt.messages);
  ReadResponsesTools(fields, options, request);
  ReadTemplateFields(fields, prompt);
  ReadBelow(fields, options, request);
  request.max_tokens = fields.Int("max_output_tokens", 1, std::numeric_limits<int64_t>::max());
  ReadSampling(fields, options, request.sampling);
  request.stop = ReadStop(fields, kMaxStops);
  ReadIncluded(fields, request);
  request.stream = fields.BoolOr("stream", false);
  ReadMetadata(fields);
  ReadOurFields(fields, request);
  if (fields.ok()) request.repeated = Repeated(fields);
}

}  // namespace lime
