#include "coordinator/text/tools/tool_messages.h"

#include <string>

#include "coordinator/text/tools/call_text.h"
#include "nlohmann/json.hpp"
#include "planner/base/json_text.h"

namespace lime {
namespace {

using Json = nlohmann::ordered_json;

// Null if there is no such field.
Json* Field(Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() ? &*found : nullptr;
}

std::string TextField(Json& object, const char* key) {
  const Json* text = Field(object, key);
  return text != nullptr && text->is_string() ? text->get<std::string>() : "";
}

Json* CallsOf(Json& message) {
  Json* calls = Field(message, "tool_calls");
  return calls != nullptr && calls->is_array() && !calls->empty() ? calls : nullptr;
}

std::string CallExample(const ToolFormat& format) {
  const CallsText around = CallsTextOf(format);
  std::string text(around.opening);
  text += CallPrefix(format, "FUNCTION");
  if (const ParameterTags* const tags = ParameterTagsOf(format.syntax)) {
    text += ParameterPrefix(*tags, "PARAMETER") + "VALUE" + ParameterSuffix(*tags);
  } else {
    text += "{\"PARAMETER\": VALUE}";
  }
  text += CallSuffix(format);
  text += around.closing;
  return text;
}

std::string Statement(const ToolFormat& format, const Json& tools) {
  std::string text = "You can call functions to answer the user. These are the functions, as JSON, one on each line:\n<tools>\n";
  for (const Json& tool : tools) text += JsonText(tool) + "\n";
  text += "</tools>\nTo call a function, write its name and its arguments in exactly this form, and nothing after it:\n";
  text += CallExample(format);
  text += "\nThe next message then has the result in <tool_response> tags. If no function helps, answer as usual.";
  return text;
}

void AppendParagraph(std::string& text, const std::string& more) {
  if (!text.empty() && !more.empty()) text += "\n\n";
  text += more;
}

// Results that follow each other become one message: many templates want users and assistants to
// alternate.
void AddResult(Json& message, bool after_result, Json& stated) {
  const std::string result = "<tool_response>\n" + TextField(message, "content") + "\n</tool_response>";
  if (!after_result) {
    stated.push_back({{"role", "user"}, {"content", result}});
    return;
  }
  Json& content = stated.back()["content"];
  content = content.get<std::string>() + "\n" + result;
}

// The calls of an assistant's message become its text.
void WriteCalls(const ToolFormat& format, Json& message) {
  const Json* calls = CallsOf(message);
  if (calls == nullptr) return;
  std::string content = TextField(message, "content");
  AppendParagraph(content, CallsAsText(format, *calls));
  message["content"] = content;
  message.erase("tool_calls");
}

}  // namespace

void StateTools(const ToolFormat& format, const Json& tools, Json& messages) {
  std::string system = tools.empty() ? "" : Statement(format, tools);
  Json stated = Json::array();
  bool after_result = false;
  for (size_t i = 0; i < messages.size(); ++i) {
    Json& message = messages[i];
    const std::string role = TextField(message, "role");
    if (i == 0 && role == "system") {
      std::string own = TextField(message, "content");
      AppendParagraph(own, system);
      system = std::move(own);
    } else if (role == "tool") {
      AddResult(message, after_result, stated);
    } else {
      WriteCalls(format, message);
      stated.push_back(std::move(message));
    }
    after_result = role == "tool";
  }
  if (!system.empty()) stated.insert(stated.begin(), Json{{"role", "system"}, {"content", system}});
  messages = std::move(stated);
}

}  // namespace lime
