#include "coordinator/generation/prompts.h"

#include <gmock/gmock.h>

#include "tests/coordinator/generation/made_model.h"

namespace lime {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string TextOf(const ServedModel& model, const ApiRequest& request) {
  const ApiResult<std::string> text = ChatText(model, *request.chat(), "messages", kNow);
  return text.ok() ? *text : text.error().param + ": " + text.error().message;
}

ApiRequest ChatOf(const ServedModel& model, std::string_view messages, std::string_view fields = "") {
  return RequestFor(model, Endpoint::kChat,
                    absl::StrCat("{\"messages\":[", std::string(messages), "]", fields.empty() ? "" : ",", std::string(fields), "}"));
}

constexpr std::string_view kHi = R"({"role":"user","content":"hi"})";

TEST(ChatTextTest, TheTemplateWritesIt) {
  const auto model = MadeModel().Make();
  EXPECT_EQ(TextOf(*model, ChatOf(*model, kHi)), "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTextTest, WithoutATemplateTheContentsAreJoined) {
  const auto model = MadeModel{.source = ""}.Make();
  EXPECT_EQ(TextOf(*model, ChatOf(*model, R"({"role":"system","content":"a"},{"role":"user","content":"b"})")), "a\nb");
}

TEST(ChatTextTest, ATemplateThatKnowsToolsGetsThem) {
  const auto model = MadeModel{.source = MadeTemplate("<tool_call>")}.Make();
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"f"}}])";
  EXPECT_THAT(TextOf(*model, ChatOf(*model, kHi, tools)), HasSubstr("1 tools"));
}

TEST(ChatTextTest, ATemplateWithoutToolsIsToldOfThem) {
  const auto model = MadeModel().Make();
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"f"}}])";
  const std::string text = TextOf(*model, ChatOf(*model, kHi, tools));
  EXPECT_THAT(text, StartsWith("<|im_start|>system\nYou can call functions"));
  EXPECT_THAT(text, testing::Not(HasSubstr("1 tools")));
}

TEST(ChatTextTest, ArgumentsOfEarlierCallsAreObjects) {
  const auto model = MadeModel{.source = MadeTemplate("<tool_call>")}.Make();
  const std::string call =
      R"({"role":"assistant","content":"","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]})";
  EXPECT_THAT(TextOf(*model, ChatOf(*model, std::string(kHi) + "," + call)), HasSubstr(R"({"name": "f", "arguments": {"a": 1}})"));
}

TEST(ChatTextTest, WhatATemplateRaisesIsTheError) {
  const auto model = MadeModel{.source = "{{ raise_exception('no such role') }}"}.Make();
  EXPECT_EQ(TextOf(*model, ChatOf(*model, kHi)), "messages: no such role");
}

TEST(ChatTextTest, TheLastMessageStaysOpen) {
  const auto model = MadeModel().Make();
  const std::string last = std::string(kHi) + R"(,{"role":"assistant","content":" hi there "})";
  EXPECT_EQ(TextOf(*model, ChatOf(*model, last, R"("continue_final_message":true)")),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n hi there ");
  const auto trims = MadeModel{.source = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}"}.Make();
  EXPECT_EQ(TextOf(*trims, ChatOf(*trims, last, R"("continue_final_message":true)")), "[hi][hi there");
  const auto hides = MadeModel{.source = "nothing"}.Make();
  EXPECT_THAT(TextOf(*hides, ChatOf(*hides, last, R"("continue_final_message":true)")), HasSubstr("does not show its text"));
  const std::string empty = std::string(kHi) + R"(,{"role":"assistant","content":" "})";
  EXPECT_THAT(TextOf(*model, ChatOf(*model, empty, R"("continue_final_message":true)")), HasSubstr("has no text"));
}

TEST(TextIdsTest, SpecialTokensAreFoundAndNoBosIsAdded) {
  const auto model = MadeModel().Make();
  EXPECT_EQ(*TextIds(*model, "<|im_start|>a", /*add_special=*/false, "messages", 10), (std::vector<int32_t>{kImStartId, 'a'}));
  EXPECT_EQ(*TextIds(*model, "a", /*add_special=*/true, "prompt", 10), (std::vector<int32_t>{kBos, 'a'}));
}

TEST(TextIdsTest, AnEmptyPromptIsBosOrAnError) {
  const auto model = MadeModel().Make();
  EXPECT_EQ(*TextIds(*model, "", /*add_special=*/true, "prompt", 10), std::vector<int32_t>{kBos});
  EXPECT_EQ(TextIds(*model, "", /*add_special=*/false, "messages", 10).error().param, "messages");
}

TEST(TextIdsTest, ATextThatIsTooLongIsRefusedWithBothNumbers) {
  const auto model = MadeModel{.context = 6}.Make();
  EXPECT_EQ(TextIds(*model, "xyzxy", /*add_special=*/true, "prompt", 6)->size(), 6u);
  const ApiError error = TextIds(*model, "xyzxyz", /*add_special=*/true, "prompt", 6).error();
  EXPECT_EQ(error.code, "context_length_exceeded");
  EXPECT_EQ(error.param, "prompt");
  EXPECT_THAT(error.message, StartsWith("The prompt has 7 tokens and the context 6,"));
}

TEST(TextIdsTest, AMegabyteIsRefusedByItsWords) {
  const auto model = MadeModel{.context = 6}.Make();
  std::string text;
  while (text.size() < 1'000'000) text += "word ";
  const ApiError error = TextIds(*model, text, /*add_special=*/true, "prompt", 5).error();
  EXPECT_EQ(error.code, "context_length_exceeded");
  EXPECT_THAT(error.message, HasSubstr("at least"));
}

}  // namespace
}  // namespace lime
