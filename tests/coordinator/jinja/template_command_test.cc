#include "coordinator/text/jinja/template_command.h"

#include <gmock/gmock.h>

#include <sstream>

namespace lime {
namespace {

using testing::HasSubstr;

// The output, or the error's sentence.
std::string Output(const std::string& input, const TemplateOptions& options, const ModelTemplate& model = {}) {
  std::istringstream in(input);
  std::ostringstream out;
  const absl::Status status = RunTemplate(model, absl::CivilSecond(2024, 7, 26), in, out, options);
  return status.ok() ? out.str() : std::string(status.message());
}

TEST(TemplateCommandTest, OneObjectBecomesItsText) {
  EXPECT_EQ(Output(R"({"template": "{{ x }}\n\n", "vars": {"x": "é"}})", {}), "é\n");
  EXPECT_EQ(Output(R"({"template": "{{ 1 }}"})", {.json = true}), "{\"text\":\"1\"}\n");
  EXPECT_THAT(Output(R"({"template": "{{ x.y }}"})", {}), HasSubstr("\"x\" is undefined"));
  EXPECT_THAT(Output("[]", {}), HasSubstr("stdin: is not a JSON object"));
  EXPECT_THAT(Output(R"({"template": "a", "messages": []})", {}), HasSubstr("\"messages\" stands outside \"vars\""));
}

TEST(TemplateCommandTest, EveryLineIsAnswered) {
  EXPECT_EQ(Output("{\"template\": \"a\"}\n\n{\"template\": \"{{ raise_exception('no') }}\"}\n{\"template\": \"b\"}\n", {.jsonl = true}),
            "{\"text\":\"a\"}\n{\"error\":\"no\"}\n{\"text\":\"b\"}\n");
  for (const char* bad :
       {"{", "1", R"({"template": 1})", R"({"template": "a", "vars": []})", R"({"template": "a", "now": "noon"})", "{}"}) {
    EXPECT_THAT(Output(bad, {.jsonl = true}), testing::StartsWith("{\"error\":")) << bad;
  }
}

TEST(TemplateCommandTest, KeysKeepTheirOrder) {
  EXPECT_EQ(Output(R"({"vars": {"x": {"b": 1, "a": {"d": 2, "c": 3}}}, "template": "{{ x|tojson }}"})", {}),
            R"({"b": 1, "a": {"d": 2, "c": 3}})");
}

TEST(TemplateCommandTest, TheTimeIsThatOfTheLineOrTheCall) {
  EXPECT_EQ(Output(R"({"template": "{{ strftime_now('%F %T') }}", "now": "2025-01-02T03:04:05"})", {}), "2025-01-02 03:04:05");
  EXPECT_EQ(Output(R"({"template": "{{ strftime_now('%F') }}"})", {}), "2024-07-26");
}

TEST(TemplateCommandTest, ALineWithoutATemplateHasThatOfTheModel) {
  const ModelTemplate model{.source = "{{ bos_token }}{{ m }}{{ tools is none }}", .with_tools = "tools", .tokens = {{"bos_token", "<s>"}}};
  EXPECT_EQ(Output(R"({"vars": {"m": 1}})", {}, model), "<s>1True");
  EXPECT_EQ(Output(R"({"vars": {"tools": []}})", {}, model), "tools");
  EXPECT_EQ(Output(R"({"template": "{{ bos_token }}x"})", {}, model), "x");
  EXPECT_THAT(Output("{}", {}), HasSubstr("there is no template"));
}

}  // namespace
}  // namespace lime
