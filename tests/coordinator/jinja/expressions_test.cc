#include <gmock/gmock.h>

#include "tests/coordinator/jinja/render.h"

namespace lime {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST(TemplateExpressionsTest, ValuesPrintAsInPython) {
  EXPECT_EQ(Render("{{ none }} {{ true }} {{ 1 }} {{ 1.0 }} {{ 1e100 }} {{ 1e16 }} {{ 0.0001 }} {{ 1.5e-5 }}"),
            "None True 1 1.0 1e+100 1e+16 0.0001 1.5e-05");
  EXPECT_EQ(Render("{{ [1, 'a', none, (1,), (), {'k': \"it's\"}] }}"), "[1, 'a', None, (1,), (), {'k': \"it's\"}]");
  EXPECT_EQ(Render(R"({{ ['a\n\t\\\'"', 'é', '\x07', '​'] }})"), R"(['a\n\t\\\'"', 'é', '\x07', '\u200b'])");
  EXPECT_EQ(Render("{{ x }}", R"({"x": {"b": 18446744073709551615, "a": [1.5, true]}})"), "{'b': 18446744073709551615, 'a': [1.5, True]}");
  EXPECT_EQ(Render("{{ 1, 2 }}"), "(1, 2)");
}

TEST(TemplateExpressionsTest, NumbersAreReadAsInPython) {
  EXPECT_EQ(Render("{{ 1_000 + 0x1F + 0b101 + 0o17 }}"), "1051");
  EXPECT_EQ(Render("{{ 1.5e3 }} {{ 1e2 }} {{ 1_0.2_5 }}"), "1500.0 100.0 10.25");
  EXPECT_THAT(Render("{{ 999999999999999999999999999999999999999 }}"), HasSubstr("larger than 127 bits"));
}

TEST(TemplateExpressionsTest, StringsHaveEscapesAndJoin) {
  EXPECT_EQ(Render(R"({{ 'a' "b" 'c' }}{{ '\x41\u00e9\U0001F600\101\q' }})"), "abcAé😀A\\q");
  EXPECT_EQ(Render("{{ 'two\nlines' }}"), "two\nlines");
  EXPECT_THAT(Render(R"({{ '\ud800' }})"), HasSubstr("escape that is no character"));
}

TEST(TemplateExpressionsTest, ArithmeticIsPythons) {
  EXPECT_EQ(Render("{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 1 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }}"),
            "3 -4 1 2 -2 0.5 1024 0.5");
  EXPECT_EQ(Render("{{ 2 + 3 * 4 ~ 'x' }} {{ (2 + 3) * 4 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 7.5 // 2 }} {{ -1.5 % 1 }}"),
            "error: line 1 of the chat template: \"+\" does not work on an integer and a string; convert one of them");
  EXPECT_EQ(Render("{{ (2 + 3) * 4 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 7.5 // 2 }} {{ -1.5 % 1 }} {{ 2.5 // 0.1 }}"),
            "20 64 4 3.0 0.5 24.0");
  EXPECT_EQ(Render("{{ true + true }} {{ 'ab' * 2 }} {{ 2 * [1] }} {{ [1] + [2] }} {{ (1,) + (2,) }}"), "2 abab [1, 1] [1, 2] (1, 2)");
  EXPECT_THAT(Render("{{ 1 / 0 }}"), HasSubstr("divided by 0"));
  EXPECT_THAT(Render("{{ 0.0 ** -1 }}"), HasSubstr("0 has no negative power"));
  EXPECT_THAT(Render("{{ (-8) ** 0.5 }}"), HasSubstr("no power that is no integer"));
  EXPECT_THAT(Render("{{ 10.0 ** 400 }}"), HasSubstr("larger than a float"));
  EXPECT_THAT(Render("{{ 2 ** 127 }}"), HasSubstr("larger than 127 bits"));
  EXPECT_THAT(Render("{{ 'a' + 1 }}"), HasSubstr("\"+\" does not work on a string and an integer"));
}

TEST(TemplateExpressionsTest, ComparisonsChain) {
  EXPECT_EQ(Render("{{ 1 < 2 <= 2 != 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 == true }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }}"),
            "True False True True True");
  EXPECT_EQ(Render("{{ 'b' in 'abc' }} {{ 1 in [1] }} {{ 'k' in {'k': 1} }} {{ 2 not in (1,) }} {{ 1 in x }}"),
            "True True True True False");
  EXPECT_EQ(Render("{{ not 1 == 2 }} {{ not x }} {{ 0 or '' or 'z' }} {{ 1 and 2 }} {{ none == x }} {{ x == y }}"),
            "True True z 2 False True");
  EXPECT_EQ(
      Render("{{ 9007199254740993 == 9007199254740992.0 }} {{ 9007199254740993 > 9007199254740992.0 }} {{ 2 < 2.5 < 3 }} {{ -2.5 < -2 }} "
             "{{ 1 < 1e400 }} {{ 1 == ('nan' ~ x)|float }}"),
      "False True True True True False");
  EXPECT_THAT(Render("{{ 1 < 'a' }}"), HasSubstr("\"<\" does not work on an integer and a string"));
  EXPECT_THAT(Render("{{ 1 in 'a' }}"), HasSubstr("only a string can be \"in\" a string"));
  EXPECT_THAT(Render("{{ 1 in none }}"), HasSubstr("none has no items"));
}

TEST(TemplateExpressionsTest, ChoicesAndConcatenation) {
  EXPECT_EQ(Render("{{ 'a' if x else 'b' if y else 'c' }}[{{ 'a' if x }}]"), "c[]");
  EXPECT_EQ(Render("{{ 1 ~ none ~ 'a' ~ x ~ [1] }}"), "1Nonea[1]");
  EXPECT_EQ(Render("{{ 1 + 2 ~ '' }}", "{}").substr(0, 6), "error:") << "~ binds stronger than +";
}

TEST(TemplateExpressionsTest, ItemsAndSlicesCountCharacters) {
  EXPECT_EQ(Render("{{ 'aéz'[1] }}{{ 'aéz'[-1] }}{{ 'aéz'[::-1] }}{{ 'aéz'[1:] }}{{ 'aéz'[:1] }}{{ 'aéz'|length }}"), "ézzéaéza3");
  EXPECT_EQ(Render("{{ [1,2,3,4][::2] }}{{ [1,2,3][-2:] }}{{ [1,2,3][5:] }}{{ (1,2,3)[::-1] }}{{ range(5)[1:3]|list }}"),
            "[1, 3][2, 3][](3, 2, 1)[1, 2]");
  EXPECT_EQ(Render("[{{ [1][5] }}{{ [1]['x'] }}{{ {'a': 1}[0] }}{{ 'ab'[7] }}{{ a[] is undefined }}]", R"({"a": {"b": 1}})"), "[True]");
  EXPECT_EQ(Render("{{ x.0 }}{{ x.1.0 }}", R"({"x": [1, [2]]})"), "12");
  EXPECT_THAT(Render("{{ [1][::0] }}"), HasSubstr("step of a slice is 0"));
  EXPECT_THAT(Render("{{ none[1:] }}"), HasSubstr("none has no slices"));
}

TEST(TemplateExpressionsTest, AttributesAreMethodsFirstAndItemsAreKeysFirst) {
  const std::string variables = R"({"d": {"items": 1, "pop": 2, "x": 3}})";
  EXPECT_EQ(Render("{{ d['items'] }}{{ d.x }}{{ d.items()|list|length }}[{{ d.pop }}]{{ d['pop'] }}", variables), "133[]2");
  EXPECT_EQ(Render("{{ d.y is defined }}{{ d.keys is defined }}{{ none.x is defined }}{{ d.__class__ is defined }}", variables),
            "FalseTrueFalseFalse");
}

TEST(TemplateExpressionsTest, UndefinedPrintsNothingAndHasNoAttributes) {
  EXPECT_EQ(Render("[{{ x }}{{ x|string }}{% for a in x %}{% endfor %}{{ x|length }}{{ x is defined }}]"), "[0False]");
  EXPECT_EQ(Render("\n{{ x.y }}"),
            "error: line 2 of the chat template: \"x\" is undefined and has no attribute \"y\"; give it, or test it with \"is defined\"");
  EXPECT_THAT(Render("{{ m[0].role.x }}", R"({"m": [{}]})"), HasSubstr("\"role\" is undefined and has no attribute \"x\""));
  EXPECT_THAT(Render("{{ x() }}"), HasSubstr("\"x\" is undefined and cannot be called"));
  EXPECT_THAT(Render("{{ x + 1 }}"), HasSubstr("\"x\" is undefined and cannot be used with \"+\""));
  EXPECT_THAT(Render("{{ x[1:] }}"), StartsWith("error:"));
}

TEST(TemplateExpressionsTest, DictsKeepTheOrderOfKeys) {
  EXPECT_EQ(Render("{{ {0: 1, none: 2, 1.0: 3, '0': 4, (0, 0): 5, true: 6} }}"), "{0: 1, None: 2, 1.0: 6, '0': 4, (0, 0): 5}");
  EXPECT_EQ(Render("{{ {'b': 1, 'a': 2} == {'a': 2, 'b': 1} }}{% for k in {'b': 1, 'a': 2} %}{{ k }}{% endfor %}"), "Trueba");
  EXPECT_THAT(Render("{{ {[1]: 2} }}"), HasSubstr("a list cannot be a key"));
}

TEST(TemplateExpressionsTest, CallsTakeNamesAndUnpackedArguments) {
  EXPECT_EQ(Render("{{ dict(a=1, **{'b': 2}) }}{{ range(*[1, 4])|list }}{{ 'a,b'.split(sep=',') }}"),
            "{'a': 1, 'b': 2}[1, 2, 3]['a', 'b']");
  EXPECT_THAT(Render("{{ range(a=1) }}"), HasSubstr("is given the argument \"a\""));
  EXPECT_THAT(Render("{{ range() }}"), HasSubstr("needs the argument \"start\""));
  EXPECT_THAT(Render("{{ 'x'.upper(1) }}"), HasSubstr("takes at most 0 arguments"));
  EXPECT_THAT(Render("{{ 'x'.nothing() }}"), HasSubstr("\"nothing\" is undefined and cannot be called"));
}

TEST(TemplateExpressionsTest, StringMethods) {
  EXPECT_EQ(Render("{{ ' a b  c '.split() }}{{ 'a,b,c'.split(',', 1) }}{{ 'a,b,c'.rsplit(',', 1) }}{{ ' a b c '.rsplit(none, 1) }}"),
            "['a', 'b', 'c']['a', 'b,c']['a,b', 'c'][' a b', 'c']");
  EXPECT_EQ(Render("[{{ '  x '.strip() }}{{ 'xxaxx'.lstrip('x') }}{{ 'abc'.rstrip('cb') }}{{ 'ab'.startswith(('x', 'a')) }}]"),
            "[xaxxaTrue]");
  EXPECT_EQ(
      Render("{{ 'aaa'.replace('a', 'b', 2) }}{{ 'ab'.replace('', '.') }}{{ 'éa'.find('a') }}{{ 'aXa'.rfind('a') }}{{ 'aa'.count('a') }}"),
      "bba.a.b.122");
  EXPECT_EQ(Render("{{ 'hello wORLD'.title() }}{{ 'ß é'.upper() }}{{ 'ÄÖ'.lower() }}{{ 'éa'.capitalize() }}{{ 'aB'.swapcase() }}"),
            "Hello WorldSS ÉäöÉaAb");
  EXPECT_EQ(Render("{{ 'ﬁ ŉ ΐ'.upper() }} {{ 'ßa ﬁb ᾲ ŉ ᾀ'.title() }} {{ 'ﬁB'.capitalize() }} {{ 'ẞﬁ'.casefold() }} {{ 'ß'.swapcase() }}"),
            "FI ʼN \u0399\u0308\u0301 Ssa Fib \u1FBA\u0345 ʼN \u1F88 Fib ssfi SS");
  EXPECT_EQ(Render("{{ 'ΑΣ ΑΣΑ Σ ΑΣ\\'Α ΑΣ\\' İ'.lower() }} {{ 'ΑΣ'.title() }} {{ 'αΣ'.swapcase() }} {{ 'aΣ (ﬁ'|title }}"),
            "ας ασα σ ασ'α ας' i̇ Ας Ας Aσ (FI");
  EXPECT_EQ(Render("{{ 'a\nb\r\nc'.splitlines() }}{{ 'a=b=c'.partition('=') }}{{ 'a=b=c'.rpartition('=') }}{{ '-'.join(['a', 'b']) }}"),
            "['a', 'b', 'c']('a', '=', 'b=c')('a=b', '=', 'c')a-b");
  EXPECT_EQ(Render("{{ '7'.zfill(3) }}{{ 'a'.center(4, '.') }}{{ 'a'.ljust(2) }}{{ 'a'.rjust(2) }}{{ 'prefix'.removeprefix('pre') }}"),
            "007.a..a  afix");
  EXPECT_EQ(Render("{{ 'a1'.isalnum() }}{{ '12'.isdigit() }}{{ 'aB'.islower() }}{{ ''.isspace() }}"), "TrueTrueFalseFalse");
  EXPECT_THAT(Render("{{ 'a'.split('') }}"), HasSubstr("empty separator"));
  EXPECT_THAT(Render("{{ ','.join([1]) }}"), HasSubstr("needs strings to join"));
}

TEST(TemplateExpressionsTest, FormattingIsPythons) {
  EXPECT_EQ(Render("{{ '<{}|{}>'.format('a', 42) }}{{ '{1}{0}'.format('a', 'b') }}{{ '{n[k]}{{}}'.format(n={'k': 1}) }}"), "<a|42>ba1{}");
  EXPECT_EQ(
      Render("{{ '{:>5}|{:<3}|{:^5}|{:05.1f}|{:,}|{:x}|{:+d}|{!r}|{:{}}'.format('a', 'b', 'c', 2.55, 1234567, 255, 5, 'q', 'w', 3) }}"),
      "    a|b  |  c  |002.5|1,234,567|ff|+5|'q'|w  ");
  EXPECT_EQ(
      Render("{{ '%s %d %05.2f %r %%' % ('a', 3.9, 2.5, 'x') }}{{ '%(a)s' % {'a': 1} }}{{ '%s!'|format(1) }}{{ '%3d|%-3d|' % (1, 2) }}"),
      "a 3 02.50 'x' %11!  1|2  |");
  EXPECT_THAT(Render("{{ '{}'.format() }}"), HasSubstr("more places than arguments"));
  EXPECT_EQ(Render("{{ 'a' % x }}{{ 'a' % [1] }}"), "aa");
  EXPECT_THAT(Render("{{ 'a' % {'b': 1}.values() }}"), HasSubstr("fewer places than values"));
  EXPECT_THAT(Render("{{ '%d' % 'a' }}"), HasSubstr("cannot show a string"));
  EXPECT_THAT(Render("{{ '%s' % (1, 2) }}"), HasSubstr("fewer places than values"));
  EXPECT_THAT(Render("{{ '{' .format() }}"), HasSubstr("bracket without its pair"));
}

TEST(TemplateExpressionsTest, MarkupEscapesWhatIsAddedToIt) {
  EXPECT_EQ(Render("{{ '<a>'|safe }}{{ ('<a>'|safe) + '<b>' }}{{ ('<a>'|safe) ~ '<b>' }}{{ '<b>' + ('<a>'|safe) }}"),
            "<a><a>&lt;b&gt;<a><b>&lt;b&gt;<a>");
  EXPECT_EQ(Render("{{ '<\"&\\'>'|e }}{{ ('a'|safe).upper() is escaped }}{{ 'a' is escaped }}"), "&lt;&#34;&amp;&#39;&gt;TrueFalse");
}

}  // namespace
}  // namespace lime
