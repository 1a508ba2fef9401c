#include <gmock/gmock.h>

#include "tests/coordinator/jinja/render.h"

namespace lime {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST(TemplateErrorsTest, RaiseExceptionIsItsText) {
  EXPECT_EQ(Render("a\n{{ raise_exception('Roles must alternate!') }}"), "error: Roles must alternate!");
}

TEST(TemplateErrorsTest, TheLineIsNamed) {
  EXPECT_THAT(Render("\n\n{{ 1 +\n }}"), StartsWith("error: line 4 of the chat template: \"}}\" stands where a value is needed"));
  EXPECT_THAT(Render("{% set x = 1 %}\n{% if x %}\n{{ none + 1 }}{% endif %}"), StartsWith("error: line 3 of the chat template: "));
  EXPECT_THAT(Render("{# a\n #}\n{{ 'a\n' }}{{ 1|nothing }}"), StartsWith("error: line 4 of the chat template: there is no filter"));
}

TEST(TemplateErrorsTest, WhatIsOpenIsNamed) {
  EXPECT_THAT(Render("{% if x %}"), HasSubstr("write {% endif %}"));
  EXPECT_THAT(Render("{% for x in y %}{% else %}"), HasSubstr("write {% endfor %}"));
  EXPECT_THAT(Render("{{ x"), HasSubstr("the tag that begins here has no end; write \"}}\""));
  EXPECT_THAT(Render("{# x"), HasSubstr("the comment has no end"));
  EXPECT_THAT(Render("{% raw %}x"), HasSubstr("{% endraw %}"));
  EXPECT_THAT(Render("{{ 'x }}"), HasSubstr("the string that begins here has no end"));
  EXPECT_THAT(Render("{{ (1] }}"), HasSubstr("\"]\" closes no bracket"));
}

TEST(TemplateErrorsTest, WhatHasNoMeaningIsNamed) {
  EXPECT_THAT(Render("{% include 'x' %}"), HasSubstr("there is no statement \"include\""));
  EXPECT_THAT(Render("{% endif %}"), HasSubstr("{% endif %} ends no block"));
  EXPECT_THAT(Render("{{ 1 $ 2 }}"), HasSubstr("\"$\" has no meaning here"));
  EXPECT_THAT(Render("{{ }}"), HasSubstr("a value is needed"));
  EXPECT_THAT(Render("{{ 1 2 }}"), HasSubstr("\"2\" stands where \"}}\" is needed"));
  EXPECT_THAT(Render("{% set true = 1 %}"), HasSubstr("\"true\" is a constant"));
  EXPECT_THAT(Render("{{ f(a=1, 2) }}"), HasSubstr("an argument without a name stands behind others"));
  EXPECT_THAT(Render("{{ f(a=1, a=2) }}"), HasSubstr("\"a\" is there twice"));
  EXPECT_THAT(Render("{{ x is none is none }}"), HasSubstr("a test stands behind another"));
  EXPECT_THAT(Render("\xFF"), HasSubstr("not UTF-8"));
}

TEST(TemplateErrorsTest, TheSandboxHidesWhatChangesValues) {
  EXPECT_THAT(Render("{{ x.append(1) }}", R"({"x": []})"), HasSubstr("\"append\" is undefined and cannot be called"));
  EXPECT_THAT(Render("{{ x.update({}) }}", R"({"x": {}})"), HasSubstr("\"update\" is undefined and cannot be called"));
  EXPECT_EQ(Render("{{ x.pop(0) }}{{ x }}", R"({"x": [1, 2]})"), "1[2]") << "Jinja 3.1.2 lets it pass";
}

}  // namespace
}  // namespace lime
