#include "coordinator/text/stop_strings.h"

#include <gmock/gmock.h>

#include <random>

namespace lime {
namespace {

struct Outcome {
  std::string text;
  bool stopped = false;
  bool operator==(const Outcome&) const = default;
};

Outcome Play(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopStrings matcher(stops);
  Outcome outcome;
  for (const std::string& piece : pieces) outcome.text.append(matcher.Push(piece));
  outcome.text.append(matcher.Finish());
  outcome.stopped = matcher.stopped();
  return outcome;
}

// The first stop string to be complete, by looking at every prefix of the text.
Outcome Oracle(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    const std::string prefix = text.substr(0, end);
    size_t cut = std::string::npos;
    for (const std::string& stop : stops) {
      if (!stop.empty() && prefix.ends_with(stop)) cut = std::min(cut, end - stop.size());
    }
    if (cut != std::string::npos) return {text.substr(0, cut), true};
  }
  return {text, false};
}

TEST(StopStringsTest, StopsAcrossPieces) {
  EXPECT_EQ(Play({"\n\nUser:"}, {"Hello", "\n", "\nUs", "er: x", "more"}), (Outcome{"Hello", true}));
}

TEST(StopStringsTest, HoldsBackOnlyWhatMayBecomeAStop) {
  StopStrings matcher({"END", "abcd"});
  EXPECT_EQ(matcher.Push("text E"), "text ");
  EXPECT_EQ(matcher.Push("N"), "");
  EXPECT_EQ(matcher.Push("T ab"), "ENT ");
  EXPECT_EQ(matcher.Finish(), "ab");
}

TEST(StopStringsTest, NamesTheLongestOfThoseThatEndTogether) {
  StopStrings matcher({"c", "bc", "x"});
  EXPECT_EQ(matcher.Push("abcx"), "a");
  ASSERT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.matched(), "bc");
  EXPECT_EQ(matcher.Push("more"), "");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopStringsTest, ATextThatHasEndedIsNoPartOfTheNextOne) {
  StopStrings matcher({"abc"});
  EXPECT_EQ(matcher.Push("xab"), "x");
  EXPECT_EQ(matcher.Finish(), "ab");
  EXPECT_EQ(matcher.Push("c"), "c");
  EXPECT_FALSE(matcher.stopped());
  EXPECT_EQ(matcher.Push("abc"), "");
  EXPECT_TRUE(matcher.stopped());
}

TEST(StopStringsTest, WithoutStopsEverythingPassesAtOnce) {
  StopStrings matcher({""});
  EXPECT_EQ(matcher.Push("abc"), "abc");
  EXPECT_EQ(matcher.Push(""), "");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopStringsTest, AgreesWithTheOracleHoweverTheTextIsCut) {
  std::mt19937 random(42);
  const auto pick = [&](int n) { return static_cast<int>(random() % n); };
  const auto word = [&](int max) {
    std::string text(pick(max + 1), 'a');
    for (char& c : text) c = static_cast<char>('a' + pick(2));
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops(pick(4)), pieces(1 + pick(8));
    for (std::string& stop : stops) stop = word(6);
    std::string text;
    for (std::string& piece : pieces) text += piece = word(4);
    EXPECT_EQ(Play(stops, pieces), Oracle(stops, text)) << "round " << round;
  }
}

TEST(StopStringsTest, ALongRunOfNearMissesIsLinear) {
  StopStrings matcher({std::string(5000, 'a') + "b"});
  size_t printed = 0;
  for (int i = 0; i < 200; ++i) printed += matcher.Push(std::string(5000, 'a')).size();
  EXPECT_EQ(printed, 199u * 5000);
}

}  // namespace
}  // namespace lime
