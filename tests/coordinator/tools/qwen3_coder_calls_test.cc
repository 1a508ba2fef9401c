// Calls whose parameters are plain text, typed by the schema.
#include "nlohmann/json.hpp"
#include "tests/coordinator/tools/parse_calls.h"

namespace lime {
namespace {

const ToolFunctions& Functions() {
  static const ToolFunctions functions = {{"f", nlohmann::ordered_json::parse(R"({
    "type": "object",
    "properties": {
      "s": {"type": "string"},
      "e": {"enum": ["a", "1"]},
      "n": {"type": "integer"},
      "x": {"type": "number"},
      "b": {"type": "boolean"},
      "z": {"type": "null"},
      "l": {"type": "array"},
      "o": {"type": "object"},
      "os": {"type": ["string", "null"]},
      "on": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
      "sl": {"oneOf": [{"type": "string"}, {"type": "array"}]},
      "r": {"$ref": "#/$defs/text"},
      "any": {}
    },
    "$defs": {"text": {"type": "string"}},
    "additionalProperties": {"type": "string"}
  })")}};
  return functions;
}

ToolCallParser::Options Options() {
  return {.syntax = ToolSyntax::kQwen3Coder, .functions = &Functions()};
}

std::string Coder(std::string_view text) {
  return Parse(text, Options());
}

// The value of one parameter in a call of `f`.
std::string Value(const std::string& key, const std::string& value) {
  const std::string call =
      Coder("<tool_call>\n<function=f>\n<parameter=" + key + ">\n" + value + "\n</parameter>\n</function>\n</tool_call>");
  const std::string before = "f({\"" + key + "\": ";
  EXPECT_TRUE(call.starts_with(before) && call.ends_with("})")) << call;
  std::string json = call.substr(before.size(), call.size() - before.size() - 2);
  EXPECT_TRUE(nlohmann::json::accept(json)) << json;
  return json;
}

TEST(Qwen3CoderCallsTest, ACallHasParameters) {
  EXPECT_EQ(
      Coder("<tool_call>\n<function=f>\n<parameter=s>\na\nb\n</parameter>\n<parameter=n>\n12\n</parameter>\n</function>\n</tool_call>"),
      "f({\"s\": \"a\\nb\", \"n\": 12})");
  EXPECT_EQ(Coder("<tool_call><function=f><parameter=s>a</parameter></function></tool_call>"), "f({\"s\": \"a\"})");
  EXPECT_EQ(Coder("<tool_call>\n<function=f>\n</function>\n</tool_call>"), "f({})");
}

TEST(Qwen3CoderCallsTest, SeveralCallsAndContent) {
  const std::string call = "<tool_call>\n<function=f>\n</function>\n</tool_call>";
  EXPECT_EQ(Coder("I look.\n\n" + call + "\n" + call + "\nDone"), "'I look.'f({})f({})'\nDone'");
}

TEST(Qwen3CoderCallsTest, TheOuterTagsMayBeMissing) {
  EXPECT_EQ(Coder("Ok\n<function=f>\n<parameter=n>\n1\n</parameter>\n</function>\n<function=g>\n</function>"), "'Ok'f({\"n\": 1})g({})");
  EXPECT_EQ(Coder("<function=f></function>\n</tool_call>"), "f({})");
}

TEST(Qwen3CoderCallsTest, StringsAreAsTheyAre) {
  EXPECT_EQ(Value("s", "12"), R"("12")");
  EXPECT_EQ(Value("s", "null"), R"("null")");
  EXPECT_EQ(Value("s", "\"quoted\" \\ \t\x01"), R"("\"quoted\" \\ \u0009\u0001")");
  EXPECT_EQ(Value("s", ""), R"("")");
  EXPECT_EQ(Value("s", "\n a \n"), R"("\n a \n")");
  EXPECT_EQ(Value("s", "</param></parameter"), R"("</param></parameter")");
  EXPECT_EQ(Value("s", "<parameter=s>\n</function>"), R"("<parameter=s>\n</function>")");
  EXPECT_EQ(Value("e", "1"), R"("1")");
  EXPECT_EQ(Value("r", "1"), R"("1")");
  EXPECT_EQ(Value("unnamed", "1"), R"("1")");
}

TEST(Qwen3CoderCallsTest, OtherValuesAreJson) {
  EXPECT_EQ(Value("n", "-5"), "-5");
  EXPECT_EQ(Value("n", " 123456789012345678901234567890 "), "123456789012345678901234567890");
  EXPECT_EQ(Value("x", "1e3"), "1e3");
  EXPECT_EQ(Value("b", "true"), "true");
  EXPECT_EQ(Value("z", "null"), "null");
  EXPECT_EQ(Value("l", "[1,\n \"a\"]"), "[1,\n \"a\"]");
  EXPECT_EQ(Value("o", "{\"a\": {\"b\": []}}"), R"({"a": {"b": []}})");
  EXPECT_EQ(Value("l", "\"text\""), "\"text\"");
}

TEST(Qwen3CoderCallsTest, PythonsSpellingsAreJson) {
  EXPECT_EQ(Value("b", "True"), "true");
  EXPECT_EQ(Value("b", "False"), "false");
  EXPECT_EQ(Value("z", "None"), "null");
  EXPECT_EQ(Value("os", "None"), "null");
  EXPECT_EQ(Value("s", "None"), R"("None")");
}

TEST(Qwen3CoderCallsTest, WhatIsNoJsonBecomesAString) {
  EXPECT_EQ(Value("sl", std::string("[4]\0", 4)), "\"[4]\\u0000\"");
  EXPECT_EQ(Value("n", "twelve"), R"("twelve")");
  EXPECT_EQ(Value("l", "['a']"), R"("['a']")");
  EXPECT_EQ(Value("o", "{\"a\": "), R"("{\"a\": ")");
  EXPECT_EQ(Value("x", ""), R"("")");
}

TEST(Qwen3CoderCallsTest, OneOfSeveralTypes) {
  EXPECT_EQ(Value("os", "null"), "null");
  EXPECT_EQ(Value("os", "12"), R"("12")");
  EXPECT_EQ(Value("os", "nullable"), R"("nullable")");
  EXPECT_EQ(Value("os", std::string(80, 'n')), "\"" + std::string(80, 'n') + "\"");
  EXPECT_EQ(Value("on", "null"), "null");
  EXPECT_EQ(Value("on", "7"), "7");
  EXPECT_EQ(Value("sl", "[1]"), "[1]");
  EXPECT_EQ(Value("sl", "[1"), R"("[1")");
  EXPECT_EQ(Value("sl", "1"), R"("1")");
  EXPECT_EQ(Value("any", "1"), "1");
  EXPECT_EQ(Value("any", "one"), R"("one")");
  EXPECT_EQ(Value("any", "\"one\""), R"("\"one\"")");
}

TEST(Qwen3CoderCallsTest, WithoutSchemasValuesAreJsonWhereTheyCanBe) {
  EXPECT_EQ(Parse(ToolSyntax::kQwen3Coder, "<function=g><parameter=a>1</parameter><parameter=b>x</parameter></function>"),
            "g({\"a\": 1, \"b\": \"x\"})");
}

TEST(Qwen3CoderCallsTest, StringsPassThroughAsTheyCome) {
  ToolEvents events;
  const auto parser = ToolCallParser::Create(Options());
  const auto push = [&](std::string_view text) {
    events.Clear();
    parser->Push(text, events);
    return Describe(events.events());
  };
  EXPECT_EQ(push("<tool_call>\n<function=f>\n"), "");
  EXPECT_EQ(push("<parameter=s>\n"), "f({\"s\": ");
  EXPECT_EQ(push("one\n"), "\"one");
  EXPECT_EQ(push("two</para"), "\\ntwo");
  EXPECT_EQ(push("graph\n"), "</paragraph");
  EXPECT_EQ(push("</parameter>"), "\"");
  EXPECT_EQ(push("\n<parameter=os>\n"), ", \"os\": ");
  EXPECT_EQ(push("nul"), "");
  EXPECT_EQ(push(std::string(70, 'l')), "\"nul" + std::string(70, 'l'));
  EXPECT_EQ(push("\n</parameter>\n<parameter=l>["), "\", \"l\": ");
  EXPECT_EQ(push("1]"), "");
  EXPECT_EQ(push("</parameter>"), "[1]");
  EXPECT_EQ(push("</function>"), "})");
}

TEST(Qwen3CoderCallsTest, WhatDoesNotParseIsContentAsItCame) {
  for (const std::string text : {
           "<tool_call>",
           "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
           "<function=",
           "<function=>",
           "<function=f",
           "<function=f g></function>",
           "<function=f>",
           "<function=f>\ntext</function>",
           "<function=f><parameter=></parameter></function>",
           "<function=f><parameter=a",
           "<function=f><parameter=a\n>",
           "<function=f></tool_call>",
           "<functions=f>",
       }) {
    EXPECT_EQ(Coder(text), "'" + text + "'");
  }
}

TEST(Qwen3CoderCallsTest, ACallThatBreaksIsIncomplete) {
  EXPECT_EQ(Coder("<function=f><parameter=n>1</parameter>\noops</function>"), "f({\"n\": 1!'\noops</function>'");
  EXPECT_EQ(Coder("<function=f><parameter=s>ab\n</para"), "f({\"s\": \"ab!");
  EXPECT_EQ(Coder("<function=f><parameter=l>[1, 2"), "f({\"l\": [1, 2!");
  EXPECT_EQ(Coder("<function=f><parameter=l>[1]</parameter>\n</func"), "f({\"l\": [1]!");
}

TEST(Qwen3CoderCallsTest, WhatWaitsIsBounded) {
  ToolCallParser::Options options = Options();
  options.max_waiting_bytes = 100;
  const std::string list = "[" + std::string(150, ' ') + "]";
  EXPECT_EQ(Parse("<function=f><parameter=l>" + list + "</parameter></function>", options), "f({\"l\": \"" + list + "\"})");
  const std::string blanks = "<function=f>" + std::string(150, ' ') + "</function>";
  EXPECT_EQ(Parse(blanks, options), "'" + blanks + "'");
}

TEST(Qwen3CoderCallsTest, OneCallIsEnoughWithoutParallel) {
  ToolCallParser::Options options = Options();
  options.parallel = false;
  EXPECT_EQ(Parse("<function=f></function><function=g></function>x", options), "f({})");
}

}  // namespace
}  // namespace lime
