#include "coordinator/text/tools/harmony_messages.h"

#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"

namespace lime {
namespace {

using Json = nlohmann::ordered_json;

// Empty if there is no such text.
std::string TextOf(const Json& object, const char* key) {
  const auto text = object.find(key);
  return text != object.end() && text->is_string() ? text->get<std::string>() : "";
}

bool HasCalls(const Json& message) {
  const auto calls = message.find("tool_calls");
  return calls != message.end() && calls->is_array() && !calls->empty();
}

// Reasoning, and beside calls also the text, become `thinking`.
void MoveThinking(Json& message) {
  std::string thinking = TextOf(message, "reasoning_content");
  if (HasCalls(message)) {
    const std::string content = TextOf(message, "content");
    if (!thinking.empty() && !content.empty()) thinking += "\n\n";
    thinking += content;
    message.erase("content");
  }
  message.erase("reasoning_content");
  if (!thinking.empty()) message["thinking"] = std::move(thinking);
}

// The results in messages[first, end) that are of the call; all, where it is the only one.
std::vector<Json> TakeResults(const Json& call, bool is_only, std::vector<Json>& results) {
  std::vector<Json> taken, left;
  const std::string id = TextOf(call, "id");
  for (Json& result : results) {
    const bool is_its = is_only || TextOf(result, "tool_call_id") == id;
    (is_its ? taken : left).push_back(std::move(result));
  }
  results = std::move(left);
  return taken;
}

// A message with calls, and the results behind it.
void AddCalls(Json message, std::vector<Json> results, Json& adapted) {
  const Json calls = message["tool_calls"];
  for (size_t i = 0; i < calls.size(); ++i) {
    message["tool_calls"] = Json::array({calls[i]});
    adapted.push_back(message);
    message.erase("thinking");  // stands before the first
    for (Json& result : TakeResults(calls[i], i + 1 == calls.size(), results)) adapted.push_back(std::move(result));
  }
}

void DescribeFunctions(Json& tools) {
  for (Json& tool : tools) {
    const auto function = tool.find("function");
    if (function == tool.end() || !function->is_object()) continue;
    if (TextOf(*function, "description").empty()) (*function)["description"] = "";
  }
}

}  // namespace

void AdaptToHarmony(Json& variables) {
  Json& messages = variables["messages"];
  Json adapted = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    Json message = std::move(messages[i]);
    if (TextOf(message, "role") != "assistant") {
      adapted.push_back(std::move(message));
      continue;
    }
    MoveThinking(message);
    if (!HasCalls(message)) {
      adapted.push_back(std::move(message));
      continue;
    }
    std::vector<Json> results;
    while (i + 1 < messages.size() && TextOf(messages[i + 1], "role") == "tool") results.push_back(std::move(messages[++i]));
    AddCalls(std::move(message), std::move(results), adapted);
  }
  messages = std::move(adapted);
  if (const auto tools = variables.find("tools"); tools != variables.end() && tools->is_array()) DescribeFunctions(*tools);
}

}  // namespace lime
