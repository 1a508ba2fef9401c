// Questions about units and their answers arrive as they were; anything else is refused and reads
// nothing beyond its end.
#include "daemon/logic/hosting/units_message.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<std::byte>& Raw() {
  static const std::vector<std::byte> raw(24, std::byte{7});
  return raw;
}

// Three rows of eight bytes.
UnitsQuery Query() {
  return {.number = 4, .part = 9, .decodes = true, .per_row = 2, .units = {0, 5, 3, -1, 5, 1023}, .rows = Raw()};
}

UnitsAnswer Answer() {
  return {.number = 4, .units = {5, 0}, .results = Raw()};
}

std::string Refusal(const UnitsMessage& message) {
  return std::string(ParseUnitsMessage(Encode(message)).status().message());
}

template <typename Change>
std::string RefusalOfQuery(const Change& change) {
  UnitsQuery query = Query();
  change(query);
  return Refusal(query);
}

TEST(UnitsMessageTest, AQuestionArrivesAsItWas) {
  const std::vector<std::byte> bytes = Encode(Query());
  EXPECT_TRUE(IsUnitsMessage(bytes));
  const auto parsed = ParseUnitsMessage(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const auto& query = std::get<UnitsQuery>(*parsed);
  EXPECT_EQ(query.number, 4);
  EXPECT_EQ(query.part, 9);
  EXPECT_TRUE(query.decodes);
  EXPECT_EQ(query.num_rows(), 3);
  EXPECT_THAT(query.units, ElementsAre(0, 5, 3, -1, 5, 1023));
  EXPECT_EQ(std::vector(query.rows.begin(), query.rows.end()), Raw());
  EXPECT_EQ(query.rows.data() + query.rows.size(), bytes.data() + bytes.size()) << "not copied";
}

TEST(UnitsMessageTest, AnAnswerArrivesAsItWas) {
  const std::vector<std::byte> bytes = Encode(Answer());
  EXPECT_TRUE(IsUnitsMessage(bytes));
  const auto parsed = ParseUnitsMessage(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const auto& answer = std::get<UnitsAnswer>(*parsed);
  EXPECT_EQ(answer.number, 4);
  EXPECT_THAT(answer.units, ElementsAre(5, 0));
  EXPECT_EQ(std::vector(answer.results.begin(), answer.results.end()), Raw());
}

TEST(UnitsMessageTest, AGuessArrivesAsItWas) {
  const std::vector<std::byte> bytes = Encode(UnitsGuess{.part = 9, .units = {5, 0, 1023}});
  EXPECT_TRUE(IsUnitsMessage(bytes));
  const auto parsed = ParseUnitsMessage(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const auto& guess = std::get<UnitsGuess>(*parsed);
  EXPECT_EQ(guess.part, 9);
  EXPECT_THAT(guess.units, ElementsAre(5, 0, 1023));
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(ParseUnitsMessage(std::span(bytes).first(length)).ok()) << length;
  }
  std::vector<std::byte> longer = bytes;
  longer.push_back({});
  EXPECT_THAT(std::string(ParseUnitsMessage(longer).status().message()), HasSubstr("1 bytes follow a guess"));
}

TEST(UnitsMessageTest, WhatIsOutOfBoundsIsRefusedWithItsReason) {
  EXPECT_THAT(RefusalOfQuery([](UnitsQuery& q) { q.number = -1; }), HasSubstr("number -1 is negative"));
  EXPECT_THAT(RefusalOfQuery([](UnitsQuery& q) { q.part = -1; }), HasSubstr("part -1"));
  EXPECT_THAT(RefusalOfQuery([](UnitsQuery& q) { q.part = 1 << 30; }), HasSubstr("larger than any plan"));
  EXPECT_THAT(RefusalOfQuery([](UnitsQuery& q) { q.per_row = 0; }), HasSubstr("rows have 0 units"));
  EXPECT_THAT(RefusalOfQuery([](UnitsQuery& q) { q.per_row = 65; }), HasSubstr("rows have 65 units"));
  EXPECT_THAT(RefusalOfQuery([](UnitsQuery& q) { q.per_row = 4; }), HasSubstr("6 units are not 4 for each row"));
  EXPECT_THAT(RefusalOfQuery([](UnitsQuery& q) { q.units = {5, 5, 3, -1, 5, 6}; }), HasSubstr("unit 5 of a row follows 5"));
  EXPECT_THAT(RefusalOfQuery([](UnitsQuery& q) { q.units = {-1, 5, 3, -1, 5, 6}; }), HasSubstr("unit 5 of a row follows -1"));
  EXPECT_THAT(RefusalOfQuery([](UnitsQuery& q) { q.units = {-1, -1, 3, -1, 5, 6}; }), HasSubstr("a row has no units"));
  EXPECT_THAT(RefusalOfQuery([](UnitsQuery& q) { q.units = {0, 1024, 3, -1, 5, 6}; }), HasSubstr("unit 1024"));
  EXPECT_THAT(RefusalOfQuery([](UnitsQuery& q) { q.units = {}; }), HasSubstr("names 0 units"));
  EXPECT_THAT(RefusalOfQuery([](UnitsQuery& q) { q.rows = {}; }), HasSubstr("0 bytes are not the input of 3 rows"));
  EXPECT_THAT(RefusalOfQuery([](UnitsQuery& q) { q.rows = q.rows.first(23); }), HasSubstr("23 bytes are not the input of 3 rows"));
  EXPECT_THAT(Refusal(UnitsAnswer{.number = -2, .units = {0}, .results = Raw()}), HasSubstr("number -2"));
  EXPECT_THAT(Refusal(UnitsAnswer{.units = {}, .results = Raw()}), HasSubstr("names 0 units"));
  EXPECT_THAT(Refusal(UnitsAnswer{.units = {-1}, .results = Raw()}), HasSubstr("unit -1 is outside"));
  EXPECT_THAT(Refusal(UnitsAnswer{.units = {1024}, .results = Raw()}), HasSubstr("unit 1024 is outside"));
  EXPECT_THAT(Refusal(UnitsAnswer{.units = {1}, .results = std::span(Raw()).first(6)}), HasSubstr("6 bytes are not results"));
  EXPECT_THAT(Refusal(UnitsGuess{.part = -1, .units = {0}}), HasSubstr("part -1"));
  EXPECT_THAT(Refusal(UnitsGuess{.units = {}}), HasSubstr("names 0 units"));
  EXPECT_THAT(Refusal(UnitsGuess{.units = {1024}}), HasSubstr("unit 1024 is outside"));
  EXPECT_THAT(Refusal(UnitsGuess{.units = std::vector<int32_t>(65, 1)}), HasSubstr("names 65 units, need 1 to 64"));
}

TEST(UnitsMessageTest, AMessageThatIsCutOrOfAnotherKindIsRefused) {
  for (const UnitsMessage& message : std::vector<UnitsMessage>{Query(), Answer()}) {
    std::vector<std::byte> bytes = Encode(message);
    const size_t header = bytes.size() - Raw().size();
    for (size_t length = 0; length <= header; ++length) {
      const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
      EXPECT_FALSE(ParseUnitsMessage(cut).ok()) << length;
    }
    ++reinterpret_cast<unsigned char&>(bytes[0]);
    EXPECT_FALSE(IsUnitsMessage(bytes));
    EXPECT_THAT(std::string(ParseUnitsMessage(bytes).status().message()), HasSubstr("is unknown"));
  }
  EXPECT_FALSE(IsUnitsMessage({}));
}

}  // namespace
}  // namespace lime
