// Templates of real models, and small ones, against texts of Python's jinja2.
#include <gmock/gmock.h>

#include <fstream>
#include <iterator>

#include "tests/coordinator/jinja/render.h"
#include "tests/skips.h"

namespace lime {
namespace {

using OrderedJson = nlohmann::ordered_json;

const std::filesystem::path& Folder() {
  static const std::filesystem::path folder = SharedDir() / "chat-templates";
  return folder;
}

std::string ReadText(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The variables of a case in `file`, which names the special tokens.
OrderedJson VariablesOf(const OrderedJson& one, const OrderedJson& file) {
  OrderedJson variables = one.at("kwargs");
  for (const char* name : {"messages", "tools", "add_generation_prompt"}) variables[name] = one.at(name);
  for (const char* name : {"bos_token", "eos_token"}) {
    if (!file.at(name).is_null()) variables[name] = file.at(name);
  }
  variables["documents"] = nullptr;
  return variables;
}

void ExpectCase(const std::string& source, const OrderedJson& one, const OrderedJson& variables, absl::CivilSecond now = kNow) {
  const std::string text = RenderJson(source, variables, now);
  if (one.contains("error")) {
    EXPECT_THAT(text, testing::StartsWith("error: ")) << one.at("id");
  } else {
    EXPECT_EQ(text, one.at("expected").get<std::string>()) << one.at("id");
  }
}

TEST(TemplateVectorsTest, ModelsTemplatesGiveTheTextsOfJinja) {
  LIME_SKIP_WITHOUT_SHARED(Folder());
  int cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(Folder())) {
    if (entry.path().extension() != ".json") continue;
    const OrderedJson file = OrderedJson::parse(ReadText(entry.path()));
    const std::string source = ReadText(Folder() / file.at("template").get<std::string>());
    absl::CivilSecond now;
    ASSERT_TRUE(absl::ParseCivilTime(file.at("strftime_now").get<std::string>(), &now));
    for (const OrderedJson& one : file.at("cases")) ExpectCase(source, one, VariablesOf(one, file), now);
    cases += static_cast<int>(file.at("cases").size());
  }
  EXPECT_GE(cases, 140);
}

TEST(TemplateVectorsTest, TemplatesOfManyModelsGiveTheTextsOfJinja) {
  LIME_SKIP_WITHOUT_SHARED(Folder());
  std::ifstream file(Folder() / "upstream-chat.jsonl");
  int cases = 0;
  for (std::string line; std::getline(file, line); ++cases) {
    const OrderedJson one = OrderedJson::parse(line);
    ExpectCase(one.at("template"), one, VariablesOf(one, one));
  }
  EXPECT_GE(cases, 17);
}

TEST(TemplateVectorsTest, SmallTemplatesGiveTheTextsOfJinja) {
  LIME_SKIP_WITHOUT_SHARED(Folder());
  std::ifstream file(Folder() / "jinja-unit.jsonl");
  int cases = 0;
  for (std::string line; std::getline(file, line); ++cases) {
    const OrderedJson one = OrderedJson::parse(line);
    ExpectCase(one.at("template"), one, one.at("vars"));
  }
  EXPECT_GE(cases, 138);
}

}  // namespace
}  // namespace lime
