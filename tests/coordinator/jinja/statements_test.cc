#include <gmock/gmock.h>

#include "tests/coordinator/jinja/render.h"

namespace lime {
namespace {

using testing::HasSubstr;

TEST(TemplateStatementsTest, IfTakesTheFirstTrueBranch) {
  const std::string_view source = "{% if x == 1 %}a{% elif x == 2 %}b{% elif x %}c{% else %}d{% endif %}";
  EXPECT_EQ(Render(source, R"({"x": 1})") + Render(source, R"({"x": 2})") + Render(source, R"({"x": 3})") + Render(source), "abcd");
}

TEST(TemplateStatementsTest, LoopsTellWhereTheyAre) {
  EXPECT_EQ(Render("{% for x in 'abc' %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ "
                   "loop.last }} {% endfor %}"),
            "1032TrueFalse 2121FalseFalse 3210FalseTrue ");
  EXPECT_EQ(Render("{% for x in [1, 2, 3] %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}{{ loop is defined }}"),
            "<1>2 1<2>3 2<3> False");
  EXPECT_EQ(Render("{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{{ loop.cycle('a', 'b') }} {% endfor %}"), "Truea Falseb Truea ");
}

TEST(TemplateStatementsTest, LoopsFilterUnpackAndHaveAnElse) {
  EXPECT_EQ(Render("{% for x in range(6) if x is odd %}{{ x }}/{{ loop.length }} {% else %}none{% endfor %}"), "1/3 3/3 5/3 ");
  EXPECT_EQ(
      Render("{% for k, (a, b) in [(1, (2, 3))] %}{{ k + a + b }}{% endfor %}{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}"),
      "6a1");
  EXPECT_EQ(Render("{% for x in [] %}{% else %}none{% endfor %}{% for x in y %}{% else %}none{% endfor %}"), "nonenone");
  EXPECT_THAT(Render("{% for a, b in [(1, 2, 3)] %}{% endfor %}"), HasSubstr("3 values are assigned to 2 names"));
  EXPECT_THAT(Render("{% for a in none %}{% endfor %}"), HasSubstr("none has no items to go through"));
}

TEST(TemplateStatementsTest, BreakAndContinue) {
  EXPECT_EQ(
      Render("{% for x in range(9) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}"),
      "023");
  EXPECT_EQ(Render("{% for x in [1] %}{% break %}{% else %}else{% endfor %}"), "else") << "as Jinja does: no turn came to its end";
  EXPECT_THAT(Render("{% break %}"), HasSubstr("outside of a loop"));
  EXPECT_THAT(Render("{% for x in y %}{% generation %}{% break %}{% endgeneration %}{% endfor %}"), HasSubstr("outside of a loop"));
  EXPECT_THAT(Render("{% for x in y %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}"), HasSubstr("outside of a loop"));
}

TEST(TemplateStatementsTest, RecursiveLoopsCallThemselves) {
  EXPECT_EQ(Render("{% for n in t recursive %}{{ n.v }}{{ loop.depth }}[{{ loop(n.c) if n.c }}]{% endfor %}",
                   R"({"t": [{"v": "a", "c": [{"v": "b"}]}]})"),
            "a1[b2[]]");
  EXPECT_THAT(Render("{% for n in [1] %}{{ loop([]) }}{% endfor %}"), HasSubstr("the loop is not recursive"));
}

TEST(TemplateStatementsTest, WhatALoopSetsIsGoneBehindIt) {
  EXPECT_EQ(Render("{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = 5 %}{{ x }}{% endfor %}{{ x }}"), "15151");
  EXPECT_EQ(Render("{% if true %}{% set x = 1 %}{% endif %}{{ x }}"), "1");
  EXPECT_EQ(Render("{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}{{ ns['n'] }}"),
            "33");
  EXPECT_EQ(Render("{% set a, b = 1, 2 %}{% set c = 3, %}{{ a }}{{ b }}{{ c }}{{ namespace(x=1) }}"), "12(3,)<Namespace {'x': 1}>");
  EXPECT_THAT(Render("{% set x = {} %}{% set x.y = 1 %}"), HasSubstr("\"x\" is no namespace"));
}

TEST(TemplateStatementsTest, ANameThatAScopeSetsFirstHidesTheCallersFromBlocksInside) {
  const std::string_view given = R"({"x": "given"})";
  EXPECT_EQ(Render("{% filter upper %}{{ x }}{% endfilter %}{% set x = 1 %}{{ x }}", given), "1");
  EXPECT_EQ(Render("{% for i in [1] %}<{{ x }}>{% endfor %}{% set x = 1 %}", given), "<>");
  EXPECT_EQ(Render("{% macro m() %}<{{ x }}>{% endmacro %}{{ m() }}{% set x = 1 %}{{ m() }}", given), "<><1>");
  EXPECT_EQ(Render("{% set x %}{{ x }}!{% endset %}{{ x }}", given), "!");
  EXPECT_EQ(Render("{% for i in [1, 2] %}{% with %}<{{ x }}>{% endwith %}{% set x = 1 %}{% endfor %}", given), "<><>");
}

TEST(TemplateStatementsTest, ANameThatAScopeReadsFirstOrPerhapsSetsIsTheCallers) {
  const std::string_view given = R"({"x": "given"})";
  EXPECT_EQ(Render("{% set y = x %}{% for i in [1] %}<{{ x }}>{% endfor %}{% set x = 1 %}", given), "<given>");
  EXPECT_EQ(Render("{% set x = x %}{% set x %}{{ x }}!{% endset %}{{ x }}", given), "given!");
  EXPECT_EQ(Render("{% for i in [1] %}<{{ x }}>{% endfor %}{% if i %}{% set x = 1 %}{% endif %}", given), "<given>");
  EXPECT_EQ(Render("{% for i in [1] if x %}{% set x = 1 %}{{ x }}{% endfor %}", given), "1");
  EXPECT_EQ(Render("{% for i in [1] %}{% with %}<{{ x }}>{% endwith %}{% set x = 1 %}{% endfor %}{{ x }}", given), "<given>given");
}

TEST(TemplateStatementsTest, ALoopKeepsItsVariable) {
  EXPECT_THAT(Render("{% for i in [] %}{% set loop = 1 %}{% endfor %}"), HasSubstr("a loop cannot set \"loop\""));
  EXPECT_THAT(Render("{% for i, loop in [] %}{% endfor %}"), HasSubstr("a loop cannot set \"loop\""));
  EXPECT_EQ(Render("{% set loop = 1 %}{{ loop }}{% for i in [1] %}{{ loop.index }}{% endfor %}"), "11");
}

TEST(TemplateStatementsTest, BlocksCanBeSetFilteredAndScoped) {
  EXPECT_EQ(Render("{% set x %}a{{ 1 }}{% set y = 2 %}{% endset %}{{ x }}{{ y is defined }}{% set z | upper | replace('A', 'b') %}a{% "
                   "endset %}{{ z }}"),
            "a1Falseb");
  EXPECT_EQ(Render("{% filter upper|trim %} a{{ 'b' }} {% endfilter %}"), "AB");
  EXPECT_EQ(Render("{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}", R"({"a": 7})"), "177");
  EXPECT_EQ(Render("{% generation %}a{% set x = 1 %}{% endgeneration %}{{ x }}"), "a");
  EXPECT_EQ(Render("{% print 1 + 1 %}"), "2");
}

TEST(TemplateStatementsTest, MacrosTakeDefaultsNamesAndMore) {
  EXPECT_EQ(Render("{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, c=3) }} {{ m(b=4, a=5) }}"),
            "121 123 545");
  EXPECT_EQ(Render("{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}"), "1(2,){'x': 3}");
  EXPECT_EQ(Render("{% macro m(a) %}[{{ a }}{{ a is defined }}]{% endmacro %}{{ m() }}"), "[False]");
  EXPECT_THAT(Render("{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}"), HasSubstr("more arguments than it has parameters"));
  EXPECT_THAT(Render("{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}"), HasSubstr("is given the argument \"a\""));
  EXPECT_THAT(Render("{% macro m(a=1, b) %}{% endmacro %}"), HasSubstr("\"b\" has no default"));
}

TEST(TemplateStatementsTest, MacrosSeeWhatIsAroundTheirDefinition) {
  EXPECT_EQ(Render("{% set x = 1 %}{% macro m() %}{{ x }}{% set x = 3 %}{% endmacro %}{{ m() }}{% set x = 2 %}{{ m() }}{{ x }}"), "122");
  EXPECT_EQ(Render("{% macro m() %}{{ x is defined }}{% endmacro %}{% for x in [1] %}{{ m() }}{% endfor %}"), "False");
  EXPECT_EQ(Render("{% set ns = namespace() %}{% for x in [1, 2] %}{% macro m() %}{{ x }}{% endmacro %}{% if loop.first %}{% set ns.m = m "
                   "%}{% endif %}{% endfor %}"
                   "{% for y in [7] %}{{ ns.m() }}{% endfor %}"),
            "1");
  EXPECT_EQ(Render("{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}"), "3210");
}

TEST(TemplateStatementsTest, CallGivesAMacroABlock) {
  EXPECT_EQ(Render("{% macro m(x) %}<{{ caller(x) }}>{% endmacro %}{% call(y) m(1) %}{{ y + 1 }}{% endcall %}"), "<2>");
  EXPECT_EQ(Render("{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}"), "False");
  EXPECT_THAT(Render("{% macro m() %}{% endmacro %}{% call m() %}{% endcall %}"), HasSubstr("is given the argument \"caller\""));
}

TEST(TemplateStatementsTest, TheTimeIsThatOfTheCall) {
  EXPECT_EQ(Render("{{ strftime_now('%d %b %Y %H:%M:%S %A %j %-d %B %% %f|%Z|') }}"),
            "06 Jul 2024 09:30:05 Saturday 188 6 July % 000000||");
  EXPECT_EQ(Render("{{ strftime_now('é %') }}"), "é %");
}

TEST(TemplateStatementsTest, VariablesReplaceFunctions) {
  EXPECT_EQ(Render("{{ range }}{{ namespace is callable }}", R"({"range": 5})"), "5True");
}

}  // namespace
}  // namespace lime
