// POST /api/chat, /api/generate and /api/show: Ollama's spelling.
#include "coordinator/api/requests/chat_messages.h"
#include "coordinator/api/requests/endpoint_parsers.h"
#include "coordinator/api/requests/generation_fields.h"
#include "coordinator/api/requests/tool_fields.h"

namespace lime {
namespace {

using Role = ChatMessage::Role;

constexpr std::string_view kNoImages = "the model reads text alone, so leave images out";

void RefuseImages(RequestFields& fields) {
  const Json* images = fields.Array("images", kMaxObjectKeys);
  if (images != nullptr && !images->empty()) fields.errors().Add(UnsupportedContent(fields.PathOf("images"), kNoImages));
}

ChatMessage ReadOllamaMessage(RequestFields& fields) {
  ChatMessage message;
  fields.Needed("role");
  message.role = fields.OneOf("role", kRoles).value_or(Role::kUser);
  message.content = fields.String("content").value_or("");
  message.reasoning = fields.String("thinking").value_or("");
  message.name = fields.String("tool_name").value_or("");
  RefuseImages(fields);
  const Json* calls = fields.Array("tool_calls", kMaxTools);
  for (size_t i = 0; calls != nullptr && i < calls->size() && fields.ok(); ++i) {
    const std::string path = fields.PathOf("tool_calls", i);
    if (!IsObject((*calls)[i], path, fields.errors())) break;
    RequestFields call((*calls)[i], path, fields.errors());
    const Json* function = call.NeededObject("function");
    if (function == nullptr) break;
    RequestFields inner(*function, call.PathOf("function"), fields.errors());
    message.calls.push_back({.name = inner.NeededString("name"), .arguments = ReadArguments(inner, "arguments")});
  }
  return message;
}

// "json", or a schema.
void ReadFormat(RequestFields& fields, const ParseOptions& options, ApiRequest& request) {
  constexpr std::string_view kKey = "format";
  const Json* format = fields.Find(kKey);
  if (format == nullptr || *format == Json("")) return;
  if (*format == "json") {
    request.format.kind = AnswerFormat::Kind::kObject;
  } else if (format->is_string()) {
    fields.errors().Add(InvalidValue(kKey, "expected 'json' or a JSON schema, but got another string"));
  } else {
    SetSchema(*format, std::string(kKey), options, fields.errors(), request.format);
  }
}

// true, false, or how much.
void ReadThink(RequestFields& fields, ChatPrompt& prompt) {
  constexpr std::string_view kKey = "think";
  const Json* think = fields.Find(kKey);
  if (think == nullptr) return;
  if (think->is_string()) return ReadReasoningEffort(fields, kKey, prompt);
  if (const std::optional<bool> thinks = fields.Bool(kKey)) prompt.template_kwargs["enable_thinking"] = *thinks;
}

// A negative seed is drawn, and a negative number of tokens has no bound.
void ReadOptions(RequestFields& fields, ApiRequest& request) {
  const Json* options = fields.Object("options");
  if (options == nullptr) return;
  RequestFields inner(*options, "options", fields.errors());
  ReadBasicSampling(inner, request.sampling);
  const Json* seed = inner.Find("seed");
  if (seed == nullptr || !seed->is_number_integer() || seed->is_number_unsigned()) request.sampling.seed = inner.Unsigned("seed");
  const std::optional<int64_t> tokens = inner.Int("num_predict", -2, std::numeric_limits<int64_t>::max());
  if (tokens && *tokens > 0) request.max_tokens = tokens;
  request.stop = ReadStop(inner, kMaxOllamaStops);
}

void ReadShared(RequestFields& fields, const ParseOptions& options, ApiRequest& request) {
  ReadOptions(fields, request);
  ReadFormat(fields, options, request);
  request.stream = fields.BoolOr("stream", true);
  ReadOurFields(fields, request);
}

// Without a template, or as the message of a user.
void ReadPrompt(RequestFields& fields, ApiRequest& request) {
  std::string prompt = fields.String("prompt").value_or("");
  request.only_loads = prompt.empty();
  if (fields.BoolOr("raw", false)) {
    request.prompt = TextPrompts{std::move(prompt)};
    return;
  }
  ChatPrompt& chat = request.prompt.emplace<ChatPrompt>();
  request.add_special = false;
  if (const std::string system = fields.String("system").value_or(""); !system.empty()) {
    chat.messages.push_back({.role = Role::kSystem, .content = system});
  }
  chat.messages.push_back({.role = Role::kUser, .content = std::move(prompt)});
  ReadThink(fields, chat);
}

}  // namespace

void ParseOllamaShow(RequestFields& fields, const ParseOptions& options, ApiRequest& request) {
  ReadModel(fields, options, request);
  if (request.model.empty()) ReadModel(fields, options, request, "name");
}

void ParseOllamaChat(RequestFields& fields, const ParseOptions& options, ApiRequest& request) {
  ReadModel(fields, options, request);
  ChatPrompt& prompt = request.prompt.emplace<ChatPrompt>();
  request.add_special = false;
  const Json* messages = fields.Array("messages", kMaxMessages);
  request.only_loads = messages == nullptr || messages->empty();
  for (size_t i = 0; messages != nullptr && i < messages->size() && fields.ok(); ++i) {
    const std::string path = fields.PathOf("messages", i);
    if (!IsObject((*messages)[i], path, fields.errors())) break;
    RequestFields inner((*messages)[i], path, fields.errors());
    prompt.messages.push_back(ReadOllamaMessage(inner));
  }
  ReadChatTools(fields, options, request);
  ReadThink(fields, prompt);
  ReadShared(fields, options, request);
}

void ParseOllamaGenerate(RequestFields& fields, const ParseOptions& options, ApiRequest& request) {
  ReadModel(fields, options, request);
  ReadPrompt(fields, request);
  RefuseImages(fields);
  if (!fields.String("suffix").value_or("").empty()) {
    fields.errors().Add(UnsupportedParameter("suffix", "the model continues a prompt and cannot fill a gap, so leave it out"));
  }
  ReadShared(fields, options, request);
}

}  // namespace lime
