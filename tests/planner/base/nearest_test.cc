#include "planner/base/nearest.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace lime {
namespace {

const std::vector<std::string> kCommands = {"run", "score", "prepare", "profile", "plan", "push", "up", "down"};

TEST(NearestTest, OneSlipOfAnyKindFindsTheWord) {
  EXPECT_EQ(Nearest("runn", kCommands), "run");
  EXPECT_EQ(Nearest("rnu", kCommands), "run");
  EXPECT_EQ(Nearest("rn", kCommands), "run");
  EXPECT_EQ(Nearest("pusk", kCommands), "push");
  EXPECT_EQ(Nearest("dwon", kCommands), "down");
  EXPECT_EQ(Nearest("--max-token", std::vector<std::string>{"--max-tokens", "--memory"}), "--max-tokens");
}

TEST(NearestTest, AWordThatIsBegunIsNear) {
  EXPECT_EQ(Nearest("prof", kCommands), "profile");
  EXPECT_EQ(Nearest("pre", kCommands), "prepare");
}

TEST(NearestTest, WhatIsFarFromAllIsNearToNone) {
  EXPECT_EQ(Nearest("chat", kCommands), "");
  EXPECT_EQ(Nearest("", kCommands), "");
  EXPECT_EQ(Nearest(std::string(1000, 'r'), kCommands), "");
  EXPECT_EQ(Nearest("run", {}), "");
}

TEST(NearestTest, TheQuestionNamesTheWordWithItsPrefixOrIsLeftOut) {
  EXPECT_EQ(DidYouMean("runn", kCommands, "lime "), "; did you mean lime run?");
  EXPECT_EQ(DidYouMean("chat", kCommands, "lime "), "");
}

}  // namespace
}  // namespace lime
