#include "coordinator/text/tools/call_frames.h"

#include "coordinator/text/tools/call_text.h"
#include "tests/coordinator/tools/parse_calls.h"

namespace lime {
namespace {

using Json = nlohmann::ordered_json;

ToolRequest Request() {
  ToolRequest request;
  request.choice.mode = ToolChoice::Mode::kRequired;
  request.functions = {
      {"add",
       Json::parse(
           R"({"type": "object", "properties": {"a": {"type": "integer"}, "note": {"type": "string"}, "o": {"type": ["string", "null"]}},
                              "required": ["a", "more"]})")},
      {"now", Json::parse(R"({"type": "object"})")},
  };
  return request;
}

const std::vector<ToolFormat>& Formats() {
  static const std::vector<ToolFormat> formats = {
      {ToolSyntax::kHermes},  {ToolSyntax::kQwen3Coder}, {ToolSyntax::kLlama3},  {ToolSyntax::kGlm},
      {ToolSyntax::kMiniMax}, {ToolSyntax::kHarmony},    {ToolSyntax::kMistral}, {.syntax = ToolSyntax::kMistral, .args_marker = true}};
  return formats;
}

// One call of the alternative, with one value for every argument.
std::string Write(const CallFrame& frame) {
  if (!frame.by_parameter) return frame.prefix + "{\"a\": 1}" + frame.suffix;
  std::string text = frame.prefix;
  for (const ParameterFrame& parameter : frame.parameters)
    text += parameter.prefix + (parameter.key == "note" ? "x" : "1") + parameter.suffix;
  return text + frame.suffix;
}

TEST(CallFramesTest, WhatTheFramesWriteIsWhatTheParserReads) {
  const ToolRequest request = Request();
  for (const ToolFormat& format : Formats()) {
    const auto frames = FrameCalls(format, request);
    ASSERT_TRUE(frames.ok());
    ASSERT_EQ(frames->alternatives.size(), 2u);
    std::string text = frames->opening + Write(frames->alternatives[0]);
    const bool by_parameter = frames->alternatives[0].by_parameter;
    std::string expected = by_parameter ? R"(add({"a": 1, "note": "x", "o": "1", "more": 1}))" : "add({\"a\": 1})";
    if (!frames->one_call) {
      text += frames->separator + Write(frames->alternatives[1]);
      expected += by_parameter ? "now({})" : "now({\"a\": 1})";
    }
    text += frames->closing;
    EXPECT_EQ(Parse(text, {.syntax = format.syntax, .functions = &request.functions}), expected) << text;
  }
}

TEST(CallFramesTest, MasksStartAtTheMarkerOfTheSyntax) {
  const ToolRequest request = Request();
  for (const ToolFormat& format : Formats()) {
    const auto frames = FrameCalls(format, request);
    ASSERT_TRUE(frames.ok());
    ASSERT_FALSE(frames->starts.empty());
    for (const CallFrame& frame : frames->alternatives) {
      const std::string text = frames->opening + frame.prefix;
      for (const MaskStart& start : frames->starts) {
        EXPECT_TRUE(start.text.ends_with(text.substr(0, start.frame_bytes))) << start.text;
        EXPECT_EQ(start.at_start, format.syntax == ToolSyntax::kLlama3);
        // A call that begins with the marker and goes on as the mask says.
        const std::string call = start.text + text.substr(start.frame_bytes) + Write(frame).substr(frame.prefix.size()) + frames->closing;
        EXPECT_EQ(Parse(format.syntax, call).substr(0, 4), frame.function->name + "(") << call;
      }
    }
  }
}

TEST(CallFramesTest, ParametersHaveTheirFrames) {
  const ToolRequest request = Request();
  const auto frames = FrameCalls({ToolSyntax::kQwen3Coder}, request);
  ASSERT_TRUE(frames.ok());
  const auto& parameters = frames->alternatives[0].parameters;
  ASSERT_EQ(parameters.size(), 4u);
  const auto expect = [](const ParameterFrame& frame, const std::string& key, bool required) {
    EXPECT_EQ(frame.key, key);
    EXPECT_EQ(frame.prefix, "<parameter=" + key + ">\n");
    EXPECT_EQ(frame.suffix, "\n</parameter>\n");
    EXPECT_EQ(frame.is_required, required) << key;
  };
  expect(parameters[0], "a", true);
  expect(parameters[1], "note", false);
  expect(parameters[2], "o", false);
  expect(parameters[3], "more", true);
}

TEST(CallFramesTest, EverySyntaxHasItsTags) {
  const ToolRequest request = Request();
  const auto glm = FrameCalls({ToolSyntax::kGlm}, request);
  ASSERT_TRUE(glm.ok());
  EXPECT_EQ(glm->alternatives[0].prefix, "<tool_call>add\n");
  EXPECT_EQ(glm->alternatives[0].parameters[0].prefix, "<arg_key>a</arg_key>\n<arg_value>");
  EXPECT_EQ(glm->alternatives[0].parameters[0].suffix, "</arg_value>\n");
  EXPECT_EQ(glm->alternatives[0].suffix, "</tool_call>");
  const auto minimax = FrameCalls({ToolSyntax::kMiniMax}, request);
  ASSERT_TRUE(minimax.ok());
  EXPECT_EQ(minimax->opening, "<minimax:tool_call>\n");
  EXPECT_EQ(minimax->alternatives[0].prefix, "<invoke name=\"add\">\n");
  EXPECT_EQ(minimax->alternatives[0].parameters[0].prefix, "<parameter name=\"a\">");
  EXPECT_EQ(minimax->alternatives[0].parameters[0].suffix, "</parameter>\n");
  EXPECT_EQ(minimax->alternatives[0].suffix + minimax->closing, "</invoke>\n</minimax:tool_call>");
}

// A call that has begun may have its recipient behind the role, as the template writes it.
TEST(CallFramesTest, ACallOfHarmonyMayBeginWithItsRecipient) {
  ToolRequest request = Request();
  EXPECT_EQ(FrameCalls({ToolSyntax::kHarmony}, request)->starts.size(), 1u);
  EXPECT_TRUE(FrameCalls({ToolSyntax::kHarmony}, request)->one_call);
  request.choice.mode = ToolChoice::Mode::kAuto;
  const auto frames = FrameCalls({ToolSyntax::kHarmony}, request);
  ASSERT_TRUE(frames.ok());
  ASSERT_EQ(frames->alternatives.size(), 6u);
  EXPECT_EQ(frames->alternatives[1].prefix, "to=functions.add<|channel|>commentary <|constrain|>json<|message|>");
  EXPECT_EQ(frames->alternatives[2].prefix, "to=functions.add <|constrain|>json<|message|>");
  ASSERT_EQ(frames->starts.size(), 5u);
  for (const MaskStart& start : frames->starts) {
    const std::string frame = start.text.substr(start.text.size() - start.frame_bytes);
    int begun = 0;
    for (const CallFrame& call : frames->alternatives) {
      if (!call.prefix.starts_with(frame)) continue;
      ++begun;
      EXPECT_EQ(Parse(ToolSyntax::kHarmony, call.prefix + "{}"), call.function->name + "({})");
    }
    EXPECT_EQ(begun, frame == "to=functions." ? 4 : 2) << start.text;
  }
}

TEST(CallFramesTest, ANamedFunctionIsTheOnlyAlternativeAndIsCalledOnce) {
  ToolRequest request = Request();
  request.choice = {ToolChoice::Mode::kFunction, "now"};
  const auto frames = FrameCalls({}, request);
  ASSERT_TRUE(frames.ok());
  ASSERT_EQ(frames->alternatives.size(), 1u);
  EXPECT_EQ(frames->alternatives[0].function, &request.functions[1]);
  EXPECT_EQ(frames->alternatives[0].prefix, "<tool_call>\n{\"name\": \"now\", \"arguments\": ");
  EXPECT_EQ(frames->alternatives[0].suffix, "}\n</tool_call>");
  EXPECT_TRUE(frames->one_call);
}

TEST(CallFramesTest, OneCallWithoutParallel) {
  ToolRequest request = Request();
  EXPECT_FALSE(FrameCalls({}, request)->one_call);
  EXPECT_TRUE(FrameCalls({ToolSyntax::kLlama3}, request)->one_call);
  request.parallel = false;
  EXPECT_TRUE(FrameCalls({}, request)->one_call);
}

TEST(CallFramesTest, ARequiredParameterThatTheSyntaxCannotNameIsAnError) {
  ToolRequest request;
  request.functions = {{"f", Json::parse(R"({"type": "object", "properties": {"a>b": {}, "c": {}}})")}};
  EXPECT_EQ(FrameCalls({ToolSyntax::kQwen3Coder}, request)->alternatives[0].parameters.size(), 1u);
  request.functions[0].parameters["required"] = {"a>b"};
  EXPECT_EQ(FrameCalls({ToolSyntax::kQwen3Coder}, request).status().message(),
            "function f requires a parameter that the syntax qwen3-coder cannot name; rename it, or use another --tool-format");
  EXPECT_FALSE(FrameCalls({ToolSyntax::kGlm}, request).ok());
  EXPECT_TRUE(FrameCalls({ToolSyntax::kHermes}, request).ok());
  request.functions[0].parameters["required"] = {"a\"b"};
  EXPECT_FALSE(FrameCalls({ToolSyntax::kMiniMax}, request).ok());
  EXPECT_TRUE(FrameCalls({ToolSyntax::kGlm}, request).ok());
}

}  // namespace
}  // namespace lime
