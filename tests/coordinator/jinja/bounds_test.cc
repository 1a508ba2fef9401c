// Hostile templates end with an error, soon and without much memory.
#include <gmock/gmock.h>

#include "coordinator/text/jinja/values/rendering.h"
#include "tests/coordinator/jinja/render.h"

namespace lime {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

std::string Times(std::string_view text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out.append(text);
  return out;
}

TEST(TemplateBoundsTest, Steps) {
  EXPECT_THAT(Render("{% for a in range(100000) %}{{ 0" + Times(" + 1", 100) + " }}{% endfor %}"), HasSubstr("more than 10000000 steps"));
  EXPECT_THAT(Render("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"), HasSubstr("shorten the loops"));
  EXPECT_THAT(Render("{% set x = 'a' * 1000000 %}{% for a in range(100000) %}{% if 'b' in x %}{% endif %}{% endfor %}"),
              HasSubstr("steps"));
  EXPECT_THAT(Render("{% set x = ('a' * 1000000) %}{% for a in range(100000) %}{{ 'a'.strip(x) }}{% endfor %}"), HasSubstr("steps"));
  EXPECT_THAT(Render("{% set x = (range(100000)|list)[:] %}{% for a in range(100000) %}{{ x.pop(0) }}{% endfor %}"), HasSubstr("steps"));
}

TEST(TemplateBoundsTest, OutputAndValues) {
  EXPECT_THAT(Render("{% for a in range(9) %}{{ 'a' * 1000000 }}{% endfor %}"), HasSubstr("the text is longer than 4 MiB"));
  EXPECT_THAT(Render("{% set x %}{{ 'a' * 9000000 }}{% endset %}"), HasSubstr("longer than 4 MiB"));
  EXPECT_THAT(Render("{{ ('a' * 1000000000000)|length }}"), HasSubstr("a value of more than 32 MiB"));
  EXPECT_THAT(Render("{{ ([0] * 100000000)|length }}"), HasSubstr("a value of more than 32 MiB"));
  EXPECT_THAT(Render("{{ ('a' * 100000).replace('a', 'b' * 10000)|length }}"), HasSubstr("a value of more than 32 MiB"));
  EXPECT_THAT(Render("{% set ns = namespace(x='a') %}{% for a in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"), HasSubstr("MiB"));
  EXPECT_THAT(Render("{% for a in range(1000) %}{% set x = 'a' * 1000000 %}{% endfor %}"), HasSubstr("makes more than 256 MiB of values"));
  EXPECT_THAT(Render("{{ ('%9999d' * 5000) % ((1,) * 5000) }}"), HasSubstr("MiB"));
  EXPECT_THAT(Render("{{ '%99999999d' % 1 }}"), HasSubstr("width or precision above 10000"));
  EXPECT_THAT(Render("{{ 'a'.center(99999999999)|length }}"), HasSubstr("MiB"));
  EXPECT_THAT(Render("{{ range(100001) }}"), HasSubstr("more than 100000 numbers"));
  EXPECT_THAT(Render("{{ 'a\n'|indent(99999999999) }}"), HasSubstr("MiB"));
}

TEST(TemplateBoundsTest, ValuesInsideEachOther) {
  const std::string deep = "{% set ns = namespace(x=[]) %}{% for a in range(2000) %}{% set ns.x = [ns.x] %}{% endfor %}";
  for (const char* use : {"{{ ns.x }}", "{{ ns.x|tojson }}", "{{ ns.x == [ns.x] }}", "{{ ns.x < [ns.x] }}"}) {
    EXPECT_THAT(Render(deep + use), HasSubstr("more than 500 levels")) << use;
  }
  EXPECT_THAT(Render("{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns }}"), HasSubstr("more than 500 levels"));
  const std::string wide = "{% set ns = namespace(x=[1]) %}{% for a in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
  for (const char* use : {"{{ ns.x }}", "{{ ns.x|tojson }}", "{{ ns.x == [ns.x, ns.x][0] }}"}) {
    EXPECT_THAT(Render(wide + use), AnyOf(HasSubstr("steps"), HasSubstr("4 MiB"))) << use;
  }
}

TEST(TemplateBoundsTest, MacrosThatCallThemselves) {
  EXPECT_THAT(Render("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), HasSubstr("more than 500 levels"));
  EXPECT_THAT(Render("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}"), HasSubstr("more than 500 levels"));
}

TEST(TemplateBoundsTest, TheTemplateItself) {
  const auto nested = [](const char* begin, const char* middle, const char* end, int count) {
    return Times(begin, count) + middle + Times(end, count);
  };
  EXPECT_EQ(Render("{{ " + nested("(", "1", ")", 60) + " }}"), "1");
  for (const int count : {70, 5000}) {
    EXPECT_THAT(Render("{{ " + nested("(", "1", ")", count) + " }}"), HasSubstr("more than 64 levels"));
    EXPECT_THAT(Render("{{ " + nested("[", "1", "]", count) + " }}"), HasSubstr("more than 64 levels"));
    EXPECT_THAT(Render("{{ " + nested("f(", "1", ")", count) + " }}"), HasSubstr("more than 64 levels"));
    EXPECT_THAT(Render("{{ " + nested("x[", "1", "]", count) + " }}"), HasSubstr("more than 64 levels"));
    EXPECT_THAT(Render("{{ " + nested("not ", "1", "", count) + " }}"), HasSubstr("more than 64 levels"));
    EXPECT_THAT(Render("{{ " + nested("-", "1", "", count) + " }}"), HasSubstr("more than 64 levels"));
    EXPECT_THAT(Render("{{ 1" + nested(" if 1 else 1", "", "", count) + " }}"), HasSubstr("more than 64 levels"));
    EXPECT_THAT(Render("{% for " + nested("(", "a", ")", count) + " in b %}{% endfor %}"), HasSubstr("more than 64 levels"));
    EXPECT_THAT(Render(nested("{% if 1 %}", "1", "{% endif %}", count)), HasSubstr("more than 64 levels"));
    EXPECT_THAT(Render("{{ x" + nested(".a", "", "", count) + " }}"), HasSubstr("more than 64 calls, attributes or filters"));
    EXPECT_THAT(Render("{{ x" + nested("|trim", "", "", count) + " }}"), HasSubstr("more than 64 calls, attributes or filters"));
    EXPECT_THAT(Render("{{ x" + nested(" if 1", "", "", count) + " }}"), HasSubstr("more than 64 calls, attributes or filters"));
    EXPECT_EQ(Render("{{ 1" + nested(" + 1", "", "", count) + " }}"), std::to_string(count + 1)) << "chains are not nested";
  }
  EXPECT_THAT(Render(Times("a", (256 << 10) + 1)), HasSubstr("the limit is 262144"));
  EXPECT_EQ(Render(Times("{% elif 0 %}", 0) + "{% if 0 %}" + Times("{% elif 0 %}", 9000) + "{% endif %}"), "");
}

}  // namespace
}  // namespace lime
