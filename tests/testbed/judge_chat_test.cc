#include "testbed/train/judge_chat.h"

#include "gtest/gtest.h"

namespace lime::train {
namespace {

using Role = DialogueMessage::Role;
using Check = DialogueMessage::Check;

DialogueMessage Answer(Check check, std::vector<std::string> keys, std::string text = "") {
  DialogueMessage message{Role::kAssistant, std::move(text)};
  message.check = check;
  message.keys = std::move(keys);
  return message;
}

TEST(JudgeChatTest, AStoryHoldsWhatWasAskedFor) {
  const DialogueMessage story = Answer(Check::kStory, {"fox", "red kite"});
  EXPECT_TRUE(IsRight(story, "A fox had a red kite."));
  EXPECT_FALSE(IsRight(story, "A fox had a kite."));
}

TEST(JudgeChatTest, ACallIsRightToTheByte) {
  const DialogueMessage call = Answer(Check::kCall, {}, "<tool_call>\n{}\n</tool_call>");
  EXPECT_TRUE(IsRight(call, "<tool_call>\n{}\n</tool_call>"));
  EXPECT_FALSE(IsRight(call, "<tool_call>\n{ }\n</tool_call>"));
}

TEST(JudgeChatTest, ACallInsteadOfAnAnswerIsWrong) {
  EXPECT_TRUE(IsRight(Answer(Check::kNone, {}), "Hello!"));
  EXPECT_FALSE(IsRight(Answer(Check::kNone, {}), "<tool_call>\n{}\n</tool_call>"));
  EXPECT_FALSE(IsRight(Answer(Check::kRefusal, {"cannot"}), "I cannot. <tool_call>"));
}

TEST(JudgeChatTest, FiguresCountEachKindOfAnswer) {
  const DialogueMessage question = Answer(Check::kAnswer, {"red"}), story = Answer(Check::kStory, {"fox"});
  const auto figures = ChatFigures({{&question, "It was red.", false, true},
                                    {&question, "It was blue.", false, false},
                                    {&question, "It is red.", true, true},
                                    {&story, "A fox.", false, true}});
  EXPECT_EQ(figures["answers_about_a_story_count"], 2);
  EXPECT_EQ(figures["answers_about_a_story_right_share"], 0.5);
  EXPECT_EQ(figures["answers_from_a_tool_right_share"], 1.0);
  EXPECT_EQ(figures["stories_asked_for_count"], 1);
  EXPECT_EQ(figures["tool_calls_count"], 0);
  EXPECT_FALSE(figures.contains("tool_calls_right_share"));
}

}  // namespace
}  // namespace lime::train
