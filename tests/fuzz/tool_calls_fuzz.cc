// Calls in hostile text. The first byte chooses the syntax (bits 0, 1 and 5) and the options; bytes 1
// end a part of the text. Wherever the text is cut, the events are the same. Content and the text of calls
// together are the text, and the arguments of a complete call are JSON.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/text/tools/answer_splitter.h"
#include "coordinator/text/tools/tool_call_parser.h"
#include "coordinator/text/unicode/utf8.h"
#include "planner/base/json_text.h"

namespace lime {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

ToolEvents EventsOf(const std::vector<std::string_view>& parts, ToolCallParser::Options options, std::string_view text) {
  ToolEvents events;
  std::string seen;
  size_t next = 0;        // event that `seen` lacks
  size_t next_bytes = 0;  // bytes of it that `seen` has
  const auto add_content = [&] {
    for (; next < events.events().size(); ++next, next_bytes = 0) {
      const ToolEvent& event = events.events()[next];
      if (event.kind == ToolEvent::Kind::kContent) seen += event.text.substr(next_bytes);
      if (next + 1 == events.events().size()) {  // it may go on
        next_bytes = event.text.size();
        break;
      }
    }
  };
  options.on_call_text = [&](std::string_view call) {
    add_content();
    seen += call;
  };
  const auto parser = ToolCallParser::Create(options);
  for (const std::string_view part : parts) parser->Push(part, events);
  parser->Finish(events);
  add_content();
  Require(parser->done() ? text.starts_with(seen) : seen == text);
  return events;
}

void CheckCalls(const ToolEvents& events, bool is_utf8) {
  int call = -1;
  bool open = false;
  std::string arguments;
  for (const ToolEvent& event : events.events()) {
    switch (event.kind) {
      case ToolEvent::Kind::kContent:
        Require(!open && !event.text.empty());
        break;
      case ToolEvent::Kind::kBegin:
        Require(!open && event.call == ++call && !event.text.empty() && event.text.size() <= 64);
        open = true;
        arguments.clear();
        break;
      case ToolEvent::Kind::kArguments:
        Require(open && event.call == call);
        arguments += event.text;
        break;
      case ToolEvent::Kind::kEnd:
        Require(open && event.call == call);
        if (event.complete && is_utf8) Require(ParsePythonJsonObject(arguments, "arguments").ok());
        open = false;
        break;
    }
  }
  Require(!open);
}

std::string Split(const std::vector<std::string_view>& parts, const SplitterOptions& split) {
  const auto splitter = MakeAnswerSplitter(split);
  std::string reasoning, content;
  for (const std::string_view part : parts) splitter->Push(part, reasoning, content);
  splitter->Finish(reasoning, content);
  return reasoning + '\1' + content;
}

const ToolFunctions& Functions() {
  static const ToolFunctions functions = {{"f", nlohmann::ordered_json::parse(R"({"properties": {
      "s": {"type": "string"}, "n": {"type": "integer"}, "o": {"type": ["string", "null"]}, "l": {"anyOf": [{"type": "array"}, {"type": "string"}]}}})")}};
  return functions;
}

ToolSyntax SyntaxOfByte(unsigned char byte) {
  const int number = (byte & 3) + ((byte & 32) != 0 ? 4 : 0);
  return number <= static_cast<int>(ToolSyntax::kHarmony) ? static_cast<ToolSyntax>(number) : ToolSyntax::kHermes;
}

void Try(std::string_view input) {
  if (input.empty()) return;
  const auto choice = static_cast<unsigned char>(input[0]);
  std::vector<std::string> owned(1);
  std::string text;
  for (const char c : input.substr(1)) {
    if (c == '\1') {
      owned.emplace_back();
    } else {
      owned.back() += c;
      text += c;
    }
  }
  const std::vector<std::string_view> parts(owned.begin(), owned.end());
  const std::vector<std::string_view> whole = {text};
  ToolCallParser::Options options{
      .syntax = SyntaxOfByte(choice), .functions = (choice & 4) != 0 ? nullptr : &Functions(), .parallel = (choice & 8) == 0};
  if ((choice & 16) != 0) options.max_waiting_bytes = 40;
  const ToolEvents events = EventsOf(parts, options, text);
  Require(events.events() == EventsOf(whole, options, text).events());
  CheckCalls(events, IsUtf8(text));
  for (const auto start : {ThinkingStart::kInside, ThinkingStart::kOpen, ThinkingStart::kHarmony, ThinkingStart::kHarmonyContent}) {
    const SplitterOptions split = {.start = start, .divides = (choice & 64) == 0, .keeps_calls = (choice & 128) == 0};
    Require(Split(parts, split) == Split(whole, split));
  }
}

}  // namespace
}  // namespace lime

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lime::Try(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
