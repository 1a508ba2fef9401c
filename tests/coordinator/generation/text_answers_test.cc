#include "coordinator/generation/text_answers.h"

#include <gtest/gtest.h>

#include "tests/coordinator/generation/made_model.h"

namespace lime {
namespace {

std::string BodyOf(const ApiResult<std::string>& answer) {
  return answer.ok() ? *answer : answer.error().code + " " + answer.error().param;
}

std::string Tokenized(std::string_view body) {
  const auto model = MadeModel().Make();
  return BodyOf(TokenizeAnswer(*model, RequestFor(*model, Endpoint::kTokenize, body), kNow));
}

TEST(TextAnswersTest, TextsAndMessagesBecomeTokens) {
  EXPECT_EQ(Tokenized(R"({"content":"xy"})"), R"({"tokens":[120,121],"count":2,"max_model_len":1000})");
  EXPECT_EQ(Tokenized(R"({"content":"x","add_special":true})"), R"({"tokens":[256,120],"count":2,"max_model_len":1000})");
  EXPECT_EQ(Tokenized(R"({"prompt":"x"})"), R"({"tokens":[256,120],"count":2,"max_model_len":1000})");
  EXPECT_EQ(Tokenized(R"({"content":""})"), R"({"tokens":[],"count":0,"max_model_len":1000})");
  EXPECT_EQ(Tokenized(R"({"messages":[{"role":"user","content":"x"}],"add_generation_prompt":false})"),
            R"({"tokens":[266,117,115,101,114,10,120,267,10],"count":9,"max_model_len":1000})");
}

TEST(TextAnswersTest, TokensHaveTheirPieces) {
  EXPECT_EQ(Tokenized(R"({"prompt":"é","with_pieces":true})"),
            R"({"tokens":[{"id":256,"piece":"<s>"},{"id":195,"piece":[195]},{"id":169,"piece":[169]}],"count":3,"max_model_len":1000})");
}

TEST(TextAnswersTest, ATextOfAnyLengthHasTokens) {
  const auto model = MadeModel{.context = 2}.Make();
  const std::string answer = BodyOf(TokenizeAnswer(*model, RequestFor(*model, Endpoint::kTokenize, R"({"content":"wxyz"})"), kNow));
  EXPECT_NE(answer.find("\"count\":4"), std::string::npos) << answer;
}

TEST(TextAnswersTest, IdsBecomeTextWithSpecialTokens) {
  const auto model = MadeModel().Make();
  EXPECT_EQ(BodyOf(DetokenizeAnswer(*model, RequestFor(*model, Endpoint::kDetokenize, R"({"tokens":[256,120]})"))),
            R"({"content":"<s>x","prompt":"<s>x"})");
}

TEST(TextAnswersTest, TheTemplateIsApplied) {
  const auto model = MadeModel().Make();
  const auto apply = [&](const ServedModel& of) {
    return BodyOf(ApplyTemplateAnswer(
        of, RequestFor(of, Endpoint::kApplyTemplate, R"({"messages":[{"role":"user","content":"x"}],"add_generation_prompt":false})"),
        kNow));
  };
  EXPECT_EQ(apply(*model), R"({"prompt":"<|im_start|>user\nx<|im_end|>\n"})");
  EXPECT_EQ(apply(*MadeModel{.source = "{{ raise_exception('no') }}"}.Make()), "invalid_value messages");
}

TEST(TextAnswersTest, ModelsAreListedByAllNames) {
  const auto model = MadeModel().Make();
  EXPECT_EQ(ModelsAnswer(*model), R"({"object":"list","data":[)"
                                  R"({"id":"tiny","object":"model","created":1721986200,"owned_by":"lime","max_model_len":1000},)"
                                  R"({"id":"small","object":"model","created":1721986200,"owned_by":"lime","max_model_len":1000}]})");
  EXPECT_EQ(BodyOf(ModelAnswer(*model, "small")),
            R"({"id":"small","object":"model","created":1721986200,"owned_by":"lime","max_model_len":1000})");
  EXPECT_EQ(BodyOf(ModelAnswer(*model, "other")), "model_not_found model");
}

}  // namespace
}  // namespace lime
