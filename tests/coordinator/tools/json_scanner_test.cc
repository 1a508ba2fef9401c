#include "coordinator/text/tools/json_scanner.h"

#include <gtest/gtest.h>

#include <string>

#include "nlohmann/json.hpp"
#include "tests/cases.h"

namespace lime {
namespace {

// The number of bytes up to the end of the value, or minus the number in front of the refused byte,
// minus one. 0: it goes on.
int Scan(std::string_view text) {
  JsonScanner scanner;
  for (size_t i = 0; i < text.size(); ++i) {
    const JsonScanner::Step step = scanner.Read(text[i]);
    if (step == JsonScanner::Step::kOver) return static_cast<int>(i) + 1;
    if (step == JsonScanner::Step::kRefused) return -static_cast<int>(i) - 1;
  }
  return 0;
}

TEST(JsonScannerTest, AValueEndsAtItsLastByte) {
  for (const std::string text : {
           "{}",
           "[]",
           "\"\"",
           " {\"a\" : [ 1 , -0.5e+3,0, 10, 1E2, true, false, null, {} , [] ] }",
           R"("\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00 é")",
       }) {
    EXPECT_EQ(Scan(text + " }"), static_cast<int>(text.size())) << text;
    EXPECT_EQ(Scan(text.substr(0, text.size() - 1)), 0) << text;
  }
}

TEST(JsonScannerTest, TheByteThatBreaksItIsRefused) {
  const auto refused_at = [](int at) { return -at - 1; };
  EXPECT_EQ(Scan("1"), refused_at(0));
  EXPECT_EQ(Scan("}"), refused_at(0));
  EXPECT_EQ(Scan("{,"), refused_at(1));
  EXPECT_EQ(Scan("{1"), refused_at(1));
  EXPECT_EQ(Scan("{]"), refused_at(1));
  EXPECT_EQ(Scan("[}"), refused_at(1));
  EXPECT_EQ(Scan("[1}"), refused_at(2));
  EXPECT_EQ(Scan("[1,]"), refused_at(3));
  EXPECT_EQ(Scan("[1 2"), refused_at(3));
  EXPECT_EQ(Scan("{\"a\" 1"), refused_at(5));
  EXPECT_EQ(Scan("{\"a\":}"), refused_at(5));
  EXPECT_EQ(Scan("{\"a\":1,}"), refused_at(7));
  EXPECT_EQ(Scan("[01"), refused_at(2));
  EXPECT_EQ(Scan("[-a"), refused_at(2));
  EXPECT_EQ(Scan("[1.]"), refused_at(3));
  EXPECT_EQ(Scan("[1e]"), refused_at(3));
  EXPECT_EQ(Scan("[1e+]"), refused_at(4));
  EXPECT_EQ(Scan("[1.2.3"), refused_at(4));
  EXPECT_EQ(Scan("[+1"), refused_at(1));
  EXPECT_EQ(Scan("[nul1"), refused_at(4));
  EXPECT_EQ(Scan("[truee"), refused_at(5));
  EXPECT_EQ(Scan("\"\n"), refused_at(1));
  EXPECT_EQ(Scan(R"("\x)"), refused_at(2));
  EXPECT_EQ(Scan(R"("\u00g)"), refused_at(5));
  EXPECT_EQ(Scan(R"("\ud83d ")"), refused_at(7));
  EXPECT_EQ(Scan(R"("\ud83d\n)"), refused_at(8));
  EXPECT_EQ(Scan(R"("\ud83d\u0041)"), refused_at(12));
  EXPECT_EQ(Scan(R"("\ude00)"), refused_at(6));
}

TEST(JsonScannerTest, EveryShortTextIsJudgedAsByAnotherParser) {
  constexpr std::string_view kLetters = "{}[]\",:1e-.\\u0 t";
  // All texts of so many of these letters behind a bracket or a quote.
  const int letters = Soaking() ? 5 : kSanitized ? 3 : 4;
  for (const std::string begin : {"{", "[", "\""}) {
    std::string text = begin;
    const auto try_all = [&](const auto& self, int more) -> void {
      const int scanned = Scan(text);
      ASSERT_EQ(scanned == static_cast<int>(text.size()), nlohmann::json::accept(text)) << text;
      if (more == 0 || scanned != 0) return;
      for (const char c : kLetters) {
        text.push_back(c);
        self(self, more - 1);
        text.pop_back();
      }
    };
    try_all(try_all, letters);
  }
}

TEST(JsonScannerTest, DepthIsBounded) {
  EXPECT_EQ(Scan(std::string(64, '[')), 0);
  EXPECT_EQ(Scan(std::string(65, '[')), -65);
}

}  // namespace
}  // namespace lime
