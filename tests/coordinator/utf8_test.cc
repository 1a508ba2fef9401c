#include "coordinator/text/unicode/utf8.h"

#include <gtest/gtest.h>

#include "coordinator/text/unicode/unicode.h"

namespace lime {
namespace {

std::string Lossy(std::string_view text) {
  std::string out;
  AppendLossyUtf8(text, out);
  return out;
}

TEST(Utf8Test, EveryCodePointSurvives) {
  for (char32_t code = 0; code <= 0x10FFFF; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    std::string text;
    AppendUtf8(code, text);
    const Utf8Char decoded = DecodeUtf8(text);
    ASSERT_TRUE(decoded.ok && decoded.code == code && static_cast<size_t>(decoded.length) == text.size()) << static_cast<uint32_t>(code);
  }
}

TEST(Utf8Test, EachMaximalIllFormedPartBecomesOneReplacement) {
  EXPECT_EQ(Lossy("a\xFFz"), "a\uFFFDz");
  EXPECT_EQ(Lossy("\xC0\x80"), "\uFFFD\uFFFD");                      // overlong
  EXPECT_EQ(Lossy("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");            // a surrogate
  EXPECT_EQ(Lossy("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");  // beyond U+10FFFF
  EXPECT_EQ(Lossy("\xE2\x82z"), "\uFFFDz");                          // cut short
  EXPECT_EQ(Lossy("\xF0\x9F\x98"), "\uFFFD");
  EXPECT_EQ(Lossy("\xF0\x9F\x41\xE2"), "\uFFFD\x41\uFFFD");
  EXPECT_EQ(Lossy(std::string_view("\0x", 2)), std::string("\0x", 2));
}

TEST(Utf8Test, OnlyWhatMayStillBecomeACharacterIsIncomplete) {
  EXPECT_EQ(IncompleteUtf8Suffix("a"), 0u);
  EXPECT_EQ(IncompleteUtf8Suffix("a\xE2"), 1u);
  EXPECT_EQ(IncompleteUtf8Suffix("a\xE2\x82"), 2u);
  EXPECT_EQ(IncompleteUtf8Suffix("\xF0\x9F\x98"), 3u);
  EXPECT_EQ(IncompleteUtf8Suffix("\u20AC"), 0u);
  EXPECT_EQ(IncompleteUtf8Suffix("\xE0\x80"), 0u);  // can become nothing
  EXPECT_EQ(IncompleteUtf8Suffix("\xFF"), 0u);
  EXPECT_EQ(IncompleteUtf8Suffix(""), 0u);
}

TEST(UnicodeTest, NormalForms) {
  EXPECT_EQ(*NormalizeUnicode("e\u0301", NormalForm::kNfc), "\u00E9");
  EXPECT_EQ(*NormalizeUnicode("\u00E9", NormalForm::kNfd), "e\u0301");
  EXPECT_EQ(*NormalizeUnicode("\uFB01\u2460", NormalForm::kNfkc), "fi1");
  EXPECT_EQ(*NormalizeUnicode("\uAC00", NormalForm::kNfd), "\u1100\u1161");
  EXPECT_EQ(*NormalizeUnicode("a\u0301\u0323", NormalForm::kNfd), "a\u0323\u0301");  // marks in canonical order
}

TEST(UnicodeTest, AMegabyteOfUnsortedMarksIsQuick) {
  std::string text = "a";
  for (int i = 0; i < 250'000; ++i) text += "\u0301";
  for (int i = 0; i < 250'000; ++i) text += "\u0323";
  const auto normal = NormalizeUnicode(text, NormalForm::kNfc);
  ASSERT_TRUE(normal.ok());
  EXPECT_TRUE(normal->starts_with("\u1EA1\u0323"));
}

TEST(UnicodeTest, SpacesAtEitherEnd) {
  EXPECT_EQ(LeadingSpace(" \u3000\tx "), 5u);
  EXPECT_EQ(TrailingSpace("x \u00A0\n"), 4u);
  EXPECT_EQ(TrailingSpace("\u2003"), 3u);
  EXPECT_TRUE(IsUnicodeWord(U'é') && IsUnicodeWord('_') && IsUnicodeWord('7') && !IsUnicodeWord('-'));
}

}  // namespace
}  // namespace lime
