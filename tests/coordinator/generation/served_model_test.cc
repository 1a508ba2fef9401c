#include "coordinator/generation/served_model.h"

#include <gmock/gmock.h>

#include "tests/coordinator/generation/made_model.h"

namespace lime {
namespace {

using testing::HasSubstr;

TEST(ServedModelTest, ItHasItsNames) {
  const auto model = MadeModel().Make();
  EXPECT_EQ(*model->FindName(""), "tiny");
  EXPECT_EQ(*model->FindName("small"), "small");
  EXPECT_EQ(model->FindName("other"), nullptr);
  const std::vector<ListedModel> listed = model->listed();
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[1].id, "small");
  EXPECT_EQ(listed[1].context, 1000);
  EXPECT_EQ(model->parse_options().models, (std::vector<std::string>{"tiny", "small"}));
}

TEST(ServedModelTest, TheFingerprintIsOfModelAndNumericsNotOfTheirOrder) {
  const auto fingerprint = [](std::vector<std::string> numerics) {
    const auto model = MadeModel().Make();
    model->SetPlan(8, numerics);
    return model->fingerprint();
  };
  EXPECT_EQ(fingerprint({"a", "b", "a"}), fingerprint({"b", "a"}));
  EXPECT_NE(fingerprint({"a"}), fingerprint({"b"}));
  EXPECT_EQ(fingerprint({"a"}).size(), std::string("fp_0123456789abcdef").size());
  EXPECT_TRUE(fingerprint({"a"}).starts_with("fp_"));
}

TEST(ServedModelTest, TheTemplateSaysTheSyntaxAndTheFlagReplacesIt) {
  EXPECT_EQ(MadeModel{.source = MadeTemplate("[TOOL_CALLS]")}.Make()->tool_format().syntax, ToolSyntax::kMistral);
  EXPECT_EQ((MadeModel{.source = MadeTemplate("[TOOL_CALLS]"), .syntax = ToolSyntax::kHermes}.Make()->tool_format().syntax),
            ToolSyntax::kHermes);
  EXPECT_TRUE(MadeModel{.source = ""}.Make()->is_plain());
  EXPECT_TRUE(MadeModel{.source = ""}.Make()->tool_format().stated);
}

TEST(ServedModelTest, ATemplateForToolsIsTakenForRequestsWithTools) {
  ServedModel::Options options = {.tokenizer = MadeTokenizer(), .vocab_size = kMadeVocab};
  options.chat_template = {.source = "plain", .with_tools = "tools [TOOL_CALLS]", .tokens = {}};
  const auto model = ServedModel::Create(std::move(options)).value();
  EXPECT_EQ(model->tool_format().syntax, ToolSyntax::kMistral);
  EXPECT_EQ(model->Render(Json::object(), kNow).value(), "plain");
  EXPECT_EQ(model->Render({{"tools", Json::array({1})}}, kNow).value(), "tools [TOOL_CALLS]");
}

TEST(ServedModelTest, ThinkingIsKnownFromTheVocabularyUnlessItIsOff) {
  EXPECT_FALSE(MadeModel().Make()->is_harmony());
  const auto harmony = MadeModel{.source = MadeTemplate("<|channel|> <|message|>")}.Make();
  EXPECT_TRUE(harmony->is_harmony());
  EXPECT_TRUE(harmony->thinks());
  EXPECT_TRUE(harmony->IsEnd(kHarmonyCallId));
  EXPECT_EQ(harmony->vocabulary()->Use(kHarmonyEndId), json_schema::TokenUse::kText);
  EXPECT_EQ(harmony->vocabulary()->Use(kHarmonyCallId), json_schema::TokenUse::kEnd);
  EXPECT_FALSE(MadeModel().Make()->IsEnd(kHarmonyCallId));
  EXPECT_TRUE(MadeModel().Make()->thinks());  // </think> is a token
  EXPECT_FALSE(MadeModel{.divides_thinking = false}.Make()->thinks());
}

TEST(ServedModelTest, TokensHaveTheirUsesInMasks) {
  const auto model = MadeModel().Make();
  const json_schema::Vocabulary& vocabulary = *model->vocabulary();
  ASSERT_EQ(vocabulary.size(), static_cast<size_t>(kMadeVocab));
  EXPECT_EQ(vocabulary.Bytes('a'), "a");
  EXPECT_EQ(vocabulary.Bytes(kThinkEndId), "</think>");
  EXPECT_EQ(vocabulary.Bytes(kToolCallId), "<tool_call>");
  EXPECT_EQ(vocabulary.Bytes(kMadeVocab - 1), "");
  EXPECT_EQ(vocabulary.end_ids(), (std::vector<int32_t>{kEos, kImEndId}));
  EXPECT_THAT(vocabulary.special_ids(), testing::Contains(kToolCallId));
  EXPECT_THAT(vocabulary.special_ids(), testing::Not(testing::Contains(kThinkEndId)));
  EXPECT_TRUE(vocabulary.single_bytes().all());
}

TEST(ServedModelTest, WrongFilesAreErrors) {
  const auto create = [](ServedModel::Options options) {
    options.tokenizer = MadeTokenizer();
    options.vocab_size = kMadeVocab;
    return std::string(ServedModel::Create(std::move(options)).status().message());
  };
  EXPECT_THAT(create({.end_tokens = {300}}), HasSubstr("300"));
  EXPECT_THAT(create({.chat_template = {.source = "{% if %}", .with_tools = "", .tokens = {}}}), HasSubstr("line 1"));
  EXPECT_EQ(create({}), "");
}

TEST(ServedModelTest, SchemasOfToolsAreCheckedForTheSyntax) {
  const std::string body =
      R"({"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"f","parameters":PARAMETERS}}]})";
  const auto refused = [&](ToolSyntax syntax, std::string_view parameters) {
    const auto model = MadeModel{.syntax = syntax}.Make();
    std::string text = body;
    text.replace(text.find("PARAMETERS"), 10, parameters);
    const ApiResult<ApiRequest> request = ParseRequest(Endpoint::kChat, text, model->parse_options());
    return request.ok() ? "" : request.error().code + " " + request.error().param;
  };
  const std::string good = R"({"type":"object","properties":{"a":{"type":"string"}},"required":["a"]})";
  EXPECT_EQ(refused(ToolSyntax::kHermes, good), "");
  EXPECT_EQ(refused(ToolSyntax::kQwen3Coder, good), "");
  const std::string bad = R"({"type":"object","properties":{"a":{"not":{}}}})";
  EXPECT_EQ(refused(ToolSyntax::kHermes, bad), "invalid_json_schema tools[0].function.parameters");
  // As JSON it can be written, as parameters it cannot.
  const std::string unnamed = R"({"type":"object","properties":{},"required":["a"],"additionalProperties":{"type":"string"}})";
  EXPECT_EQ(refused(ToolSyntax::kHermes, unnamed), "");
  EXPECT_EQ(refused(ToolSyntax::kQwen3Coder, unnamed), "invalid_json_schema tools[0].function.parameters");
}

TEST(ServedModelTest, SchemasOfAnswersAreChecked) {
  const auto model = MadeModel().Make();
  const std::string body =
      R"({"messages":[{"role":"user","content":"hi"}],"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}}}})";
  EXPECT_EQ(Refused(Endpoint::kChat, body, model->parse_options()).code, "invalid_json_schema");
}

}  // namespace
}  // namespace lime
