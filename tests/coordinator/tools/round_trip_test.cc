// Calls that a model's template writes into the history are read back.
#include <fstream>
#include <iterator>
#include <map>
#include <random>

#include "coordinator/text/tools/call_text.h"
#include "coordinator/text/tools/thinking.h"
#include "coordinator/text/tools/tool_messages.h"
#include "coordinator/text/unicode/utf8.h"
#include "tests/cases.h"
#include "tests/coordinator/jinja/render.h"
#include "tests/coordinator/tools/parse_calls.h"
#include "tests/skips.h"

namespace lime {
namespace {

using Json = nlohmann::ordered_json;

const std::filesystem::path& Folder() {
  static const std::filesystem::path folder = SharedDir() / "chat-templates";
  return folder;
}

std::string ReadText(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string WithoutEnd(std::string text) {
  for (const std::string end : {"<|im_end|>\n", "<|eot_id|>", "<|eom_id|>", "</s>"}) {
    if (text.ends_with(end)) return text.substr(0, text.size() - end.size());
  }
  return text;
}

// The functions of `tools`, as the parser needs them.
ToolFunctions FunctionsOf(const Json& tools) {
  ToolFunctions functions;
  EXPECT_FALSE(ReadFunctions(tools, nullptr, functions).has_value());
  return functions;
}

// The message with objects as arguments, which the server gives to a template.
Json WithObjects(Json message) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end()) return message;
  for (Json& call : *calls) {
    Json& arguments = call.at("function").at("arguments");
    if (arguments.is_string()) arguments = Json::parse(arguments.get<std::string>());
  }
  return message;
}

// What a template writes behind the prompt for the message `answer`.
std::string AnswerText(const std::string& source, Json variables, const Json& messages, const Json& answer, std::string& prompt) {
  variables["messages"] = messages;
  variables["add_generation_prompt"] = true;
  prompt = RenderJson(source, variables);
  variables["messages"].push_back(answer);
  variables["add_generation_prompt"] = false;
  const std::string all = RenderJson(source, variables);
  // Some prompts open the reasoning of the answer.
  if (!all.starts_with(prompt)) {
    while (!prompt.empty() && (!all.starts_with(prompt) || !prompt.ends_with('\n'))) prompt.pop_back();
  }
  EXPECT_FALSE(prompt.empty()) << all;
  return WithoutEnd(all.substr(prompt.size()));
}

// What stands behind the reasoning.
std::string ContentOf(const std::string& text, ThinkingSplitter::Start start) {
  std::string reasoning, content;
  ThinkingSplitter splitter(start);
  splitter.Push(text, reasoning, content);
  splitter.Finish(reasoning, content);
  return content;
}

// A message of the assistant becomes text by `source`, and the text becomes `answer` again.
void ExpectRoundTrip(const std::string& source, const Json& variables, const Json& messages, const Json& answer) {
  std::string prompt;
  const std::string text = AnswerText(source, variables, messages, answer, prompt);
  const std::string content = ContentOf(text, OpensThinking(prompt) ? ThinkingSplitter::Start::kInside : ThinkingSplitter::Start::kOpen);
  const ToolFunctions functions = FunctionsOf(variables["tools"]);
  const std::vector<ToolEvent> events = EventsOf(content, {.syntax = FindToolFormat(source).syntax, .functions = &functions});
  std::string said;
  std::vector<Json> calls;
  std::vector<std::string> arguments;
  for (const ToolEvent& event : events) {
    if (event.kind == ToolEvent::Kind::kContent) said += event.text;
    if (event.kind == ToolEvent::Kind::kBegin) calls.push_back({{"name", event.text}});
    if (event.kind == ToolEvent::Kind::kBegin) arguments.emplace_back();
    if (event.kind == ToolEvent::Kind::kArguments) arguments.back() += event.text;
    if (event.kind == ToolEvent::Kind::kEnd) EXPECT_TRUE(event.complete) << text;
  }
  ASSERT_EQ(calls.size(), answer["tool_calls"].size()) << text;
  for (size_t i = 0; i < calls.size(); ++i) {
    const Json& function = answer["tool_calls"][i]["function"];
    EXPECT_EQ(calls[i]["name"], function["name"]);
    EXPECT_EQ(Json::parse(arguments[i]), function["arguments"]) << text;
  }
  const std::string expected = answer["content"].is_string() ? answer["content"].get<std::string>() : "";
  EXPECT_EQ(said, ContentOf(expected, ThinkingSplitter::Start::kOpen)) << text;
}

TEST(RoundTripTest, CallsInTheVectorsOfModelsTemplates) {
  LIME_SKIP_WITHOUT_SHARED(Folder());
  int calls = 0;
  for (const auto& entry : std::filesystem::directory_iterator(Folder())) {
    if (entry.path().extension() != ".json") continue;
    const Json file = Json::parse(ReadText(entry.path()));
    const std::string source = ReadText(Folder() / file.at("template").get<std::string>());
    if (FindToolFormat(source).stated) continue;
    for (const Json& one : file.at("cases")) {
      if (one.contains("error")) continue;
      Json variables = one.at("kwargs");
      variables["tools"] = one.at("tools");
      variables["bos_token"] = file.at("bos_token").is_null() ? Json("") : file.at("bos_token");
      Json before = Json::array();
      for (const Json& message : one.at("messages")) {
        const Json read = WithObjects(message);
        if (read.contains("tool_calls") && !read["tool_calls"].empty()) {
          ++calls;
          ExpectRoundTrip(source, variables, before, read);
        }
        before.push_back(read);
      }
    }
  }
  EXPECT_GE(calls, 15);
}

// All of ToolSyntax.
constexpr int kSyntaxes = static_cast<int>(ToolSyntax::kHarmony) + 1;

// Random functions, and arguments that fit them.
class RandomCalls {
 public:
  explicit RandomCalls(uint64_t seed) : random_(seed) {}

  int Below(int bound) { return static_cast<int>(random_() % static_cast<uint64_t>(bound)); }

  std::string Text() {
    static const std::vector<std::string> parts = {"a",    " ",          "\n",          "\"",      "\\",         "é",
                                                   "<",    "{\"x\": 1}", "12",          "</param", "</tool_c",   "\t",
                                                   "null", "<tool_call", "</function>", "[TOOL_",  "</arg_valu", "</invoke>"};
    std::string text = "t";
    for (int i = Below(6); i > 0; --i) text += parts[static_cast<size_t>(Below(static_cast<int>(parts.size())))];
    return text + ".";
  }

  Json Value(const std::string& type, int depth = 0) {
    if (type == "string") return Text();
    if (type == "integer") return Below(2000) - 1000;
    if (type == "number") return Below(1000) / 8.0;
    if (type == "boolean") return Below(2) == 0;
    if (type == "null") return nullptr;
    Json value = type == "array" ? Json::array() : Json::object();
    for (int i = depth < 3 ? Below(4) : 0; i > 0; --i) {
      Json inner = Value(Type(), depth + 1);
      if (type == "array") {
        value.push_back(inner);
      } else {
        value[Text()] = inner;
      }
    }
    return value;
  }

  std::string Type() {
    static const std::vector<std::string> types = {"string", "integer", "number", "boolean", "null", "array", "object"};
    return types[static_cast<size_t>(Below(static_cast<int>(types.size())))];
  }

  // Adds a tool and returns a call of it.
  Json Call(Json& tools) {
    const std::string name = "f" + std::to_string(tools.size());
    Json properties = Json::object(), arguments = Json::object();
    for (int i = Below(4); i > 0; --i) {
      const std::string key = "k" + std::to_string(i), type = Type();
      properties[key] = {{"type", type}};
      arguments[key] = Value(type);
    }
    tools.push_back(
        {{"type", "function"},
         {"function", {{"name", name}, {"description", "d"}, {"parameters", {{"type", "object"}, {"properties", properties}}}}}});
    return {{"id", "abcdefgh" + std::to_string(tools.size() % 10)},
            {"type", "function"},
            {"function", {{"name", name}, {"arguments", arguments}}}};
  }

 private:
  std::mt19937_64 random_;
};

// The templates that show tools, by name.
std::map<std::string, std::string> Templates() {
  std::map<std::string, std::string> templates;
  for (const auto& entry : std::filesystem::directory_iterator(Folder())) {
    if (entry.path().extension() == ".jinja") templates[entry.path().filename()] = ReadText(entry.path());
  }
  std::ifstream file(Folder() / "upstream-chat.jsonl");
  for (std::string line; std::getline(file, line);) {
    const Json one = Json::parse(line);
    const std::string source = one.at("template");
    if (source.find("[TOOL_CALLS]") != std::string::npos) templates[one.at("name")] = source;
  }
  std::erase_if(templates, [](const auto& entry) { return FindToolFormat(entry.second).stated; });
  return templates;
}

TEST(RoundTripTest, RandomCallsInModelsTemplates) {
  LIME_SKIP_WITHOUT_SHARED(Folder());
  const auto templates = Templates();
  EXPECT_GE(templates.size(), 8u);
  for (const auto& [name, source] : templates) {
    const ToolSyntax syntax = FindToolFormat(source).syntax;
    for (int seed = 0; seed < Cases(60, 5000); ++seed) {
      SCOPED_TRACE(testing::Message() << name << " seed " << seed);
      RandomCalls random(static_cast<uint64_t>(seed));
      Json tools = Json::array(), calls = Json::array();
      for (int i = syntax == ToolSyntax::kLlama3 ? 1 : 1 + random.Below(3); i > 0; --i) calls.push_back(random.Call(tools));
      const bool has_content = random.Below(2) == 0 && syntax != ToolSyntax::kLlama3 && syntax != ToolSyntax::kMistral;
      const Json answer = {{"role", "assistant"}, {"content", has_content ? "I look." : ""}, {"tool_calls", calls}};
      const Json variables = {{"tools", tools}, {"bos_token", "<s>"}, {"eos_token", "</s>"}};
      ExpectRoundTrip(source, variables, Json::array({{{"role", "user"}, {"content", "Hi"}}}), answer);
      if (HasFailure()) return;
    }
  }
}

TEST(RoundTripTest, RandomCallsAsText) {
  for (int seed = 0; seed < Cases(300, 20000); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomCalls random(static_cast<uint64_t>(seed));
    const ToolFormat format{.syntax = static_cast<ToolSyntax>(random.Below(kSyntaxes)), .args_marker = random.Below(2) == 0};
    Json tools = Json::array(), calls = Json::array();
    for (int i = format.syntax == ToolSyntax::kLlama3 ? 1 : 1 + random.Below(3); i > 0; --i) calls.push_back(random.Call(tools));
    const ToolFunctions functions = FunctionsOf(tools);
    const std::string text = CallsAsText(format, calls);
    const std::vector<ToolEvent> events = EventsOf(text, {.syntax = format.syntax, .functions = &functions});
    ASSERT_EQ(events.size(), 3 * calls.size()) << text << "\n" << Describe(events);
    for (size_t i = 0; i < calls.size(); ++i) {
      EXPECT_EQ(events[3 * i].text, calls[i]["function"]["name"]);
      EXPECT_EQ(Json::parse(events[3 * i + 1].text), calls[i]["function"]["arguments"]) << text;
    }
    if (HasFailure()) return;
  }
}

TEST(RoundTripTest, TemplatesWithoutToolsShowStatedFunctions) {
  LIME_SKIP_WITHOUT_SHARED(Folder());
  int templates = 0;
  for (const auto& entry : std::filesystem::directory_iterator(Folder())) {
    if (entry.path().extension() != ".jinja") continue;
    const std::string source = ReadText(entry.path());
    const ToolFormat format = FindToolFormat(source);
    if (!format.stated) continue;
    ++templates;
    RandomCalls random(1);
    Json tools = Json::array();
    const Json call = random.Call(tools);
    Json messages = Json::array({{{"role", "user"}, {"content", "Hi"}},
                                 {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", Json::array({call})}},
                                 {{"role", "tool"}, {"tool_call_id", call["id"]}, {"content", "21"}}});
    StateTools(format, tools, messages);
    const std::string text =
        RenderJson(source, {{"messages", messages}, {"add_generation_prompt", true}, {"bos_token", "<s>"}, {"eos_token", "</s>"}});
    for (const char* part : {"<tools>\n{\"type\":\"function\"", "<tool_call>\n{\"name\": \"f0\"", "<tool_response>\n21\n"}) {
      EXPECT_TRUE(text.find(part) != std::string::npos) << entry.path() << part << "\n" << text;
    }
  }
  EXPECT_GE(templates, 5);
}

// Texts with calls in which bytes are missing, doubled or exchanged.
TEST(RandomTextTest, CutsDoNotChangeTheEventsAndNothingIsLost) {
  static const std::vector<std::string> parts = {"<tool_call>",
                                                 "</tool_call>",
                                                 "<function=f>",
                                                 "</function>",
                                                 "<parameter=a>",
                                                 "</parameter>",
                                                 "[TOOL_CALLS]",
                                                 "[ARGS]",
                                                 "[CALL_ID]",
                                                 "<|python_tag|>",
                                                 "<|channel|>",
                                                 "<|message|>",
                                                 "<|call|>",
                                                 "to=functions.f",
                                                 "<arg_key>",
                                                 "</arg_key>",
                                                 "<arg_value>",
                                                 "</arg_value>",
                                                 "<minimax:tool_call>",
                                                 "</minimax:tool_call>",
                                                 "<invoke name=\"",
                                                 "<parameter name=\"",
                                                 "\">",
                                                 "</invoke>",
                                                 "{\"name\": \"f\", \"arguments\": {",
                                                 "{\"arguments\": {}, \"name\": \"",
                                                 "}",
                                                 "}}",
                                                 "{}",
                                                 "[",
                                                 "]",
                                                 ",",
                                                 "\"",
                                                 " ",
                                                 "\n",
                                                 "f",
                                                 "é",
                                                 "1",
                                                 "null",
                                                 "\"parameters\": ",
                                                 "\"name\": ",
                                                 ":",
                                                 "<",
                                                 "\\",
                                                 "text"};
  int complete = 0, incomplete = 0, without = 0;
  for (int seed = 0; seed < Cases(2000, 400000); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomCalls random(static_cast<uint64_t>(seed));
    ToolCallParser::Options options{.syntax = static_cast<ToolSyntax>(random.Below(kSyntaxes)), .parallel = random.Below(4) != 0};
    if (random.Below(4) == 0) options.max_waiting_bytes = 1 + static_cast<size_t>(random.Below(60));
    std::string text;
    if (random.Below(2) == 0) {
      Json tools = Json::array(), calls = Json::array();
      for (int i = random.Below(3); i >= 0; --i) calls.push_back(random.Call(tools));
      text = CallsAsText({.syntax = options.syntax, .args_marker = random.Below(2) == 0}, calls);
      for (int i = random.Below(3); i > 0; --i) {
        const auto at = static_cast<size_t>(random.Below(static_cast<int>(text.size())));
        random.Below(2) == 0 ? text.erase(at, 1)
                             : text.insert(at, parts[static_cast<size_t>(random.Below(static_cast<int>(parts.size())))]);
      }
    } else {
      for (int i = random.Below(12); i > 0; --i) text += parts[static_cast<size_t>(random.Below(static_cast<int>(parts.size())))];
    }
    Cuts cuts;
    for (int i = random.Below(10); i > 0; --i) cuts.push_back(static_cast<size_t>(random.Below(1 + static_cast<int>(text.size()) / 2)));
    const std::vector<ToolEvent> events = EventsOf(text, options);
    EXPECT_EQ(EventsOf(text, options, cuts), events) << text;
    EXPECT_EQ(EventsOf(text, options, Cuts(text.size(), 1)), events) << text;
    bool has_call = false;
    std::string arguments, content;
    for (const ToolEvent& event : events) {
      if (event.kind == ToolEvent::Kind::kContent) content += event.text;
      if (event.kind == ToolEvent::Kind::kBegin) arguments.clear();
      if (event.kind == ToolEvent::Kind::kArguments) arguments += event.text;
      if (event.kind != ToolEvent::Kind::kEnd) continue;
      has_call = true;
      ++(event.complete ? complete : incomplete);
      if (IsUtf8(text)) EXPECT_EQ(Json::accept(arguments), event.complete) << text << "\n" << arguments;
    }
    if (!has_call) EXPECT_EQ(content, text);
    without += has_call ? 0 : 1;
    if (HasFailure()) return;
  }
  if (ManyCases()) {
    EXPECT_GT(complete, 250);
    EXPECT_GT(incomplete, 50);
    EXPECT_GT(without, 250);
  }
}

}  // namespace
}  // namespace lime
