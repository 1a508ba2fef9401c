#include "planner/base/json_text.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/base/foreign_file.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

std::string JsonError(std::string_view text, Bytes max_bytes = kMaxJsonBytes) {
  return std::string(ParseJsonObject(text, "the.json", max_bytes).status().message());
}

std::string Nested(int depth) {
  return "{\"a\":" + std::string(depth - 1, '[') + std::string(depth - 1, ']') + "}";
}

TEST(JsonTextTest, ReadsWhatIsWithinBounds) {
  EXPECT_EQ(ParseJsonObject(R"({"a": [1, "]}\"[["]})", "x")->at("a").size(), 2u);
  EXPECT_TRUE(ParseJsonObject(Nested(kMaxJsonDepth), "x").ok());
  EXPECT_TRUE(ParseJson("[]", "x").ok());
  EXPECT_EQ(JsonError("{}  ", 4), "");
}

TEST(JsonTextTest, WhatIsBeyondThemIsOneSentence) {
  EXPECT_EQ(JsonError("{}   ", 4), "the.json: is larger than 4 bytes");
  EXPECT_EQ(JsonError(Nested(kMaxJsonDepth + 1)), "the.json: nests more than 64 levels deep");
  EXPECT_EQ(JsonError(std::string(1 << 20, '[')), "the.json: nests more than 64 levels deep");
  EXPECT_EQ(JsonError("{\"a\": nonsense\n}"), "the.json: is not valid JSON in UTF-8 at byte 8");
  EXPECT_THAT(JsonError("{\"\xff\": 1}"), HasSubstr("is not valid JSON in UTF-8"));
  EXPECT_THAT(JsonError("{} {}"), HasSubstr("is not valid JSON in UTF-8"));
  EXPECT_EQ(JsonError(std::string("{} \0 x", 6)), "the.json: is not valid JSON in UTF-8 at byte 4");
  EXPECT_EQ(JsonError("{\"a\": 1e999}"), "the.json: holds a number beyond the range of a double");
  EXPECT_EQ(JsonError("[1]"), "the.json: is not a JSON object but array");
}

TEST(JsonTextTest, EmptyTextsAreCalledThat) {
  for (const char* text : {"", " ", "\n\r\n\t"}) EXPECT_EQ(JsonError(text), "the.json: is empty");
  EXPECT_EQ(ParsePythonJson("", "config.json").status().message(), "config.json: is empty; download it again");
}

TEST(JsonTextTest, TextsInOtherEncodingsAreCalledByTheirNames) {
  // `bytes` to a character, the lowest first or last.
  const auto wide = [](std::string_view text, size_t bytes, bool low_first, bool marked) {
    std::string out;
    const auto put = [&](char low, char high) {
      std::string character(bytes, '\0');
      character[0] = low, character[1] = high;
      if (!low_first) std::reverse(character.begin(), character.end());
      out += character;
    };
    if (marked) put('\xFF', '\xFE');
    for (const char c : text) put(c, '\0');
    return out;
  };
  for (const char* text : {"{\"a\": 1}", "[]", "1"}) {
    for (const bool low_first : {true, false}) {
      for (const bool marked : {true, false}) {
        for (const auto& [bytes, name] : {std::pair(2, "UTF-16"), std::pair(4, "UTF-32")}) {
          const std::string written = wide(text, static_cast<size_t>(bytes), low_first, marked);
          EXPECT_EQ(JsonError(written), absl::StrCat("the.json: is ", name, "; save it as UTF-8")) << text << low_first << marked;
          EXPECT_EQ(ParsePythonJson(written, "the.json").status().message(), JsonError(written));
          EXPECT_EQ(WideMark(written), marked ? name : "");
        }
      }
    }
    EXPECT_EQ(WideJson(text), "");
  }
  EXPECT_EQ(WideMark("\xEF\xBB\xBF{}"), "");
}

TEST(JsonTextTest, WordsThatPythonWritesForNumbersAreReadAsStrings) {
  const auto json = ParsePythonJsonObject(
      R"({"a": Infinity, "b": [-Infinity, NaN,1e999, -1E400], "c": "NaN, Infinity", "d\"": -5, "NaN": 1.5e300, "e": 12345678901234567890123})",
      "x");
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(json->at("a"), "Infinity");
  EXPECT_EQ(json->at("b").dump(), R"(["-Infinity","NaN","1e999","-1E400"])");
  EXPECT_EQ(json->at("c"), "NaN, Infinity");
  EXPECT_EQ(json->at("d\""), -5);
  EXPECT_EQ(json->at("NaN"), 1.5e300);
  EXPECT_TRUE(json->at("e").is_number());
  EXPECT_EQ(ParsePythonJson("NaN", "x")->dump(), "\"NaN\"");
}

TEST(JsonTextTest, AnOrderedObjectKeepsTheOrderOfItsKeys) {
  const auto json = ParseOrderedJsonObject(R"({"b": 1, "a": {"d": 2, "c": 3}, "b": 4})", "x");
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(JsonText(*json), R"({"b":4,"a":{"d":2,"c":3}})");
  EXPECT_EQ(ParseOrderedJsonObject("[]", "x").status().message(), "x: is not a JSON object but array");
  EXPECT_FALSE(ParseOrderedJsonObject("{", "x").ok());
}

TEST(JsonTextTest, TheTextAroundPythonsWordsIsHeldToJson) {
  const auto error = [](std::string_view text) { return std::string(ParsePythonJsonObject(text, "the.json").status().message()); };
  EXPECT_EQ(error("{\"a\": Infinity, \"b\": nonsense}"), "the.json: is not valid JSON in UTF-8 at byte 23");
  EXPECT_EQ(error("{\"a\": nonsense, \"b\": NaN}"), "the.json: is not valid JSON in UTF-8 at byte 8");
  EXPECT_THAT(error("{\"a\": NaNs}"), HasSubstr("is not valid JSON"));
  EXPECT_THAT(error("{\"a\": +Infinity}"), HasSubstr("is not valid JSON"));
  EXPECT_THAT(error("{\"a"), HasSubstr("is not valid JSON"));
  EXPECT_THAT(error("{\"a\\"), HasSubstr("is not valid JSON"));
  EXPECT_EQ(error("[NaN]"), "the.json: is not a JSON object but array");
  EXPECT_EQ(JsonError("{\"a\": NaN}"), "the.json: is not valid JSON in UTF-8 at byte 7") << "our own files are strict";
}

}  // namespace
}  // namespace lime
