#include "coordinator/api/requests/chat_messages.h"

#include <algorithm>

#include "planner/base/json_text.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

using Role = ChatMessage::Role;

void AppendPart(const Json& part, const std::string& path, std::initializer_list<std::string_view> types, FirstError& errors,
                std::string& text) {
  if (!IsObject(part, path, errors)) return;
  RequestFields fields(part, path, errors);
  const std::string type = fields.NeededString("type");
  if (!errors.ok()) return;
  if (std::ranges::find(types, type) == types.end()) {
    return errors.Add(UnsupportedContent(fields.PathOf("type"), absl::StrCat("the model reads text alone, so send '", Text(*types.begin()),
                                                                             "' instead of ", QuotedInput(type))));
  }
  text += fields.NeededString("text");
}

ChatMessage::Call ReadCall(const Json& call, const std::string& path, FirstError& errors) {
  RequestFields fields(call, path, errors);
  ChatMessage::Call read = {.id = fields.NeededString("id")};
  const std::string type = fields.String("type").value_or("function");
  if (errors.ok() && type != "function") {
    errors.Add(InvalidValue(fields.PathOf("type"), absl::StrCat("expected 'function', but got ", QuotedInput(type))));
  }
  const Json* function = fields.NeededObject("function");
  if (function == nullptr) return read;
  RequestFields inner(*function, fields.PathOf("function"), errors);
  read.name = inner.NeededString("name");
  read.arguments = ReadArguments(inner, "arguments");
  return read;
}

std::vector<ChatMessage::Call> ReadCalls(RequestFields& fields) {
  constexpr std::string_view kKey = "tool_calls";
  std::vector<ChatMessage::Call> calls;
  const Json* given = fields.Array(kKey, kMaxTools);
  for (size_t i = 0; given != nullptr && i < given->size() && fields.ok(); ++i) {
    const std::string path = fields.PathOf(kKey, i);
    if (IsObject((*given)[i], path, fields.errors())) calls.push_back(ReadCall((*given)[i], path, fields.errors()));
  }
  return calls;
}

ChatMessage ReadMessage(RequestFields& fields) {
  ChatMessage message;
  fields.Needed("role");
  message.role = fields.OneOf("role", kRoles).value_or(Role::kUser);
  if (message.role == Role::kAssistant) {
    message.calls = ReadCalls(fields);
    message.reasoning = fields.String("reasoning_content").value_or("");
  }
  if (message.calls.empty()) fields.Needed("content");
  message.content = ReadContent(fields, "content", {"text"});
  message.name = fields.String("name").value_or("");
  if (message.role == Role::kTool) message.tool_call_id = fields.NeededString("tool_call_id");
  return message;
}

// Objects where they are JSON, else text. Clients send nothing at all for no arguments.
Json ArgumentsOf(const std::string& text) {
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return Json::object();
  std::optional<Json> object = ParseJsonText(text);
  return object ? *std::move(object) : Json(text);
}

Json VariablesOf(const ChatMessage& message) {
  Json variables = {{"role", kRoles.Of(message.role)}, {"content", nullptr}};
  if (message.content) variables["content"] = *message.content;
  if (!message.reasoning.empty()) variables["reasoning_content"] = message.reasoning;
  if (!message.name.empty()) variables["name"] = message.name;
  if (!message.tool_call_id.empty()) variables["tool_call_id"] = message.tool_call_id;
  for (const ChatMessage::Call& call : message.calls) {
    Json function = {{"name", call.name}, {"arguments", ArgumentsOf(call.arguments)}};
    Json written = {{"id", call.id}, {"type", "function"}, {"function", std::move(function)}};
    variables["tool_calls"].push_back(std::move(written));
  }
  return variables;
}

}  // namespace

std::optional<std::string> ReadContent(RequestFields& fields, std::string_view key, std::initializer_list<std::string_view> part_types) {
  const Json* content = fields.Find(key);
  if (content == nullptr) return std::nullopt;
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) return fields.Wrong(key, "a string or an array of parts", *content);
  std::string text;
  for (size_t i = 0; i < content->size() && fields.ok(); ++i) {
    AppendPart((*content)[i], fields.PathOf(key, i), part_types, fields.errors(), text);
  }
  return text;
}

std::vector<ChatMessage> ReadChatMessages(RequestFields& fields) {
  constexpr std::string_view kKey = "messages";
  std::vector<ChatMessage> messages;
  const Json* given = fields.NeededArray(kKey, kMaxMessages);
  if (given != nullptr && given->empty()) fields.errors().Add(InvalidValue(kKey, "expected at least one message, but got an empty array"));
  for (size_t i = 0; given != nullptr && i < given->size() && fields.ok(); ++i) {
    const std::string path = fields.PathOf(kKey, i);
    if (!IsObject((*given)[i], path, fields.errors())) break;
    RequestFields inner((*given)[i], path, fields.errors());
    messages.push_back(ReadMessage(inner));
  }
  return messages;
}

std::string ReadArguments(RequestFields& fields, std::string_view key) {
  const Json* arguments = fields.Needed(key);
  if (arguments == nullptr) return {};
  if (arguments->is_object()) return JsonText(*arguments);
  return fields.String(key).value_or("");
}

Json TemplateVariables(const ChatPrompt& prompt) {
  Json variables = prompt.template_kwargs;
  if (prompt.reasoning_effort == "none") {
    if (!variables.contains("enable_thinking")) variables["enable_thinking"] = false;
  } else if (!prompt.reasoning_effort.empty() && !variables.contains("reasoning_effort")) {
    variables["reasoning_effort"] = prompt.reasoning_effort;
  }
  Json messages = Json::array();
  for (const ChatMessage& message : prompt.messages) messages.push_back(VariablesOf(message));
  variables["messages"] = std::move(messages);
  if (prompt.tools.empty()) {
    variables.erase("tools");
  } else {
    variables["tools"] = prompt.tools;
  }
  variables["add_generation_prompt"] = prompt.add_generation_prompt;
  return variables;
}

}  // namespace lime
