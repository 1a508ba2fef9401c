// Calls of GLM-4.5 and MiniMax M2, whose parameters are plain text in tags.
#include "nlohmann/json.hpp"
#include "tests/coordinator/tools/parse_calls.h"

namespace lime {
namespace {

const ToolFunctions& TaggedFunctions() {
  static const ToolFunctions functions = {{"f", nlohmann::ordered_json::parse(R"({
    "type": "object",
    "properties": {"s": {"type": "string"}, "n": {"type": "integer"}, "l": {"type": "array"}, "os": {"type": ["string", "null"]}}
  })")}};
  return functions;
}

std::string Glm(std::string_view text) {
  return Parse(text, {.syntax = ToolSyntax::kGlm, .functions = &TaggedFunctions()});
}

std::string MiniMax(std::string_view text) {
  return Parse(text, {.syntax = ToolSyntax::kMiniMax, .functions = &TaggedFunctions()});
}

TEST(GlmCallsTest, ACallHasKeysAndValues) {
  EXPECT_EQ(Glm("<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>Zürich\n</arg_value>\n<arg_key>n</arg_key>\n<arg_value>12</arg_value>\n"
                "</tool_call>"),
            "f({\"s\": \"Zürich\\n\", \"n\": 12})");
  EXPECT_EQ(Glm("<tool_call>f<arg_key>l</arg_key><arg_value>[1, \"a\"]</arg_value></tool_call>"), "f({\"l\": [1, \"a\"]})");
  EXPECT_EQ(Glm("<tool_call>f\n</tool_call>"), "f({})");
  EXPECT_EQ(Glm("<tool_call>\nf</tool_call>"), "f({})");
}

TEST(GlmCallsTest, SeveralCallsAndContent) {
  EXPECT_EQ(Glm("I look.\n<tool_call>f\n</tool_call>\n<tool_call>g\n<arg_key>a</arg_key>\n<arg_value>x</arg_value>\n</tool_call>\nDone"),
            "'I look.'f({})g({\"a\": \"x\"})'\nDone'");
}

TEST(GlmCallsTest, StringsAreAsTheyAre) {
  EXPECT_EQ(Glm("<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>\n12 </arg_valu\n\"</arg_value>\n</tool_call>"),
            R"(f({"s": "\n12 </arg_valu\n\""}))");
  EXPECT_EQ(Glm("<tool_call>f\n<arg_key>os</arg_key>\n<arg_value>null</arg_value>\n</tool_call>"), R"(f({"os": null}))");
}

TEST(GlmCallsTest, WhatDoesNotParseIsContentAsItCame) {
  for (const std::string text : {
           "<tool_call>",
           "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
           "<tool_call></tool_call>",
           "<tool_call>f g</tool_call>",
           "<tool_call>f",
           "<tool_call>f\n<arg_key>",
           "<tool_call>f\n<arg_key></arg_key>",
           "<tool_call>f\n<arg_key>a\n</arg_key>",
           "<tool_call>f\n<arg_key>a</arg_k >",
           "<tool_call>f\n<arg_key>a</arg_key>\nx",
           "<tool_call>f\n<arg_value>a</arg_value></tool_call>",
           "<arg_key>a</arg_key>",
       }) {
    EXPECT_EQ(Glm(text), "'" + text + "'");
  }
}

TEST(GlmCallsTest, ACallThatBreaksIsIncomplete) {
  EXPECT_EQ(Glm("<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>ab</arg_"), "f({\"s\": \"ab!");
  EXPECT_EQ(Glm("<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\noops"), "f({\"n\": 1!'\noops'");
}

TEST(MiniMaxCallsTest, ACallHasParameters) {
  EXPECT_EQ(
      MiniMax("<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">a\nb</parameter>\n<parameter name=\"n\">12</parameter>\n"
              "</invoke>\n</minimax:tool_call>"),
      "f({\"s\": \"a\\nb\", \"n\": 12})");
  EXPECT_EQ(MiniMax("<minimax:tool_call><invoke name=\"f\"></invoke></minimax:tool_call>"), "f({})");
}

TEST(MiniMaxCallsTest, SeveralCallsStandInOnePairOfTags) {
  EXPECT_EQ(
      MiniMax("I look.\n<minimax:tool_call>\n<invoke name=\"f\">\n</invoke>\n<invoke name=\"g\">\n<parameter name=\"a\">x</parameter>\n"
              "</invoke>\n</minimax:tool_call>\nDone"),
      "'I look.'f({})g({\"a\": \"x\"})'\nDone'");
}

TEST(MiniMaxCallsTest, TheOuterTagsMayBeMissing) {
  EXPECT_EQ(MiniMax("Ok\n<invoke name=\"f\"></invoke>"), "'Ok'f({})");
}

TEST(MiniMaxCallsTest, WhatDoesNotParseIsContentAsItCame) {
  for (const std::string text : {
           "<minimax:tool_call>",
           "<minimax:tool_call></minimax:tool_call>",
           "<invoke name=\"\"></invoke>",
           "<invoke name=\"f\"",
           "<invoke name=\"f\" ></invoke>",
           "<invoke name=\"f\">text</invoke>",
           "<invoke name=\"f\"><parameter name=\"\"></parameter></invoke>",
           "<invoke name=\"f\"><parameter name=\"a\" ></parameter></invoke>",
           "<tool_call>\n<function=f></function></tool_call>",
       }) {
    EXPECT_EQ(MiniMax(text), "'" + text + "'");
  }
}

TEST(MiniMaxCallsTest, ACallThatBreaksIsIncomplete) {
  EXPECT_EQ(MiniMax("<invoke name=\"f\"><parameter name=\"n\">1</parameter>\noops"), "f({\"n\": 1!'\noops'");
  EXPECT_EQ(MiniMax("<invoke name=\"f\"><parameter name=\"s\">ab"), "f({\"s\": \"ab!");
}

}  // namespace
}  // namespace lime
