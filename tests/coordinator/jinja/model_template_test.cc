#include "coordinator/text/jinja/model_template.h"

#include <gmock/gmock.h>

#include "nlohmann/json.hpp"

namespace lime {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

ModelTemplate Find(std::optional<std::string> file, const char* config) {
  auto found = FindModelTemplate(std::move(file), Json::parse(config));
  EXPECT_TRUE(found.ok()) << found.status();
  return found.value_or(ModelTemplate());
}

TEST(ModelTemplateTest, AFileOfItsOwnReplacesTheOneOfTheConfiguration) {
  EXPECT_EQ(Find("a", R"({"chat_template": "b"})").source, "a");
  EXPECT_EQ(Find(std::nullopt, R"({"chat_template": "b"})").source, "b");
  EXPECT_EQ(Find(std::nullopt, R"({})").source, "");
  EXPECT_EQ(Find(std::nullopt, "null").source, "");
}

TEST(ModelTemplateTest, AListHasOneForTools) {
  const ModelTemplate found =
      Find(std::nullopt, R"({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]})");
  EXPECT_EQ(found.For({{"tools", nlohmann::ordered_json::array()}}), "t");
  EXPECT_EQ(found.For({{"tools", nullptr}}), "d");
  EXPECT_EQ(found.For(nlohmann::ordered_json::object()), "d");
  EXPECT_EQ(Find("f", "{}").For({{"tools", nlohmann::ordered_json::array()}}), "f");
}

TEST(ModelTemplateTest, VariablesAreCompletedAndNotReplaced) {
  const ModelTemplate found = Find("f", R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": null})");
  nlohmann::ordered_json variables = {{"bos_token", "mine"}};
  found.Complete(variables);
  EXPECT_EQ(variables.dump(), R"({"bos_token":"mine","eos_token":"</s>","tools":null,"documents":null})");
}

TEST(ModelTemplateTest, AnotherTypeIsRefused) {
  EXPECT_THAT(FindModelTemplate(std::nullopt, {{"chat_template", 1}}).status().message(), HasSubstr("need a string or a list"));
  EXPECT_THAT(FindModelTemplate(std::nullopt, {{"chat_template", {{{"name", "x"}}}}}).status().message(), HasSubstr("named \"default\""));
}

}  // namespace
}  // namespace lime
