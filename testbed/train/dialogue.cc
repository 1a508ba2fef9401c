#include "testbed/train/dialogue.h"

#include <cctype>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "planner/base/status.h"

namespace lime::train {
namespace {

using Json = nlohmann::ordered_json;
using Role = DialogueMessage::Role;
using Check = DialogueMessage::Check;

// JSON with blanks, as the template's filter tojson writes it.
std::string JsonLine(const Json& value) {
  if (!value.is_object()) return value.dump();
  std::vector<std::string> fields;
  for (const auto& [key, field] : value.items()) fields.push_back(absl::StrCat(Json(key).dump(), ": ", JsonLine(field)));
  return absl::StrCat("{", absl::StrJoin(fields, ", "), "}");
}

// Digits with a minus before them are a number; all else is a string.
Json ValueOf(const std::string& text) {
  absl::string_view digits = text;
  absl::ConsumePrefix(&digits, "-");
  if (digits.empty() || digits.size() > 4 || digits.find_first_not_of("0123456789") != absl::string_view::npos) return text;
  return std::stoi(text);
}

Json ObjectOf(absl::string_view fields) {
  Json object = Json::object();
  for (absl::string_view field : absl::StrSplit(fields, "; ", absl::SkipEmpty())) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(field, absl::MaxSplits('=', 1));
    object[parts.first] = ValueOf(parts.second);
  }
  return object;
}

// "temperature=12; sky=rain" -> {"temperature": 12, "sky": "rain"}; another text as it is.
std::string ResultText(absl::string_view text) {
  const size_t equals = text.find('=');
  if (equals == absl::string_view::npos || text.substr(0, equals).find(' ') != absl::string_view::npos) return std::string(text);
  return JsonLine(ObjectOf(text));
}

DialogueMessage CallMessage(absl::string_view text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 1));
  DialogueMessage message{Role::kAssistant};
  message.check = Check::kCall;
  message.call = {{"name", parts.first}, {"arguments", Json::object()}};
  if (!parts.second.empty()) {
    const std::pair<std::string, std::string> argument = absl::StrSplit(parts.second, absl::MaxSplits('=', 1));
    message.call["arguments"][argument.first] = argument.second;
  }
  message.text = absl::StrCat("<tool_call>\n", JsonLine(message.call), "\n</tool_call>");
  return message;
}

DialogueTool ToolOf(absl::string_view text) {
  std::vector<std::string> words = absl::StrSplit(text, ' ', absl::SkipEmpty());
  DialogueTool tool;
  if (words.empty()) return tool;
  tool.name = words.front();
  tool.parameters.assign(words.begin() + 1, words.end());
  return tool;
}

absl::Status SetCheck(Dialogue& dialogue, char mark, absl::string_view keys) {
  if (dialogue.messages.empty() || dialogue.messages.back().role != Role::kAssistant)
    return absl::InvalidArgumentError(absl::StrCat("a check stands behind no answer: ", keys));
  DialogueMessage& answer = dialogue.messages.back();
  answer.check = mark == '=' ? Check::kStory : mark == '&' ? Check::kAnswer : Check::kRefusal;
  answer.keys = absl::StrSplit(keys, ',', absl::SkipEmpty());
  return absl::OkStatus();
}

absl::Status AddLine(Dialogue& dialogue, char mark, const std::string& text) {
  switch (mark) {
    case ':':
      dialogue.messages.push_back({Role::kSystem, text});
      return absl::OkStatus();
    case '>':
      dialogue.messages.push_back({Role::kUser, text});
      return absl::OkStatus();
    case '<':
      dialogue.messages.push_back({Role::kAssistant, text});
      return absl::OkStatus();
    case '@':
      dialogue.messages.push_back({Role::kTool, ResultText(text)});
      return absl::OkStatus();
    case '*':
      dialogue.messages.push_back(CallMessage(text));
      return absl::OkStatus();
    case '$':
      dialogue.tools.push_back(ToolOf(text));
      return absl::OkStatus();
    case '=':
    case '&':
    case '-':
      return SetCheck(dialogue, mark, text);
    default:
      return absl::InvalidArgumentError(absl::StrCat("a line of a dialogue begins with none of : > < @ * $ = & -: ", text));
  }
}

std::string Block(absl::string_view role, absl::string_view text) {
  return absl::StrCat(kMessageBegin, role, "\n", text, kMessageEnd, "\n");
}

bool BeginsWithSystem(const Dialogue& dialogue) {
  return !dialogue.messages.empty() && dialogue.messages.front().role == Role::kSystem;
}

// The first system message with the tools; empty if there is neither.
std::string SystemBlock(const Dialogue& dialogue) {
  std::vector<std::string> lines;
  if (BeginsWithSystem(dialogue)) lines.push_back(dialogue.messages.front().text);
  if (!dialogue.tools.empty()) lines.push_back("Tools:");
  for (const DialogueTool& tool : dialogue.tools) lines.push_back(absl::StrCat(tool.name, "(", absl::StrJoin(tool.parameters, ", "), ")"));
  return lines.empty() ? "" : Block("system", absl::StrJoin(lines, "\n"));
}

std::string MessageBlock(const DialogueMessage& message) {
  switch (message.role) {
    case Role::kSystem:
      return Block("system", message.text);
    case Role::kUser:
      return Block("user", message.text);
    case Role::kAssistant:
      return Block("assistant", message.text);
    case Role::kTool:
      return Block("user", absl::StrCat("<tool_response>\n", message.text, "\n</tool_response>"));
  }
  return "";
}

std::string FirstMessages(const Dialogue& dialogue, size_t count) {
  std::string text = SystemBlock(dialogue);
  for (size_t i = BeginsWithSystem(dialogue) ? 1 : 0; i < count; ++i) text += MessageBlock(dialogue.messages[i]);
  return text;
}

Json MessageJson(const DialogueMessage& message, size_t index) {
  switch (message.role) {
    case Role::kSystem:
      return {{"role", "system"}, {"content", message.text}};
    case Role::kUser:
      return {{"role", "user"}, {"content", message.text}};
    case Role::kAssistant:
      break;
    case Role::kTool:
      return {{"role", "tool"}, {"tool_call_id", absl::StrCat("call_", index - 1)}, {"content", message.text}};
  }
  if (message.call.is_null()) return {{"role", "assistant"}, {"content", message.text}};
  Json call{{"id", absl::StrCat("call_", index)}, {"type", "function"}, {"function", message.call}};
  return {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", Json::array({std::move(call)})}};
}

Json ToolJson(const DialogueTool& tool) {
  Json properties = Json::object();
  for (const std::string& parameter : tool.parameters) properties[parameter] = {{"type", "string"}};
  return {{"type", "function"},
          {"function", {{"name", tool.name}, {"parameters", {{"type", "object"}, {"properties", std::move(properties)}}}}}};
}

bool IsWordCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0;
}

// Both in lower case.
bool HoldsWord(absl::string_view text, absl::string_view word) {
  for (size_t at = text.find(word); at != absl::string_view::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !IsWordCharacter(text[at - 1])) && (end == text.size() || !IsWordCharacter(text[end]))) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<Dialogue> ParseDialogue(absl::string_view script) {
  Dialogue dialogue;
  for (absl::string_view line : absl::StrSplit(script, '\n', absl::SkipEmpty())) {
    const char mark = line[0];
    line.remove_prefix(1);
    LIME_RETURN_IF_ERROR(AddLine(dialogue, mark, std::string(absl::StripAsciiWhitespace(line))));
  }
  return dialogue;
}

std::string DialogueText(const Dialogue& dialogue) {
  return FirstMessages(dialogue, dialogue.messages.size());
}

std::string DialoguePrompt(const Dialogue& dialogue, size_t index) {
  return absl::StrCat(FirstMessages(dialogue, index), kMessageBegin, kAnswerBegin);
}

Json DialogueRequest(const Dialogue& dialogue) {
  Json request{{"messages", Json::array()}};
  for (size_t i = 0; i < dialogue.messages.size(); ++i) request["messages"].push_back(MessageJson(dialogue.messages[i], i));
  for (const DialogueTool& tool : dialogue.tools) request["tools"].push_back(ToolJson(tool));
  return request;
}

bool HoldsAll(absl::string_view text, const std::vector<std::string>& keys) {
  const std::string lower = absl::AsciiStrToLower(text);
  for (const std::string& key : keys) {
    if (!HoldsWord(lower, absl::AsciiStrToLower(key))) return false;
  }
  return true;
}

const absl::string_view kChatTemplate = R"jinja({{- bos_token }}
{%- set first = messages[0] %}
{%- set system = first.content if first.role == 'system' else '' %}
{%- if system or tools %}
    {{- '<|im_start|>system\n' + system }}
    {%- if tools %}
        {{- ('\n' if system else '') + 'Tools:' }}
        {%- for tool in tools %}
            {%- set parameters = tool.function.parameters or {} %}
            {{- '\n' + tool.function.name + '(' + (parameters.properties or {}) | join(', ') + ')' }}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
    {%- elif not (loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {{- '\n' if message.content or not loop.first }}
            {{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
)jinja";

}  // namespace lime::train
