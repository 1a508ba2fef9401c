#include <gmock/gmock.h>

#include "tests/coordinator/jinja/render.h"

namespace lime {
namespace {

TEST(TemplateWhitespaceTest, ALineEndBehindATagGoesAndOneAtTheEnd) {
  EXPECT_EQ(Render("{% if true %}\nhello\n{% endif %}\n"), "hello\n");
  EXPECT_EQ(Render("a\n{# note #}\nb\n\n"), "a\nb\n");
  EXPECT_EQ(Render("{{ 1 }}\n{{ 2 }}\n"), "1\n2");
  EXPECT_EQ(Render("{% if true +%}\nx{% endif %}"), "\nx");
}

TEST(TemplateWhitespaceTest, TheIndentOfATagAloneInItsLineGoes) {
  EXPECT_EQ(Render("a\n   {% if true %}b{% endif %}"), "a\nb");
  EXPECT_EQ(Render("a\n   {#- note #}b"), "ab");
  EXPECT_EQ(Render("a  {% if true %}b{% endif %}"), "a  b");
  EXPECT_EQ(Render("a\n   {{ 1 }}"), "a\n   1");
  EXPECT_EQ(Render("a\n   {%+ if true %}b{% endif %}"), "a\n   b");
  EXPECT_EQ(Render("{% if true %}\n  {% if true %}\n  x\n  {% endif %}\n{% endif %}"), "  x\n");
  EXPECT_EQ(Render("{{ 1 }}  {% if true %}b{% endif %}"), "1  b") << "not at the begin of a line";
}

TEST(TemplateWhitespaceTest, MinusRemovesAllWhiteSpace) {
  EXPECT_EQ(Render("a \n\t {{- 1 -}} \n\n b"), "a1b");
  EXPECT_EQ(Render("a \xC2\xA0{%- if true -%}\xE2\x80\x83 b{% endif %}"), "ab");
  EXPECT_EQ(Render("a {#- note -#} b"), "ab");
}

TEST(TemplateWhitespaceTest, LineEndsOfOtherSystemsAreLineFeeds) {
  EXPECT_EQ(Render("a\r\nb\rc\r\n"), "a\nb\nc");
  EXPECT_EQ(Render("{{ 'a\r\nb'|length }}"), "3");
}

TEST(TemplateWhitespaceTest, RawIsText) {
  EXPECT_EQ(Render("{% raw %}{{ x }}{% if %}{# c #}{% endraw %}"), "{{ x }}{% if %}{# c #}");
  EXPECT_EQ(Render("{%- raw -%}  a  {%- endraw -%}  b"),
            "a"
            "b");
  EXPECT_EQ(Render("{% raw %}\nx\n{% endraw %}\ny"), "\nx\ny");
}

TEST(TemplateWhitespaceTest, ABraceAloneIsText) {
  EXPECT_EQ(Render("{ {a} } %} }} {"), "{ {a} } %} }} {");
  EXPECT_EQ(Render("{{ {'a': {'b': 1}}['a']['b'] }}"), "1");
}

}  // namespace
}  // namespace lime
