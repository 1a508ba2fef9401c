#include "coordinator/generation/mask_format.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "common/answer_masks/answer_follower.h"
#include "common/json_schema/answer_format.h"
#include "coordinator/text/tools/tool_call_parser.h"

namespace lime {
namespace {

using Start = ThinkingSplitter::Start;
using Mode = ToolChoice::Mode;

ToolRequest Tools(Mode mode) {
  ToolRequest tools = {.choice = {mode, mode == Mode::kFunction ? "now" : ""}};
  tools.functions = {
      {"add", Json::parse(R"({"type":"object","properties":{"a":{"type":"integer"},"note":{"type":"string"}},"required":["a"]})")},
      {"now", Json::parse(R"({"type":"object","properties":{}})")}};
  return tools;
}

AnswerFormat Schema() {
  return {.kind = AnswerFormat::Kind::kSchema, .schema = R"({"type":"object","properties":{"b":{"type":"boolean"}},"required":["b"]})"};
}

// The format, which can be compiled.
std::string Format(const ToolRequest& tools, const AnswerFormat& format, const MaskOptions& options = {}) {
  const ApiResult<std::string> made = MaskFormat(tools, format, options);
  if (!made.ok()) return made.error().code + " " + made.error().param;
  if (made->empty()) return "";
  const auto compiled = json_schema::CompileFormat(*made);
  EXPECT_TRUE(compiled.ok()) << compiled.status() << "\n" << *made;
  return *made;
}

// How far the format follows the text: "all" if it is an answer, "open" if it is the beginning of one,
// "free" where no mask has begun, "no" if no answer has it.
std::string Follow(const std::string& format, const std::vector<std::string>& tokens) {
  json_schema::AnswerFollower follower(json_schema::CompileFormat(format).value());
  bool had_mask = false;
  for (const std::string& token : tokens) {
    had_mask |= follower.matcher() != nullptr;
    follower.Push(token);
  }
  if (follower.matcher() == nullptr) return had_mask ? "no" : "free";
  return follower.matcher()->IsComplete() ? "all" : "open";
}

TEST(MaskFormatTest, WithoutToolsAndFormatTokensAreFree) {
  EXPECT_EQ(Format({}, {}), "");
  EXPECT_EQ(Format(Tools(Mode::kNone), {}), "");
}

TEST(MaskFormatTest, AFormatIsItsSchema) {
  EXPECT_EQ(Format({}, Schema()),
            R"({"schemas":[{"type":"object","properties":{"b":{"type":"boolean"}},"required":["b"]}],"answer":{"value":0}})");
  EXPECT_EQ(Format({}, {.kind = AnswerFormat::Kind::kObject, .schema = ""}), R"({"answer":{"object":true}})");
}

TEST(MaskFormatTest, ThinkingStandsBeforeTheAnswer) {
  const std::string inside = Format({}, Schema(), {.thinking = Start::kInside});
  EXPECT_EQ(Follow(inside, {"so", "</think>", "\n\n", "{\"b\":", "true}"}), "all");
  EXPECT_EQ(Follow(inside, {"{\"b\": true}"}), "open");
  const std::string open = Format({}, Schema(), {.thinking = Start::kOpen});
  EXPECT_EQ(Follow(open, {"<think>", "so", "</think>", "{\"b\":true}"}), "all");
  EXPECT_EQ(Follow(open, {"{\"b\":true}"}), "all");
  EXPECT_EQ(Follow(open, {"Sure", ": {}"}), "no");
}

TEST(MaskFormatTest, AForcedCallIsOneOfTheFunctions) {
  const std::string any = Format(Tools(Mode::kRequired), {});
  EXPECT_EQ(Follow(any, {"<tool_call>", "\n{\"name\": \"add\", \"arguments\": {\"a\":1}}\n", "</tool_call>"}), "all");
  EXPECT_EQ(Follow(any, {"I"}), "no");
  const std::string one = Format(Tools(Mode::kFunction), {});
  EXPECT_EQ(Follow(one, {"<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"}), "all");
  EXPECT_EQ(Follow(one, {"<tool_call>\n{\"name\": \"add\""}), "no");
}

TEST(MaskFormatTest, SeveralCallsUnlessTheyAreNotParallel) {
  const std::string call = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
  ToolRequest tools = Tools(Mode::kRequired);
  EXPECT_EQ(Follow(Format(tools, {}), {call, "\n" + call}), "all");
  tools.parallel = false;
  EXPECT_EQ(Follow(Format(tools, {}), {call}), "all");
  EXPECT_EQ(Follow(Format(tools, {}), {call, "\n" + call}), "no");
}

TEST(MaskFormatTest, EverySyntaxWritesWhatItsParserReads) {
  const std::vector<std::pair<ToolFormat, std::string>> syntaxes = {
      {{ToolSyntax::kHermes}, "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\":1}}\n</tool_call>"},
      {{ToolSyntax::kQwen3Coder},
       "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=note>\nx\n</parameter>\n</function>\n</tool_call>"},
      {{ToolSyntax::kLlama3}, "{\"name\": \"add\", \"parameters\": {\"a\":1}}"},
      {{ToolSyntax::kMistral}, "[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {\"a\":1}}]"},
      {{.syntax = ToolSyntax::kMistral, .args_marker = true}, "[TOOL_CALLS]add[ARGS]{\"a\":1}"},
      {{ToolSyntax::kGlm},
       "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>note</arg_key>\n<arg_value>x</arg_value>\n</tool_call>"},
      {{ToolSyntax::kMiniMax},
       "<minimax:tool_call>\n<invoke name=\"add\">\n<parameter name=\"a\">1</parameter>\n<parameter name=\"note\">x</parameter>\n"
       "</invoke>\n</minimax:tool_call>"},
      {{ToolSyntax::kHarmony}, "<|channel|>commentary to=functions.add <|constrain|>json<|message|>{\"a\":1}"},
  };
  for (const auto& [format, text] : syntaxes) {
    const ToolRequest tools = Tools(Mode::kRequired);
    EXPECT_EQ(Follow(Format(tools, {}, {.tool_format = format}), {text}), "all") << text;
    ToolEvents events;
    const auto parser = ToolCallParser::Create({.syntax = format.syntax, .functions = &tools.functions});
    parser->Push(text, events);
    parser->Finish(events);
    ASSERT_EQ(events.events().size(), 3u) << text;
    EXPECT_EQ(events.events()[0].text, "add");
    EXPECT_TRUE(events.events()[2].complete) << text;
  }
}

constexpr const char* kHarmonyThought = "<|channel|>analysis<|message|>so<|end|><|start|>assistant";

TEST(MaskFormatTest, AValueOfHarmonyIsTheFinalMessage) {
  const std::string format = Format({}, Schema(), {.tool_format = {ToolSyntax::kHarmony}, .thinking = Start::kHarmony});
  EXPECT_EQ(Follow(format, {kHarmonyThought, "<|channel|>final<|message|>", "{\"b\":true}"}), "all");
  EXPECT_EQ(Follow(format, {"<|channel|>final<|message|>", "{\"b\":true}"}), "all");
  EXPECT_EQ(Follow(format, {"<|channel|>analysis<|message|>{\"b\":true}"}), "open");
  EXPECT_EQ(Follow(format, {"{"}), "no");
  EXPECT_EQ(Follow(format, {"<|channel|>final<|message|>", "Sure"}), "no");
  const std::string inside = Format({}, Schema(), {.tool_format = {ToolSyntax::kHarmony}, .thinking = Start::kHarmonyContent});
  EXPECT_EQ(Follow(inside, {"{\"b\":true}"}), "all");
}

TEST(MaskFormatTest, ACallOfHarmonyIsAMessage) {
  const MaskOptions options = {.tool_format = {ToolSyntax::kHarmony}, .thinking = Start::kHarmony};
  const std::string call = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}";
  const std::string forced = Format(Tools(Mode::kFunction), {}, options);
  EXPECT_EQ(Follow(forced, {kHarmonyThought, call}), "all");
  EXPECT_EQ(Follow(forced, {call}), "all");
  EXPECT_EQ(Follow(forced, {kHarmonyThought, "<|channel|>final"}), "no");
  const std::string inside =
      Format(Tools(Mode::kFunction), {}, {.tool_format = {ToolSyntax::kHarmony}, .thinking = Start::kHarmonyContent});
  EXPECT_EQ(Follow(inside, {"<|end|><|start|>assistant" + call}), "all");
  const std::string either = Format(Tools(Mode::kAuto), Schema(), options);
  EXPECT_EQ(Follow(either, {kHarmonyThought, call}), "all");
  EXPECT_EQ(Follow(either, {"<|channel|>final<|message|>{\"b\":true}"}), "all");
}

TEST(MaskFormatTest, WithAutoTheMaskOfHarmonyBeginsAtTheRecipient) {
  const std::string format = Format(Tools(Mode::kAuto), {}, {.tool_format = {ToolSyntax::kHarmony}, .thinking = Start::kHarmony});
  EXPECT_EQ(Follow(format, {kHarmonyThought, "<|channel|>final<|message|>", "Hello to=functions.x"}), "free");
  EXPECT_EQ(Follow(format, {kHarmonyThought, "<|channel|>commentary", " to=functions.", "now", " <|constrain|>json<|message|>{}"}), "all");
  EXPECT_EQ(Follow(format, {kHarmonyThought, "<|channel|>commentary to=functions.", "other"}), "no");
  EXPECT_EQ(Follow(format, {kHarmonyThought, " to=functions.", "now<|channel|>commentary <|constrain|>json<|message|>{}"}), "all");
  EXPECT_EQ(Follow(format, {" to", "=functions.", "now<|channel|>commentary <|constrain|>json<|message|>{}"}), "all");
}

TEST(MaskFormatTest, WithAutoTheMaskBeginsAtTheMarker) {
  const std::string format = Format(Tools(Mode::kAuto), {}, {.thinking = Start::kOpen});
  EXPECT_EQ(Follow(format, {"Hello", " there"}), "free");
  EXPECT_EQ(Follow(format, {"I look. ", "<tool_call>", "\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"}), "all");
  EXPECT_EQ(Follow(format, {"<think>", "<tool_call>", "x"}), "free");
  EXPECT_EQ(Follow(format, {"<tool_call>", "\n{\"name\": \"other\""}), "no");
}

// Spellings of a call that the parser takes: the mask begins in each, and so holds its arguments.
TEST(MaskFormatTest, WithAutoTheMaskBeginsWhereverTheParserSeesACall) {
  struct Spelling {
    ToolSyntax syntax;
    std::string begin, rest;
  };
  const std::string values = "<parameter=a>\n1\n</parameter>\n</function>";
  const Spelling spellings[] = {
      {ToolSyntax::kLlama3, "{\"name\": \"", "add\", \"parameters\": {\"a\":1}}"},
      {ToolSyntax::kLlama3, "{\"name\":\"", "add\", \"parameters\": {\"a\":1}}"},
      {ToolSyntax::kLlama3, "\n{\n  \"name\" : \"", "add\", \"parameters\": {\"a\":1}}"},
      {ToolSyntax::kLlama3, "{\"type\": \"function\", \"name\": \"", "add\", \"parameters\": {\"a\":1}}"},
      {ToolSyntax::kLlama3, "{\"type\":\"function\",\"name\":\"", "add\", \"parameters\": {\"a\":1}}"},
      {ToolSyntax::kLlama3, "<|python_tag|>", "{\"name\": \"add\", \"parameters\": {\"a\":1}}"},
      {ToolSyntax::kQwen3Coder, "So: <tool_call>", "\n<function=add>\n" + values + "\n</tool_call>"},
      {ToolSyntax::kQwen3Coder, "So: <function=", "add>\n" + values},
      {ToolSyntax::kQwen3Coder, "<function=", "add>\n" + values + "\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>"},
      {ToolSyntax::kMiniMax, "<invoke name=\"", "add\">\n<parameter name=\"a\">1</parameter>\n</invoke>"},
      {ToolSyntax::kMiniMax, "<invoke name=\"", "add\">\n<parameter name=\"a\">1</parameter>\n</invoke>\n</minimax:tool_call>"},
      {ToolSyntax::kHarmony, "<|channel|>analysis to=functions.", "add <|constrain|>json<|message|>{\"a\":1}"},
      {ToolSyntax::kHarmony, "<|channel|>final to=functions.", "add <|constrain|>json<|message|>{\"a\":1}"},
  };
  const ToolRequest tools = Tools(Mode::kAuto);
  for (const auto& [syntax, begin, rest] : spellings) {
    const std::string format = Format(tools, {}, {.tool_format = {syntax}});
    std::vector<std::string> tokens;
    for (const char c : begin) tokens.emplace_back(1, c);
    EXPECT_EQ(Follow(format, tokens), "open") << begin;
    tokens.push_back(rest);
    EXPECT_EQ(Follow(format, tokens), "all") << begin << rest;
    tokens.back() = "other";
    EXPECT_EQ(Follow(format, tokens), "no") << begin;
    ToolEvents events;
    const auto parser = ToolCallParser::Create({.syntax = syntax, .functions = &tools.functions});
    parser->Push(begin + rest, events);
    parser->Finish(events);
    const bool has_call = std::ranges::any_of(events.events(), [](const ToolEvent& event) { return event.text == "add"; });
    EXPECT_TRUE(has_call) << begin << rest;
  }
}

TEST(MaskFormatTest, AForcedCallHasItsOuterTags) {
  const std::string forced = Format(Tools(Mode::kRequired), {}, {.tool_format = {ToolSyntax::kQwen3Coder}});
  EXPECT_EQ(Follow(forced, {"<function="}), "no");
  EXPECT_EQ(Follow(forced, {"<tool_call>\n<function=now>\n</function>"}), "open");
}

TEST(MaskFormatTest, WithAutoAndAFormatTheAnswerIsACallOrTheFormat) {
  const std::string format = Format(Tools(Mode::kAuto), Schema());
  EXPECT_EQ(Follow(format, {"{\"b\":true}"}), "all");
  EXPECT_EQ(Follow(format, {"<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"}), "all");
  EXPECT_EQ(Follow(format, {"Hello"}), "no");
  EXPECT_EQ(Follow(Format(Tools(Mode::kRequired), Schema()), {"{\"b\":true}"}), "no");
}

TEST(MaskFormatTest, FunctionsThatAreTooLongGoWithoutAMaskUnlessTheyAreForced) {
  ToolRequest tools = Tools(Mode::kAuto);
  Json& values = tools.functions[0].parameters["properties"]["a"]["enum"];
  for (int i = 0; i < 20'000; ++i) values.push_back(i);
  EXPECT_EQ(Format(tools, {}), "");
  tools.choice.mode = Mode::kRequired;
  EXPECT_EQ(Format(tools, {}), "invalid_value tools");
}

TEST(MaskFormatTest, AParameterThatTheSyntaxCannotNameIsAnError) {
  ToolRequest tools = Tools(Mode::kRequired);
  tools.functions[0].parameters = Json::parse(R"({"type":"object","properties":{"a>b":{}},"required":["a>b"]})");
  EXPECT_EQ(Format(tools, {}, {.tool_format = {ToolSyntax::kQwen3Coder}}), "invalid_value tools");
}

}  // namespace
}  // namespace lime
