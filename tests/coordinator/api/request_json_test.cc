#include "coordinator/api/requests/request_json.h"

#include "tests/coordinator/api/parse.h"

namespace lime {
namespace {

std::string Problem(std::string_view body) {
  const ApiResult<Json> json = ParseBody(body);
  if (json.ok()) return "ok";
  EXPECT_EQ(json.error().status, 400);
  EXPECT_TRUE(IsSentence(json.error().message)) << json.error().message;
  return absl::StrCat(json.error().code, ": ", json.error().message);
}

std::string Repeat(std::string_view text, int times) {
  std::string repeated;
  for (int i = 0; i < times; ++i) repeated += text;
  return repeated;
}

TEST(RequestJsonTest, WhatIsNoJsonObjectIsRefused) {
  EXPECT_EQ(Problem(""), "invalid_json: The body is empty; send a JSON object.");
  EXPECT_EQ(Problem(" \r\n"), "invalid_json: The body is empty; send a JSON object.");
  EXPECT_EQ(Problem("[1]"), "invalid_type: The body has to be a JSON object, but is an array.");
  EXPECT_EQ(Problem("7"), "invalid_type: The body has to be a JSON object, but is an integer.");
  EXPECT_EQ(Problem(std::string("{}\0{", 4)), "invalid_json: The body is not valid JSON in UTF-8 at byte 3; send one JSON object.");
  EXPECT_EQ(Problem("{\"a\":}"), "invalid_json: The body is not valid JSON in UTF-8 at byte 6; send one JSON object.");
  for (const std::string_view body :
       {"{", "{\"a\":1}}", "{\"a\":1,}", "{'a':1}", "{\"a\":01}", "{\"a\":NaN}", "{a:1}", "{}{}", "{\"a\":1}x"}) {
    EXPECT_EQ(Problem(body).substr(0, 13), "invalid_json:") << body;
  }
}

TEST(RequestJsonTest, TextIsUtf8WithoutSurrogateHalves) {
  EXPECT_EQ(Problem(R"({"a":"\ud83d\ude00"})"), "ok");
  EXPECT_EQ(Problem(R"({"a":"\u0000"})"), "ok");
  for (const std::string_view body : {"{\"a\":\"\\ud83d\"}", "{\"a\":\"\\ude00\"}", "{\"a\":\"\\ud83dx\"}", "{\"a\":\"\xed\xa0\xbd\"}",
                                      "{\"a\":\"\xff\"}", "{\"\xc0\x80\":1}", "{\"a\":\"\xe2\x82\"}", "{\"a\":\"\n\"}"}) {
    EXPECT_EQ(Problem(body).substr(0, 13), "invalid_json:") << body;
  }
}

TEST(RequestJsonTest, DepthIsBounded) {
  EXPECT_EQ(Problem(absl::StrCat("{\"a\":", Repeat("[", 63), Repeat("]", 63), "}")), "ok");
  EXPECT_EQ(Problem(absl::StrCat("{\"a\":", Repeat("[", 64), Repeat("]", 64), "}")),
            "invalid_json: The body nests more than 64 levels deep; send it flatter.");
  EXPECT_EQ(Problem(Repeat("{\"a\":", 1'000'000)), "invalid_json: The body nests more than 64 levels deep; send it flatter.");
}

TEST(RequestJsonTest, TheLastOfEqualKeysCountsInThePlaceOfTheFirst) {
  EXPECT_EQ(JsonText(*ParseBody(R"({"a":1,"b":2,"a":{"c":3}})")), R"({"a":{"c":3},"b":2})");
  EXPECT_EQ(JsonText(*ParseBody(R"({"a":[1,2],"a":[3]})")), R"({"a":[3]})");
  std::string body = "{", expected = "{";
  for (int i = 0; i < 100; ++i) absl::StrAppend(&body, "\"k", i, "\":1,");
  for (int i = 0; i < 100; ++i) absl::StrAppend(&body, "\"k", i, "\":", i, i < 99 ? "," : "}");
  for (int i = 0; i < 100; ++i) absl::StrAppend(&expected, "\"k", i, "\":", i, i < 99 ? "," : "}");
  EXPECT_EQ(JsonText(*ParseBody(body)), expected);
}

TEST(RequestJsonTest, KeysAndValuesAreBounded) {
  const auto keys = [](int count) {
    std::string body = "{";
    for (int i = 0; i < count; ++i) absl::StrAppend(&body, i == 0 ? "" : ",", "\"", i % 3000, "\":0");
    return body + "}";
  };
  EXPECT_EQ(Problem(keys(4096)), "ok");
  EXPECT_EQ(Problem(keys(4097)), "invalid_json: The body has an object of more than 4096 keys; send fewer.");
  EXPECT_EQ(Problem(absl::StrCat("{\"a\":[0", Repeat(",0", 1'000'000), "]}")),
            "invalid_json: The body has more than 1000000 values; send fewer.");
}

TEST(RequestJsonTest, NumbersKeepTheirKind) {
  const Json json = *ParseBody(R"({"a":18446744073709551615,"b":-9223372036854775808,"c":1.0,"d":1e2,"e":-0})");
  EXPECT_TRUE(json["a"].is_number_unsigned());
  EXPECT_TRUE(json["b"].is_number_integer());
  EXPECT_TRUE(json["c"].is_number_float());
  EXPECT_TRUE(json["d"].is_number_float());
  EXPECT_EQ(Problem(R"({"a":1e999})"), "invalid_json: The body holds a number beyond the range of a double; send a smaller one.");
}

}  // namespace
}  // namespace lime
