#include "coordinator/text/tools/thinking.h"

#include <gtest/gtest.h>

namespace lime {
namespace {

using Start = ThinkingSplitter::Start;

// "REASONING|CONTENT", the same for every cut into two and for single bytes.
std::string Split(std::string_view text, Start start) {
  const auto split = [&](size_t cut, bool by_byte) {
    ThinkingSplitter splitter(start);
    std::string reasoning, content;
    if (by_byte) {
      for (const char& c : text) splitter.Push(std::string_view(&c, 1), reasoning, content);
    } else {
      splitter.Push(text.substr(0, cut), reasoning, content);
      splitter.Push(text.substr(cut), reasoning, content);
    }
    splitter.Finish(reasoning, content);
    return reasoning + "|" + content;
  };
  std::string whole = split(0, false);
  EXPECT_EQ(split(0, true), whole) << text;
  for (size_t cut = 1; cut < text.size(); ++cut) EXPECT_EQ(split(cut, false), whole) << text << " cut at " << cut;
  return whole;
}

TEST(ThinkingSplitterTest, AnAnswerMayOpenItsReasoning) {
  EXPECT_EQ(Split("<think>\nHm, 2.\n</think>\n\nIt is 2.\n", Start::kOpen), "Hm, 2.|It is 2.\n");
  EXPECT_EQ(Split("\n <think>a</think>b", Start::kOpen), "a|b");
  EXPECT_EQ(Split("<think>\n\n</think>\n\nb", Start::kOpen), "|b");
}

TEST(ThinkingSplitterTest, AnAnswerMayBeginInside) {
  EXPECT_EQ(Split("Hm, 2.\n</think>\n\nIt is 2.", Start::kInside), "Hm, 2.|It is 2.");
  EXPECT_EQ(Split("\n<think>\nHm\n</think>b", Start::kInside), "Hm|b");
  EXPECT_EQ(Split("\n</think>\n\nb", Start::kInside), "|b");
  EXPECT_EQ(Split("</think>b", Start::kInside), "|b");
}

TEST(ThinkingSplitterTest, OnlyLineFeedsDirectlyAtTheTagsAreDropped) {
  EXPECT_EQ(Split("<think>\n\n a\n\nb \n\n</think>\n\n\n  c\n\n", Start::kOpen), " a\n\nb |  c\n\n");
}

TEST(ThinkingSplitterTest, AnAnswerWithoutReasoningIsContentAsItCame) {
  for (const std::string text : {"It is 2.", "\n\n b", "a</think>b", "a <think>b</think>", "<thin", "< think>", "\n<", ""}) {
    EXPECT_EQ(Split(text, Start::kOpen), "|" + text);
  }
}

TEST(ThinkingSplitterTest, TagsBehindTheReasoningAreContent) {
  EXPECT_EQ(Split("<think>a</think>b <think>c</think>\n", Start::kOpen), "a|b <think>c</think>\n");
}

TEST(ThinkingSplitterTest, TextThatLooksLikeTheEndIsReasoning) {
  EXPECT_EQ(Split("a < b </thin </</think\n</ think></think>c", Start::kInside), "a < b </thin </</think\n</ think>|c");
  EXPECT_EQ(Split("a <think> b</think>c", Start::kInside), "a <think> b|c");
}

TEST(ThinkingSplitterTest, ReasoningThatBreaksOffIsReasoning) {
  EXPECT_EQ(Split("<think>\na\n\n", Start::kOpen), "a\n\n|");
  EXPECT_EQ(Split("a\n</thi", Start::kInside), "a\n</thi|");
  EXPECT_EQ(Split("\n<thi", Start::kInside), "\n<thi|");
}

TEST(ThinkingSplitterTest, OffLeavesItInTheContent) {
  EXPECT_EQ(Split("<think>\na\n</think>\n\nb", Start::kOff), "|<think>\na\n</think>\n\nb");
}

TEST(ThinkingSplitterTest, TextComesOutAsSoonAsItIsCertain) {
  ThinkingSplitter splitter(Start::kOpen);
  std::string reasoning, content;
  splitter.Push("<think>\nab", reasoning, content);
  EXPECT_EQ(reasoning, "ab");
  splitter.Push("\n</", reasoning, content);
  EXPECT_EQ(reasoning, "ab");
  splitter.Push("b", reasoning, content);
  EXPECT_EQ(reasoning, "ab\n</b");
  EXPECT_FALSE(splitter.is_over());
  splitter.Push("</think>", reasoning, content);
  EXPECT_TRUE(splitter.is_over());
  splitter.Push("\n\nc", reasoning, content);
  EXPECT_EQ(content, "c");
}

TEST(ThinkingTest, APromptOpensTheReasoning) {
  EXPECT_TRUE(OpensThinking("<|im_start|>assistant\n<think>\n"));
  EXPECT_TRUE(OpensThinking("<think>"));
  EXPECT_FALSE(OpensThinking("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  EXPECT_FALSE(OpensThinking("<think> is a tag"));
  EXPECT_FALSE(OpensThinking("\n "));
}

TEST(ThinkingTest, TheFlagIsAutoOrOff) {
  EXPECT_TRUE(*ParseReasoning("auto"));
  EXPECT_FALSE(*ParseReasoning("off"));
  EXPECT_EQ(ParseReasoning("on").status().message(), "--reasoning is \"on\"; it can be auto or off");
}

}  // namespace
}  // namespace lime
