#include "testbed/train/dialogue.h"

#include <set>

#include "coordinator/text/jinja/chat_template.h"
#include "coordinator/text/tools/tool_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testbed/train/corpus.h"

namespace lime::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;
using Role = DialogueMessage::Role;
using Check = DialogueMessage::Check;

constexpr char kChatGrammarFile[] = LIME_SOURCE_DIR "/testbed/train/chat.grammar";
const absl::CivilSecond kNow(2026, 11, 27);

Dialogue Parse(absl::string_view script) {
  auto dialogue = ParseDialogue(script);
  EXPECT_TRUE(dialogue.ok()) << dialogue.status();
  return *std::move(dialogue);
}

Corpus LoadChat(uint64_t seed) {
  auto corpus = Corpus::Load(kChatGrammarFile, seed);
  EXPECT_TRUE(corpus.ok()) << corpus.status();
  return *std::move(corpus);
}

std::string Rendered(Json variables, bool opens_answer = false) {
  const auto parsed = ChatTemplate::Parse({kChatTemplate.data(), kChatTemplate.size()});
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  variables["bos_token"] = "<s>";
  variables["add_generation_prompt"] = opens_answer;
  const auto text = parsed->Render(variables, kNow);
  EXPECT_TRUE(text.ok()) << text.status();
  return *text;
}

const absl::string_view kScript =
    ": Be kind.\n$ weather town\n$ clock\n> Hello!\n< Hello, Tom!\n= Tom,hello\n> How is it in Oslo?\n* weather town=Oslo\n"
    "@ temperature=-3; sky=light snow\n< It is -3 degrees.\n& -3";

TEST(DialogueTest, AScriptBecomesToolsMessagesAndChecks) {
  const Dialogue dialogue = Parse(kScript);
  ASSERT_EQ(dialogue.tools.size(), 2u);
  EXPECT_EQ(dialogue.tools[0].name, "weather");
  EXPECT_THAT(dialogue.tools[0].parameters, ElementsAre("town"));
  EXPECT_TRUE(dialogue.tools[1].parameters.empty());
  ASSERT_EQ(dialogue.messages.size(), 7u);
  EXPECT_EQ(dialogue.messages[0].role, Role::kSystem);
  EXPECT_EQ(dialogue.messages[2].check, Check::kStory);
  EXPECT_THAT(dialogue.messages[2].keys, ElementsAre("Tom", "hello"));
  EXPECT_EQ(dialogue.messages[4].check, Check::kCall);
  EXPECT_EQ(dialogue.messages[4].text, "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"town\": \"Oslo\"}}\n</tool_call>");
  EXPECT_EQ(dialogue.messages[5].text, "{\"temperature\": -3, \"sky\": \"light snow\"}");
  EXPECT_EQ(dialogue.messages[6].check, Check::kAnswer);
}

TEST(DialogueTest, BadScriptsGetOneSentence) {
  EXPECT_THAT(std::string(ParseDialogue("hello").status().message()), HasSubstr("begins with none of"));
  EXPECT_THAT(std::string(ParseDialogue("> Hello!\n= Tom").status().message()), HasSubstr("behind no answer"));
}

TEST(DialogueTest, APromptEndsWhereTheAnswerBegins) {
  EXPECT_EQ(DialoguePrompt(Parse("> Hi!\n< Hello!\n> Bye!\n< Goodbye!"), 1), "<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n");
}

TEST(DialogueTest, KeysAreWholeWordsInAnyCase) {
  EXPECT_TRUE(HoldsAll("Foxes like a Red Kite.", {"red kite", "foxes"}));
  EXPECT_FALSE(HoldsAll("Foxes like a red kite.", {"fox"}));
  EXPECT_TRUE(HoldsAll("Nothing was asked.", {}));
}

TEST(DialogueTest, TheTemplateRendersWhatTheModelReads) {
  const Corpus corpus = LoadChat(3);
  for (uint64_t i = 0; i < 300; ++i) {
    const Dialogue dialogue = corpus.DialogueAt(i);
    EXPECT_EQ(Rendered(DialogueRequest(dialogue)), "<s>" + DialogueText(dialogue));
  }
}

TEST(DialogueTest, TheTemplateOpensAnAnswer) {
  Dialogue dialogue = Parse(kScript);
  const std::string prompt = DialoguePrompt(dialogue, 6);
  dialogue.messages.pop_back();
  EXPECT_EQ(Rendered(DialogueRequest(dialogue), /*opens_answer=*/true), "<s>" + prompt);
}

TEST(DialogueTest, TheTemplateTakesWhatServersPassOn) {
  Json request = Json::parse(R"({"messages": [
      {"role": "user", "content": "Two towns?"},
      {"role": "assistant", "content": "Wait.", "tool_calls": [
          {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{\"town\": 1"}},
          {"id": "2", "type": "function", "function": {"name": "clock", "arguments": {}}}]},
      {"role": "system", "content": "Be short."}],
      "tools": [{"type": "function", "function": {"name": "clock"}}]})");
  EXPECT_EQ(Rendered(request),
            "<s><|im_start|>system\nTools:\nclock()<|im_end|>\n<|im_start|>user\nTwo towns?<|im_end|>\n<|im_start|>assistant\nWait.\n"
            "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"town\": 1}\n</tool_call>\n"
            "<tool_call>\n{\"name\": \"clock\", \"arguments\": {}}\n</tool_call><|im_end|>\n<|im_start|>system\nBe short.<|im_end|>\n");
}

TEST(DialogueTest, CallsHaveTheSyntaxHermes) {
  const ToolFormat format = FindToolFormat({kChatTemplate.data(), kChatTemplate.size()}, std::nullopt);
  EXPECT_EQ(format.syntax, ToolSyntax::kHermes);
  EXPECT_FALSE(format.stated);
}

TEST(ChatGrammarTest, DialoguesAreManyCleanAndRight) {
  const Corpus corpus = LoadChat(7);
  std::set<std::string> different;
  for (uint64_t i = 0; i < 3000; ++i) {
    const Dialogue dialogue = corpus.DialogueAt(i);
    different.insert(DialogueText(dialogue));
    for (const DialogueMessage& message : dialogue.messages) {
      EXPECT_FALSE(message.text.empty());
      if (message.role == Role::kUser || (message.role == Role::kAssistant && message.call.is_null())) {
        EXPECT_EQ(message.text.find_first_of("{}[]#|~_;=`<>\n"), std::string::npos) << message.text;
      }
      EXPECT_EQ(message.text.find("  "), std::string::npos) << message.text;
      EXPECT_TRUE(HoldsAll(message.text, message.keys)) << message.text << " holds " << ::testing::PrintToString(message.keys);
    }
  }
  EXPECT_GT(different.size(), 2900u);
}

TEST(ChatGrammarTest, OnlyDeclaredToolsAreCalled) {
  const Corpus corpus = LoadChat(8);
  int calls = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    const Dialogue dialogue = corpus.DialogueAt(i);
    std::set<std::string> names;
    for (const DialogueTool& tool : dialogue.tools) names.insert(tool.name);
    for (const DialogueMessage& message : dialogue.messages) {
      if (message.call.is_null()) continue;
      ++calls;
      EXPECT_EQ(names.count(message.call["name"]), 1u) << message.text;
    }
  }
  EXPECT_GT(calls, 200);
}

TEST(ChatGrammarTest, PracticeMakesDialoguesToo) {
  const Corpus corpus = LoadChat(9);
  for (uint64_t i = 0; i < 500; ++i) EXPECT_THAT(corpus.Document(i, kDialoguePracticeRoot), HasSubstr("<|im_start|>assistant\n"));
}

}  // namespace
}  // namespace lime::train
