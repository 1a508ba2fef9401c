#include <gmock/gmock.h>

#include "tests/coordinator/jinja/render.h"

namespace lime {
namespace {

using testing::HasSubstr;

TEST(TemplateFiltersTest, TojsonWritesAsTransformersDoes) {
  const std::string variables = R"({"x": {"b": [1, 2.0, null, true], "a": "é\"\\\n\u0001<&'", "e": {}, "f": []}})";
  EXPECT_EQ(Render("{{ x|tojson }}", variables), R"({"b": [1, 2.0, null, true], "a": "é\"\\\n\u0001<&'", "e": {}, "f": []})");
  EXPECT_EQ(Render("{{ x|tojson(indent=2) }}", R"({"x": {"a": [1, {}]}})"), "{\n  \"a\": [\n    1,\n    {}\n  ]\n}");
  EXPECT_EQ(Render("{{ {'b': 1, 'a': '\xF0\x9F\x98\x80'}|tojson(true, sort_keys=true, separators=(',', ':')) }}"),
            R"({"a":"\ud83d\ude00","b":1})");
  EXPECT_EQ(Render("{{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }}"), R"({"1": 4, "null": 3, "1.5": 5})");
  EXPECT_EQ(Render("{{ [(1, 2), 1e400]|tojson }}"), "[[1, 2], Infinity]");
  EXPECT_THAT(Render("{{ y|tojson }}"), HasSubstr("an undefined value has no form in JSON"));
  EXPECT_THAT(Render("{{ {(1,): 2}|tojson }}"), HasSubstr("a key of JSON cannot be a tuple"));
}

TEST(TemplateFiltersTest, Text) {
  EXPECT_EQ(Render("{{ ' a '|trim }}{{ 'xax'|trim('x') }}{{ 'heLLo wORLD'|title }}{{ 'aB'|upper }}{{ ['A']|lower }}{{ 'aB'|capitalize }}"),
            "aaHello WorldAB['a']Ab");
  EXPECT_EQ(Render("{{ 'aaa'|replace('a', 'b', 2) }}{{ 121|replace(2, 3) }}{{ 'two words, é'|wordcount }}"), "bba1313");
  EXPECT_EQ(Render("{{ 'a\n\nb'|indent }}|{{ 'a\nb'|indent(2, true) }}|{{ 'a\n\nb'|indent('> ', blank=true) }}"),
            "a\n\n    b|  a\n  b|a\n> \n> b");
  EXPECT_EQ(Render("{{ 'foo bar baz qux'|truncate(9) }}|{{ 'foo bar baz qux'|truncate(9, true) }}|{{ 'foo bar baz qux'|truncate(11) }}"),
            "foo...|foo ba...|foo bar baz qux");
  EXPECT_EQ(Render("{{ 'a b/é'|urlencode }}{{ 'a'|center(3) }}{{ 3|string + 'x' }}"), "a%20b/%C3%A9 a 3x");
  EXPECT_EQ(Render("[{{ x|upper }}{{ x|trim }}{{ x|title }}{{ x|replace('a', 'b') }}]"), "[]");
  EXPECT_THAT(Render("{{ none|indent }}"), HasSubstr("needs a string"));
}

TEST(TemplateFiltersTest, Numbers) {
  EXPECT_EQ(Render("{{ '42'|int }} {{ '42.9'|int }} {{ 'x'|int }} {{ ''|int(1) }} {{ '0x1f'|int(base=16) }} {{ none|int }} {{ -2.7|int }}"),
            "42 42 0 1 31 0 -2");
  EXPECT_EQ(Render("{{ '3.14'|float }} {{ 'x'|float(1.5) }} {{ 2|float }} {{ -5|abs }} {{ 2.5|round }} {{ 2.675|round(2) }} {{ 7|round }}"),
            "3.14 1.5 2.0 5 2.0 2.67 7");
  EXPECT_EQ(Render("{{ 2.1|round(method='ceil') }} {{ 42.55|round(1, 'floor') }} {{ 1234.5|round(-2) }}"), "3.0 42.5 1200.0");
  EXPECT_EQ(Render("{{ -0.3|round(method='ceil') }} {{ ('ab'|safe)|list }} {{ [('ab'|safe)[0]] }}"), "0.0 ['a', 'b'] [Markup('a')]");
  EXPECT_EQ(Render("{{ x|default('d') }}{{ none|default('d') }}{{ ''|default('d', true) }}{{ x|d }}"), "dNoned");
  EXPECT_THAT(Render("{{ x|int }}"), HasSubstr("\"x\" is undefined"));
  EXPECT_THAT(Render("{{ '1e999'|int(5) }}"), HasSubstr("too large for an integer"));
  EXPECT_THAT(Render("{{ '1e999'|float|round(0, 'ceil') }}"), HasSubstr("not infinite"));
  EXPECT_EQ(Render("{{ ('nan' ~ x)|int(5) }}{{ [1, 2]|truncate(5) }}{{ x|truncate(5) is undefined }}"), "5[1, 2]True");
  EXPECT_THAT(Render("{{ range(9)|list|truncate(3, leeway=0) }}"), HasSubstr("needs a string, not a list"));
}

TEST(TemplateFiltersTest, Collections) {
  EXPECT_EQ(
      Render("{{ [3, 1, 2]|sort }}{{ ['b', 'A', 'a']|sort }}{{ ['b', 'A']|sort(case_sensitive=true) }}{{ [1, 2]|sort(reverse=true) }}"),
      "[1, 2, 3]['A', 'a', 'b']['A', 'b'][2, 1]");
  EXPECT_EQ(Render("{{ [1, 2, 3]|join(', ') }}{{ ['a', none]|join }}{{ x|join }}{{ [{'a': 1}, {'a': 2}]|join('-', attribute='a') }}"),
            "1, 2, 3aNone1-2");
  EXPECT_EQ(Render("{{ [1, 2]|first }}{{ [1, 2]|last }}{{ 'ab'|last }}{{ []|first }}{{ {'k': 1}|first }}{{ [1, 2]|reverse|list }}{{ "
                   "'ab'|reverse }}"),
            "12bk[2, 1]ba");
  EXPECT_EQ(Render("{{ [1, 3, 2]|max }}{{ [1, 3]|min }}{{ [1, 2]|sum }}{{ [[1], [2]]|sum(start=[]) }}{{ ['b', 'A']|min }}{{ []|max }}"),
            "313[1, 2]A");
  EXPECT_EQ(Render("{{ [1, 1.0, 'a', 'A']|unique|list }}{{ 'aab'|unique|join }}{{ 'abc'|list }}"), "[1, 'a']ab['a', 'b', 'c']");
  EXPECT_EQ(Render("{{ {'b': 1, 'A': 2}|dictsort }}{{ {'b': 1, 'A': 2}|dictsort(by='value', reverse=true) }}{{ {'a': 1}|items|list }}"),
            "[('A', 2), ('b', 1)][('A', 2), ('b', 1)][('a', 1)]");
  EXPECT_EQ(Render("{{ x|items|list }}{{ x|list }}{{ x|map('upper')|list }}"), "[][][]");
  EXPECT_THAT(Render("{{ none|length }}"), HasSubstr("\"length\" does not work on none"));
  EXPECT_THAT(Render("{{ [1, 'a']|sort }}"), HasSubstr("\"<\" does not work on"));
}

TEST(TemplateFiltersTest, MapAndSelect) {
  const std::string variables = R"({"m": [{"role": "user", "n": 1}, {"role": "tool", "n": 2}, {"n": 0}]})";
  EXPECT_EQ(Render("{{ m|map(attribute='n')|list }}{{ m|map(attribute='role', default='?')|join(',') }}{{ ['1', '2']|map('int')|sum }}",
                   variables),
            "[1, 2, 0]user,tool,?3");
  EXPECT_EQ(Render("{{ m|selectattr('role', 'equalto', 'user')|list|length }}{{ m|rejectattr('n')|list|length }}{{ m|selectattr('n', '>', "
                   "0)|map(attribute='n')|list }}",
                   variables),
            "11[1, 2]");
  EXPECT_EQ(Render("{{ [0, 1, 2]|select('odd')|list }}{{ [0, 1]|reject|list }}{{ ['a', 'b']|reject('in', ['a'])|list }}{{ [1, "
                   "2]|map('string')|list }}"),
            "[1][0]['b']['1', '2']");
  EXPECT_THAT(Render("{{ [1]|map('nothing')|list }}"), HasSubstr("there is no filter \"nothing\""));
  EXPECT_THAT(Render("{{ [1]|select('nothing')|list }}"), HasSubstr("there is no test \"nothing\""));
}

TEST(TemplateFiltersTest, AnIteratorIsReadOnce) {
  EXPECT_EQ(Render("{% set a = [1, 2]|map('string') %}{{ a|list }}{{ a|list }}{{ 'yes' if a }}"), "['1', '2'][]yes");
  EXPECT_THAT(Render("{{ [1]|map('string')|length }}"), HasSubstr("an iterator"));
  EXPECT_EQ(Render("{% for a in [1, 2]|map('string') %}{{ loop.last }}{% endfor %}"), "FalseTrue");
}

TEST(TemplateFiltersTest, Tests) {
  EXPECT_EQ(Render("{{ 3 is odd }}{{ 4 is even }}{{ 6 is divisibleby 3 }}{{ 'a' is string }}{{ {} is mapping }}{{ [] is sequence }}{{ {} "
                   "is sequence }}"),
            "TrueTrueTrueTrueTrueTrueTrue");
  EXPECT_EQ(Render("{{ true is number }}{{ true is integer }}{{ 1.0 is float }}{{ none is none }}{{ x is undefined }}{{ x is iterable }}{{ "
                   "1 is iterable }}"),
            "TrueFalseTrueTrueTrueTrueFalse");
  EXPECT_EQ(Render("{{ 1 is true }}{{ true is true }}{{ false is false }}{{ 'A' is upper }}{{ 'a' is in 'abc' }}{{ 1 is not in [2] }}{{ "
                   "range is callable }}"),
            "FalseTrueTrueTrueTrueTrueTrue");
  EXPECT_EQ(Render("{{ 1 is eq 1 }}{{ 1 is ne 2 }}{{ 2 is gt 1 }}{{ 1 is lessthan 2 }}{{ 1 is le 1 }}{{ none is sameas none }}{{ 'upper' "
                   "is filter }}"),
            "TrueTrueTrueTrueTrueTrueTrue");
  EXPECT_EQ(Render("{{ 'a' if x is defined and x is string else 'b' }}"), "b");
  EXPECT_THAT(Render("{{ 1 is nothing }}"), HasSubstr("there is no test \"nothing\""));
}

}  // namespace
}  // namespace lime
