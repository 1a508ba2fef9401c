// Patterns of tokenizer files, in Oniguruma's dialect with Unicode's classes of today.
#include "coordinator/text/unicode/regex.h"

#include <gmock/gmock.h>

#include "coordinator/text/unicode/regex_classes.h"
#include "coordinator/text/unicode/unicode_data.h"

namespace lime {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The matches of `pattern`, or the error.
std::vector<std::string> Find(const std::string& pattern, const std::string& text) {
  const auto regex = Regex::Compile(pattern);
  if (!regex.ok()) return {std::string(regex.status().message())};
  std::vector<TextRange> ranges;
  if (const auto status = regex->FindAll(text, ranges); !status.ok()) return {std::string(status.message())};
  std::vector<std::string> matches;
  matches.reserve(ranges.size());
  for (const TextRange& range : ranges) matches.push_back(text.substr(range.begin, range.end - range.begin));
  return matches;
}

TEST(RegexTest, WhiteSpaceIsUnicodes) {
  EXPECT_THAT(Find("\\s+", "a\u180Eb\u0085c\u3000d"), ElementsAre("\u0085", "\u3000")) << "U+180E is no white space";
  EXPECT_THAT(Find("[^\\s]+", "ab c"), ElementsAre("ab", "c"));
  EXPECT_THAT(Find("[]\\s]", "a]b c"), ElementsAre("]", " "));
}

TEST(RegexTest, ClassesIntersectAndNest) {
  EXPECT_THAT(Find("[a-z&&[^aeiou]]+", "hello world"), ElementsAre("h", "ll", "w", "rld"));
  EXPECT_THAT(Find("[\\p{L}&&[^\\p{Han}]]+", "ab\u4E2Dc"), ElementsAre("ab", "c"));
  EXPECT_THAT(Find("[a-c[x-z]]+", "abmxz"), ElementsAre("ab", "xz"));
  EXPECT_THAT(Find("[\\P{Assigned}]", "a\u00E9\u0378"), ElementsAre("\u0378"));
  EXPECT_THAT(Find("[\\P{Any}]", "a\u00E9"), IsEmpty());
}

TEST(RegexTest, AnchorsHoldAtEveryLine) {
  EXPECT_THAT(Find("^.", "ab\ncd"), ElementsAre("a", "c"));
  EXPECT_THAT(Find(".$", "ab\ncd"), ElementsAre("b", "d"));
  EXPECT_THAT(Find("\\A.", "ab\ncd"), ElementsAre("a"));
}

TEST(RegexTest, MarksBelongToWords) {
  EXPECT_THAT(Find("\\b", "\u0627\u064E\u0644\u0652"), ElementsAre("", ""));
  EXPECT_THAT(Find("\\w+", "\u0915\u094D\u0937 x"), ElementsAre("\u0915\u094D\u0937", "x"));
  EXPECT_THAT(Find("\\B", "ab"), ElementsAre(""));
}

TEST(RegexTest, CharactersOfUnicode15AreKnown) {
  EXPECT_THAT(Find("\\p{L}+", "a\U0001E4D0\U00031350"), ElementsAre("a\U0001E4D0\U00031350"));
  EXPECT_THAT(Find("\\d", "\U00011F50"), ElementsAre("\U00011F50"));
  EXPECT_THAT(Find("[[:alpha:]]+", "\U0001E4D0-"), ElementsAre("\U0001E4D0"));
  EXPECT_THAT(Find("\\P{L}+", "\U0001E4D0-"), ElementsAre("-"));
  EXPECT_THAT(Find("[^\\P{Lu}A]", "AB"), ElementsAre("B"));
}

TEST(RegexTest, OnigurumaHasSomeNumbersInWordsOutsideClasses) {
  EXPECT_THAT(Find("\\w", "\u00B2"), ElementsAre("\u00B2"));
  EXPECT_THAT(Find("[\\w]", "\u00B2"), IsEmpty());
  EXPECT_THAT(Find("\\p{Word}+", "a\u00B2b\u00BDc"), ElementsAre("a\u00B2b\u00BDc"));
  EXPECT_THAT(Find("\\P{Word}|\\p{^word}|[\\p{Word}]", "\u00B2"), IsEmpty());
  EXPECT_THAT(Find("[[:punct:]]", "\u20AC"), ElementsAre("\u20AC"));
  EXPECT_THAT(Find("\\p{Punct}", "$\u20AC"), IsEmpty());
}

TEST(RegexTest, IgnoredCaseConcernsLettersOfThePatternOnly) {
  EXPECT_THAT(Find("(?i)S+", "s\u017F"), ElementsAre("s\u017F"));
  EXPECT_THAT(Find("(?i)\\w", "\u00DF"), ElementsAre("\u00DF"));
  EXPECT_THAT(Find("(?i)\\p{Lu}", "aA"), ElementsAre("A"));
  EXPECT_THAT(Find("(?i)[\\p{Lu}]", "aA"), ElementsAre("a", "A"));
  EXPECT_THAT(Find("(?i:'s)", "'S"), ElementsAre("'S"));
}

TEST(RegexTest, EmptyMatchesCountOnce) {
  EXPECT_THAT(Find("x*", "axb"), ElementsAre("", "x", ""));
  EXPECT_THAT(Find("", "ab"), ElementsAre("", "", ""));
}

TEST(RegexTest, BrokenPatternsAreErrorsThatShowThem) {
  for (const char* pattern : {"(", "[", "\\", "(?P<", "a{100001}", "\\p{Nonsense}", "(((((a{1000}){1000}){1000})"}) {
    EXPECT_THAT(Find(pattern, "a"), ElementsAre(HasSubstr("does not compile"))) << pattern;
  }
  EXPECT_THAT(Find("(?{x})", "a"), ElementsAre(HasSubstr("callouts")));
  EXPECT_THAT(Find("(*FAIL)", "a"), ElementsAre(HasSubstr("callouts")));
  EXPECT_THAT(Find(std::string(70'000, 'a'), "a"), ElementsAre(HasSubstr("the limit is 65536")));
  std::string classes;
  for (int i = 0; i < 1000; ++i) classes += "\\w";
  EXPECT_THAT(Find(classes, "a"), ElementsAre(HasSubstr("holds too many classes")));
}

TEST(RegexTest, HostilePatternsEnd) {
  EXPECT_THAT(Find("(a+)+$", std::string(5000, 'a') + "b"), ElementsAre(HasSubstr("failed")));
  EXPECT_THAT(Find("(a|a)*$", std::string(100, 'a') + "b"), ElementsAre(HasSubstr("failed")));
  EXPECT_THAT(Find("(?<n>a\\g<n>?)+b", std::string(5000, 'a')), ElementsAre(HasSubstr("failed")));
}

TEST(RegexClassesTest, OptionsThatChangeClassesLeaveThePatternAlone) {
  for (const std::string pattern : {"(?x) \\w # [ no class", "(?W)\\w", "(?iD:\\d)"}) EXPECT_EQ(*SpellOutClasses(pattern), pattern);
  EXPECT_EQ(*SpellOutClasses("(?#[)\\c[a\\p{InBasic_Latin}"), "(?#[)\\c[a\\p{InBasic_Latin}");
}

TEST(RegexClassesTest, NamesAreSpelledOutWhereverTheyStand) {
  EXPECT_EQ(*SpellOutClasses("\\p{ascii}"), "[\\x{0}-\\x{7f}]");
  EXPECT_EQ(*SpellOutClasses("\\p{^ASCII}[a\\P{ascii}]"), "[^\\x{0}-\\x{7f}][a[\\x{80}-\\x{10ffff}]]");
  EXPECT_EQ(*SpellOutClasses("[[:xdigit:]]"), "[[\\x{30}-\\x{39}\\x{41}-\\x{46}\\x{61}-\\x{66}]]");
  EXPECT_EQ(*SpellOutClasses("\\\\w"), "\\\\w");
}

TEST(UnicodeDataTest, SetsHaveTheirNames) {
  EXPECT_TRUE(Contains(GetCodeSet("Lu"), 'A'));
  EXPECT_FALSE(Contains(GetCodeSet("Lu"), 'a'));
  EXPECT_TRUE(Contains(*FindCodeSet("uppercase_LETTER"), 'A'));
  EXPECT_TRUE(Contains(*FindCodeSet("Cyrl"), 0x416));
  EXPECT_TRUE(Contains(*FindCodeSet("Unassigned"), 0x378));
  EXPECT_TRUE(Contains(*FindCodeSet("Han"), 0x20001)) << "inside a range given by its ends";
  EXPECT_FALSE(FindCodeSet("nonsense").has_value());
  EXPECT_FALSE(FindCodeSet("").has_value());
}

}  // namespace
}  // namespace lime
