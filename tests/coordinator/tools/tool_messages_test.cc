#include "coordinator/text/tools/tool_messages.h"

#include <gmock/gmock.h>

#include "nlohmann/json.hpp"

namespace lime {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;
using testing::StartsWith;

Json CallWith(const Json& arguments) {
  return {{"role", "assistant"},
          {"content", nullptr},
          {"tool_calls", {{{"id", "c"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", arguments}}}}}}};
}

const Json& Tools() {
  static const Json tools = Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])");
  return tools;
}

TEST(StateToolsTest, ASystemMessageSaysWhatCanBeCalledAndHow) {
  Json messages = Json::array({{{"role", "user"}, {"content", "Hi"}}});
  StateTools({}, Tools(), messages);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0]["role"], "system");
  EXPECT_EQ(messages[0]["content"],
            "You can call functions to answer the user. These are the functions, as JSON, one on each line:\n<tools>\n"
            "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}\n</tools>\n"
            "To call a function, write its name and its arguments in exactly this form, and nothing after it:\n"
            "<tool_call>\n{\"name\": \"FUNCTION\", \"arguments\": {\"PARAMETER\": VALUE}}\n</tool_call>\n"
            "The next message then has the result in <tool_response> tags. If no function helps, answer as usual.");
  EXPECT_EQ(messages[1]["content"], "Hi");
}

TEST(StateToolsTest, ItFollowsTheSystemMessageOfTheRequest) {
  Json messages = Json::array({{{"role", "system"}, {"content", "Be brief."}}, {{"role", "user"}, {"content", "Hi"}}});
  StateTools({}, Tools(), messages);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_THAT(messages[0]["content"].get<std::string>(), StartsWith("Be brief.\n\nYou can call functions"));
}

TEST(StateToolsTest, ItShowsTheSyntaxOfTheFlag) {
  const auto stated = [](ToolFormat format) {
    Json messages = Json::array();
    StateTools(format, Tools(), messages);
    return messages[0]["content"].get<std::string>();
  };
  EXPECT_THAT(stated({.syntax = ToolSyntax::kQwen3Coder}),
              HasSubstr("\n<tool_call>\n<function=FUNCTION>\n<parameter=PARAMETER>\nVALUE\n</parameter>\n</function>\n</tool_call>\n"));
  EXPECT_THAT(stated({.syntax = ToolSyntax::kLlama3}), HasSubstr("\n{\"name\": \"FUNCTION\", \"parameters\": {\"PARAMETER\": VALUE}}\n"));
  EXPECT_THAT(stated({.syntax = ToolSyntax::kMistral}),
              HasSubstr("\n[TOOL_CALLS][{\"name\": \"FUNCTION\", \"arguments\": {\"PARAMETER\": VALUE}}]\n"));
}

TEST(StateToolsTest, EarlierCallsAndResultsBecomeText) {
  Json messages = Json::array({{{"role", "user"}, {"content", "Hi"}},
                               CallWith(Json{{"a", 1}}),
                               {{"role", "tool"}, {"tool_call_id", "c"}, {"content", "21"}},
                               {{"role", "tool"}, {"tool_call_id", "d"}, {"content", "22"}},
                               {{"role", "assistant"}, {"content", "Done"}}});
  StateTools({}, Json::array(), messages);
  EXPECT_EQ(messages, Json::parse(R"([{"role": "user", "content": "Hi"},
      {"role": "assistant", "content": "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":1}}\n</tool_call>"},
      {"role": "user", "content": "<tool_response>\n21\n</tool_response>\n<tool_response>\n22\n</tool_response>"},
      {"role": "assistant", "content": "Done"}])"));
}

TEST(StateToolsTest, ContentStandsInFrontOfACall) {
  Json call = CallWith("no json");
  call["content"] = "I look.";
  Json messages = Json::array({call});
  StateTools({}, Json::array(), messages);
  EXPECT_EQ(messages[0]["content"], "I look.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": no json}\n</tool_call>");
}

}  // namespace
}  // namespace lime
