#include "coordinator/chat/conversation.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime::cli {
namespace {

using ::testing::ElementsAre;
using Kind = ChatInput::Kind;

// "user: Hi"
std::vector<std::string> LinesSent(const ApiRequest& request) {
  std::vector<std::string> lines;
  for (const ChatMessage& message : request.chat()->messages) {
    const bool system = message.role == ChatMessage::Role::kSystem, user = message.role == ChatMessage::Role::kUser;
    lines.push_back((system ? "system: " : user ? "user: " : "assistant: ") + message.content.value_or("null"));
  }
  return lines;
}

ChatReply Reply(const std::string& content, const std::string& finish = "stop") {
  ChatReply reply;
  reply.content = content;
  reply.finish = finish;
  return reply;
}

TEST(ChatInputTest, WordsWithASlashDirectTheChat) {
  EXPECT_EQ(ReadChatInput("/reset"), (ChatInput{Kind::kReset, ""}));
  EXPECT_EQ(ReadChatInput("/help  "), (ChatInput{Kind::kHelp, ""}));
  EXPECT_EQ(ReadChatInput("/exit\t"), (ChatInput{Kind::kExit, ""}));
  EXPECT_EQ(ReadChatInput("/system  Be brief. "), (ChatInput{Kind::kSystem, "Be brief."}));
  EXPECT_EQ(ReadChatInput("/system\nTwo\nlines"), (ChatInput{Kind::kSystem, "Two\nlines"}));
  EXPECT_EQ(ReadChatInput("/system"), (ChatInput{Kind::kSystem, ""}));
}

TEST(ChatInputTest, UnknownWordsAreNotSentToTheModel) {
  EXPECT_EQ(ReadChatInput("/quit now"), (ChatInput{Kind::kUnknown, "/quit"}));
  EXPECT_EQ(ReadChatInput("/reset now"), (ChatInput{Kind::kUnknown, "/reset"}));
  EXPECT_EQ(ReadChatInput("/"), (ChatInput{Kind::kUnknown, "/"}));
}

TEST(ChatInputTest, AllElseIsForTheModel) {
  EXPECT_EQ(ReadChatInput("  Hello there "), (ChatInput{Kind::kText, "Hello there"}));
  EXPECT_EQ(ReadChatInput(" /etc/passwd?"), (ChatInput{Kind::kText, "/etc/passwd?"}));
  EXPECT_EQ(ReadChatInput(""), ChatInput());
  EXPECT_EQ(ReadChatInput(" \t"), ChatInput());
}

TEST(ConversationTest, ARequestHasAllTurnsAndTheSettings) {
  ApiRequest defaults;
  defaults.sampling.seed = 7;
  defaults.max_tokens = 9;
  Conversation conversation(defaults, "Be brief.");
  EXPECT_THAT(LinesSent(conversation.Ask("Hi")), ElementsAre("system: Be brief.", "user: Hi"));
  conversation.Answer(Reply("Hello."));
  const ApiRequest request = conversation.Ask("Why?");
  EXPECT_THAT(LinesSent(request), ElementsAre("system: Be brief.", "user: Hi", "assistant: Hello.", "user: Why?"));
  EXPECT_EQ(request.sampling.seed, 7u);
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_TRUE(request.stream);
  EXPECT_TRUE(request.include_usage);
}

TEST(ConversationTest, AQuestionWithoutAnAnswerIsTakenBack) {
  Conversation conversation({}, "");
  conversation.Ask("one");
  conversation.TakeBack();
  EXPECT_EQ(conversation.questions(), 0u);
  conversation.Ask("two");
  conversation.Answer(Reply("", ""));  // stopped before its first word
  EXPECT_THAT(LinesSent(conversation.Ask("three")), ElementsAre("user: three"));
}

TEST(ConversationTest, AStoppedAnswerStaysAsFarAsItCame) {
  Conversation conversation({}, "");
  conversation.Ask("one");
  conversation.Answer(Reply("I th", ""));
  EXPECT_THAT(LinesSent(conversation.Ask("go on")), ElementsAre("user: one", "assistant: I th", "user: go on"));
}

TEST(ConversationTest, AnEmptyAnswerIsATurn) {
  Conversation conversation({}, "");
  conversation.Ask("one");
  conversation.Answer(Reply(""));
  EXPECT_THAT(LinesSent(conversation.Ask("two")), ElementsAre("user: one", "assistant: ", "user: two"));
}

TEST(ConversationTest, ResetKeepsTheInstructions) {
  Conversation conversation({}, "A");
  conversation.Ask("one");
  conversation.Answer(Reply("1"));
  conversation.Reset();
  conversation.SetSystem("B");
  EXPECT_THAT(LinesSent(conversation.Ask("two")), ElementsAre("system: B", "user: two"));
  conversation.Answer(Reply("2"));
  conversation.SetSystem("");
  EXPECT_THAT(LinesSent(conversation.Ask("three")), ElementsAre("user: two", "assistant: 2", "user: three"));
}

TEST(ChatSentencesTest, AnAnswerThatWasCutSaysWhy) {
  ChatReply reply = Reply("x", "length");
  reply.has_counts = true;
  reply.report.prompt_tokens = 90;
  reply.report.completion_tokens = 10;
  EXPECT_THAT(CutSentence(reply, 100), ::testing::HasSubstr("the context of 100 tokens is full; /reset"));
  EXPECT_THAT(CutSentence(reply, 101), ::testing::HasSubstr("--max-tokens"));
  EXPECT_THAT(CutSentence(reply, 0), ::testing::HasSubstr("--max-tokens"));
  reply.finish = "stop";
  EXPECT_EQ(CutSentence(reply, 100), "");
}

TEST(ChatSentencesTest, TheTimeOfATokenStandsBesideThePrediction) {
  ChatReply reply = Reply("x");
  EXPECT_EQ(FiguresSentence(reply), "");
  reply.has_counts = true;
  reply.report.completion_tokens = 128;
  EXPECT_EQ(FiguresSentence(reply), "128 tokens");
  reply.report.ms_per_token = 24.512;
  reply.report.predicted_ms_per_token = 23.9;
  reply.report.ttft_ms = 210.4;
  EXPECT_EQ(FiguresSentence(reply), "24.51 ms a token, predicted 23.90; 128 tokens, the first after 210 ms");
}

}  // namespace
}  // namespace lime::cli
