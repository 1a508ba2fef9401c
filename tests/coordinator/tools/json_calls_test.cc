// The syntaxes whose calls are JSON objects.
#include "tests/coordinator/tools/parse_calls.h"

namespace lime {
namespace {

constexpr ToolSyntax kHermes = ToolSyntax::kHermes, kLlama3 = ToolSyntax::kLlama3, kMistral = ToolSyntax::kMistral;

std::string Hermes(std::string_view text) {
  return Parse(kHermes, text);
}

TEST(HermesCallsTest, ACallHasANameAndArguments) {
  EXPECT_EQ(Hermes("<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich\", \"n\": [1, 2.5e-3]}}\n</tool_call>"),
            "get_weather({\"city\": \"Zürich\", \"n\": [1, 2.5e-3]})");
  EXPECT_EQ(Hermes("<tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>"), "a({})");
}

TEST(HermesCallsTest, BlanksBesideCallsAreNoContent) {
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
  EXPECT_EQ(Hermes("I look.\n\n" + call + "\n"), "'I look.'f({})");
  EXPECT_EQ(Hermes("\n\n" + call + "\n" + call + "\n\n"), "f({})f({})");
}

TEST(HermesCallsTest, ManyBlanksDoNotWaitForACall) {
  ToolEvents events;
  const auto parser = ToolCallParser::Create({.syntax = kHermes});
  for (int i = 0; i < 100; ++i) parser->Push("\n", events);
  std::string content;
  for (const ToolEvent& event : events.events()) content += event.text;
  EXPECT_GE(content.size(), 64u);
}

TEST(HermesCallsTest, ContentMayFollow) {
  const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  EXPECT_EQ(Hermes(call + " \nDone. " + call + "\n."), "f({})' \nDone.'f({})'\n.'");
}

TEST(HermesCallsTest, ALateNameHoldsTheArgumentsBack) {
  const std::string text = "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"f\"}</tool_call>";
  EXPECT_EQ(Hermes(text), "f({\"a\": 1})");
  ToolEvents events;
  const auto parser = ToolCallParser::Create({.syntax = kHermes});
  parser->Push(std::string_view(text).substr(0, text.find("\"}")), events);
  EXPECT_TRUE(events.empty());
  parser->Push("\"", events);
  EXPECT_EQ(Describe(events.events()), "f({\"a\": 1}");
}

TEST(HermesCallsTest, ArgumentsPassThroughAsTheyCome) {
  ToolEvents events;
  const auto parser = ToolCallParser::Create({.syntax = kHermes});
  const auto push = [&](std::string_view text) {
    events.Clear();
    parser->Push(text, events);
    return Describe(events.events());
  };
  EXPECT_EQ(push("Let me see\n"), "'Let me see'");
  EXPECT_EQ(push("<tool"), "");
  EXPECT_EQ(push("_call>{\"name\": \"f\""), "");
  EXPECT_EQ(push(", \"arguments\": {"), "f({");
  EXPECT_EQ(push("\"a\": \"x"), "\"a\": \"x");
  EXPECT_EQ(push("y\"}"), "y\"}");
  EXPECT_EQ(push("}"), ")");
  EXPECT_EQ(push("\n</tool_call>"), "");
}

TEST(HermesCallsTest, AMarkerThatDoesNotGoOnIsContentAtOnce) {
  ToolEvents events;
  const auto parser = ToolCallParser::Create({.syntax = kHermes});
  parser->Push("a <b", events);
  EXPECT_EQ(Describe(events.events()), "'a <b'");
  events.Clear();
  parser->Push(" \n<tool_c", events);
  EXPECT_TRUE(events.empty());
  parser->Push("<", events);
  EXPECT_EQ(Describe(events.events()), "' \n<tool_c'");
}

TEST(HermesCallsTest, OtherKeysThatModelsWriteAreKnown) {
  EXPECT_EQ(Hermes("<tool_call>{\"id\": \"abc\", \"type\": \"function\", \"name\": \"f\", \"parameters\": {}}</tool_call>"), "f({})");
  EXPECT_EQ(Hermes("<tool_call>{\"name\": \"f\", \"arguments\": {}, \"id\": \"0\"}</tool_call>"), "f({})");
}

TEST(HermesCallsTest, ACallMayLackItsLastBraceOrItsEnd) {
  EXPECT_EQ(Hermes("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}\n</tool_call>"), "f({\"a\": 1})");
  EXPECT_EQ(Hermes("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}"), "f({\"a\": 1})");
  EXPECT_EQ(Hermes("<tool_call>{\"name\": \"f\", \"arguments\": {}}\n<tool_call>{\"name\": \"g\", \"arguments\": {}}"), "f({})g({})");
  EXPECT_EQ(Hermes("<tool_call>{\"name\": \"f\", \"arguments\": {}}\n</tool_ca"), "f({})");
}

TEST(HermesCallsTest, WhatDoesNotParseIsContentAsItCame) {
  for (const std::string text : {
           "No call at all.  ",
           "",
           " \n",
           "<",
           "<tool_call>",
           "<tool_call></tool_call>",
           "<tool_call>\n</tool_call>\n",
           "<tool_call>[]</tool_call>",
           "<tool_call>{}</tool_call>",
           "<tool_call>{\"name\": \"f\"}</tool_call>",
           "<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>",
           "<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}</tool_call>",
           "<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>",
           "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
           "<tool_call>{\"name\": \"a b\", \"arguments\": {}}</tool_call>",
           "<tool_call>{\"name\": \"f\", \"name\": \"g\", \"arguments\": {}}</tool_call>",
           "<tool_call>{\"arguments\": {}, \"arguments\": {}, \"name\": \"f\"}</tool_call>",
           "<tool_call>{\"arguments\": {\"a\": tru}, \"name\": \"f\"}</tool_call>",
           "<tool_call>{\"arguments\": {}}</tool_call>",
           "<tool_call>{\"name\": \"f\", \"args\": {}}</tool_call>",
           "<tool_call>{\"type\": \"code\", \"name\": \"f\", \"arguments\": {}}</tool_call>",
           "<tool_call>{\"name\" \"f\"}",
           "<tool_call>{'name': 'f'}",
           "<tool_call>{\"name\": \"f\", \"arg",
           "<tool_call>{\"name\": \"<tool_call>",
       }) {
    const std::string expected = text.empty() ? "" : "'" + text + "'";
    EXPECT_EQ(Hermes(text), expected);
  }
}

TEST(HermesCallsTest, NamesHaveAtMost64Characters) {
  const std::string name(64, 'n');
  EXPECT_EQ(Hermes("<tool_call>{\"name\": \"" + name + "\", \"arguments\": {}}"), name + "({})");
  const std::string longer = "<tool_call>{\"name\": \"" + name + "n\", \"arguments\": {}}";
  EXPECT_EQ(Hermes(longer), "'" + longer + "'");
}

TEST(HermesCallsTest, ACallBehindABrokenOneIsFound) {
  const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  EXPECT_EQ(Hermes("<tool_call>" + call), "'<tool_call>'f({})");
  EXPECT_EQ(Hermes("<<tool_call><tool_" + call), "'<<tool_call><tool_'f({})");
  EXPECT_EQ(Hermes("<tool_call>{\"name\": \"" + call), "'<tool_call>{\"name\": \"'f({})");
}

TEST(HermesCallsTest, ArgumentsThatBreakEndTheCallAndTheRestIsContent) {
  EXPECT_EQ(Hermes("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 01}}</tool_call>"), "f({\"a\": 0!'1}}</tool_call>'");
  EXPECT_EQ(Hermes("<tool_call>{\"name\": \"f\", \"arguments\": {a} <tool_call>{\"name\": \"g\", \"arguments\": {}}"), "f({!'a}'g({})");
}

TEST(HermesCallsTest, WhatFollowsWholeArgumentsIsContent) {
  EXPECT_EQ(Hermes("<tool_call>{\"name\": \"f\", \"arguments\": {}, \"why\": 1}"), "f({})', \"why\": 1}'");
  EXPECT_EQ(Hermes("<tool_call>{\"name\": \"f\", \"arguments\": {}}}</tool_call>"), "f({})'}</tool_call>'");
}

TEST(HermesCallsTest, TextThatEndsWithinACallEndsItIncomplete) {
  EXPECT_EQ(Hermes("<tool_call>{\"name\": \"f\", \"arguments\": {"), "f({!");
  EXPECT_EQ(Hermes("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b"), "f({\"a\": \"b!");
  EXPECT_EQ(Hermes("<tool_call>{\"name\": \"f\", \"arguments\": {}, \"i"), "f({})");
}

TEST(HermesCallsTest, OneCallIsEnoughWithoutParallel) {
  const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  EXPECT_EQ(Parse("Yes. " + call + call + " more", {.syntax = kHermes, .parallel = false}), "'Yes.'f({})");
  const auto parser = ToolCallParser::Create({.syntax = kHermes, .parallel = false});
  ToolEvents events;
  parser->Push(call.substr(0, call.find("}}") + 1), events);
  EXPECT_FALSE(parser->done());
  parser->Push("}", events);
  EXPECT_TRUE(parser->done());
  EXPECT_EQ(parser->calls(), 1);
}

TEST(HermesCallsTest, ABrokenCallIsTheOnlyOneWithoutParallel) {
  EXPECT_EQ(Parse("<tool_call>{\"name\": \"f\", \"arguments\": {,}} <tool_call>{\"name\": \"f\", \"arguments\": {}}",
                  {.syntax = kHermes, .parallel = false}),
            "f({!',}} <tool_call>{\"name\": \"f\", \"arguments\": {}}'");
}

TEST(HermesCallsTest, WhatWaitsIsBounded) {
  const std::string text = "<tool_call>{\"arguments\": {\"a\": \"" + std::string(200, 'x') + "\"}, \"name\": \"f\"}</tool_call>";
  EXPECT_EQ(Parse(text, {.syntax = kHermes, .max_waiting_bytes = 300}), "f({\"a\": \"" + std::string(200, 'x') + "\"})");
  EXPECT_EQ(Parse(text, {.syntax = kHermes, .max_waiting_bytes = 100}), "'" + text + "'");
}

TEST(HermesCallsTest, ArgumentsAreAtMost64Deep) {
  const auto nested = [](int depth) {
    return "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": " + std::string(static_cast<size_t>(depth), '[') + "1" +
           std::string(static_cast<size_t>(depth), ']') + "}}";
  };
  EXPECT_TRUE(Hermes(nested(63)).ends_with("]})"));
  EXPECT_TRUE(Hermes(nested(64)).find("!'[1]") != std::string::npos);
}

TEST(Llama3CallsTest, ACallIsTheWholeAnswer) {
  const std::string call = "{\"name\": \"add\", \"parameters\": {\"a\": 1, \"b\": 2}}";
  for (const std::string before : {"", "\n", "<|python_tag|>", "<|python_tag|> ", "\n\n<|python_tag|>\n"}) {
    EXPECT_EQ(Parse(kLlama3, before + call), "add({\"a\": 1, \"b\": 2})");
    EXPECT_EQ(Parse(kLlama3, before + call + "\n"), "add({\"a\": 1, \"b\": 2})");
  }
  EXPECT_EQ(Parse(kLlama3, "{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}"), "f({})");
}

TEST(Llama3CallsTest, OtherAnswersAreContentAsTheyCame) {
  for (const std::string text : {
           "Yes: {\"name\": \"f\", \"parameters\": {}}",
           "Yes: <|python_tag|>{\"name\": \"f\", \"parameters\": {}}",
           "{\"name\": \"Ann\", \"age\": 3}",
           "{\"names\": []}",
           "{}",
           "{",
           "<|python_tag|>",
           "<|python_tag|>brave_search.call(query=\"x\")",
           "<|python_tag|><|python_tag|>{\"name\": \"f\", \"parameters\": {}}",
           "[{\"name\": \"f\", \"parameters\": {}}]",
           "{\"parameters\": {}, \"name\": \"f\"}",  // no mask can begin before the name
           "{\"id\": \"1\", \"name\": \"f\", \"parameters\": {}}",
           "{\"type\": \"function\", \"parameters\": {}, \"name\": \"f\"}",
           "{\"type\": \"function\", \"type\": \"function\", \"name\": \"f\", \"parameters\": {}}",
       }) {
    EXPECT_EQ(Parse(kLlama3, text), "'" + text + "'");
  }
}

TEST(Llama3CallsTest, WhatFollowsTheCallIsContent) {
  EXPECT_EQ(Parse(kLlama3, "{\"name\": \"f\", \"parameters\": {}} ; {\"name\": \"g\", \"parameters\": {}}"),
            "f({})' ; {\"name\": \"g\", \"parameters\": {}}'");
}

TEST(Llama3CallsTest, JsonThatIsNoCallIsContentAtItsFirstOtherKey) {
  ToolEvents events;
  const auto parser = ToolCallParser::Create({.syntax = kLlama3});
  parser->Push("{\"name\": \"Ann\", \"", events);
  EXPECT_TRUE(events.empty());
  parser->Push("g", events);
  EXPECT_EQ(Describe(events.events()), "'{\"name\": \"Ann\", \"g'");
}

TEST(MistralCallsTest, CallsAreAList) {
  EXPECT_EQ(Parse(kMistral, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": [1]}}]"), "f({\"a\": [1]})");
  EXPECT_EQ(Parse(kMistral,
                  "Hm.[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}, \"id\": \"abc123XYZ\"}, {\"arguments\": {}, \"name\": \"g\"}]\n"),
            "'Hm.'f({})g({})");
}

TEST(MistralCallsTest, CallsAreANameAndArguments) {
  EXPECT_EQ(Parse(kMistral, "[TOOL_CALLS]f[ARGS]{\"a\": \"]\"}"), "f({\"a\": \"]\"})");
  EXPECT_EQ(Parse(kMistral, "[TOOL_CALLS] f[CALL_ID]abc123XYZ[ARGS] {}[TOOL_CALLS]g[ARGS]{}"), "f({})g({})");
}

TEST(MistralCallsTest, WhatDoesNotParseIsContentAsItCame) {
  for (const std::string text : {
           "[TOOL_CALLS]",
           "[TOOL_CALLS][]",
           "[TOOL_CALLS]{\"name\": \"f\", \"arguments\": {}}",
           "[TOOL_CALLS]f",
           "[TOOL_CALLS]f{}",
           "[TOOL_CALLS]f [ARGS]{}",
           "[TOOL_CALLS][ARGS]{}",
           "[TOOL_CALLS]f[ARGS]",
           "[TOOL_CALLS]f[ARGS][]",
           "[TOOL_CALLS]f[CALL_ID]a[CALL_ID]b[ARGS]{}",
           "[TOOL_CALLS]f[CALL_ID]a b[ARGS]{}",
           "[TOOL_CALLS][{\"name\": \"f\"}]",
           "[TOOL_RESULTS][[TOOL",
       }) {
    EXPECT_EQ(Parse(kMistral, text), "'" + text + "'");
  }
}

TEST(MistralCallsTest, AListMayBreakOff) {
  EXPECT_EQ(Parse(kMistral, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}"), "f({})");
  EXPECT_EQ(Parse(kMistral, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}"), "f({})");
  EXPECT_EQ(Parse(kMistral, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, {\"na"), "f({})', {\"na'");
  EXPECT_EQ(Parse(kMistral, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}} x]"), "f({})' x]'");
  EXPECT_EQ(Parse(kMistral, "[TOOL_CALLS]f[ARGS]{\"a\""), "f({\"a\"!");
}

}  // namespace
}  // namespace lime
