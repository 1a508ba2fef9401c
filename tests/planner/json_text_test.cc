#include "planner/base/json_text.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(std::string_view text, Bytes max_bytes = kMaxJsonBytes) {
  return std::string(ParseJsonObject(text, "the.json", max_bytes).status().message());
}

std::string Nested(int depth) {
  return "{\"a\":" + std::string(depth - 1, '[') + std::string(depth - 1, ']') + "}";
}

TEST(JsonTextTest, ReadsWhatIsWithinBounds) {
  EXPECT_EQ(ParseJsonObject(R"({"a": [1, "]}\"[["]})", "x")->at("a").size(), 2u);
  EXPECT_TRUE(ParseJsonObject(Nested(kMaxJsonDepth), "x").ok());
  EXPECT_TRUE(ParseJson("[]", "x").ok());
  EXPECT_EQ(ErrorOf("{}  ", 4), "");
}

TEST(JsonTextTest, WhatIsBeyondThemIsOneSentence) {
  EXPECT_EQ(ErrorOf("{}   ", 4), "the.json: is larger than 4 bytes");
  EXPECT_EQ(ErrorOf(Nested(kMaxJsonDepth + 1)), "the.json: nests more than 64 levels deep");
  EXPECT_EQ(ErrorOf(std::string(1 << 20, '[')), "the.json: nests more than 64 levels deep");
  EXPECT_EQ(ErrorOf("{\"a\": nonsense\n}"), "the.json: is not valid JSON in UTF-8 at byte 8");
  EXPECT_THAT(ErrorOf("{\"\xff\": 1}"), HasSubstr("is not valid JSON in UTF-8"));
  EXPECT_THAT(ErrorOf("{} {}"), HasSubstr("is not valid JSON in UTF-8"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("is not valid JSON in UTF-8"));
  EXPECT_EQ(ErrorOf("{\"a\": 1e999}"), "the.json: holds a number beyond the range of a double");
  EXPECT_EQ(ErrorOf("[1]"), "the.json: is not a JSON object but array");
}

}  // namespace
}  // namespace lime
