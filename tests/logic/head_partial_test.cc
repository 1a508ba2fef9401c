// What one part of the head tells the next is enough for every token, and what a peer says it tells
// does no harm.
#include "daemon/logic/head_partial.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<std::byte> Bytes32(const std::vector<uint32_t>& numbers) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(numbers));
  return {bytes.begin(), bytes.end()};
}

// Through the wire: the first `ids` of each row of `logits` [used.size(), vocab].
std::vector<std::vector<float>> Decoded(const std::vector<float>& logits, int64_t vocab, int64_t ids, const std::vector<int64_t>& used) {
  const std::vector<std::byte> hidden(24, std::byte{7});
  const std::vector<std::byte> payload = HeadPartialEncoder().Encode(logits, vocab, ids, used, hidden);
  EXPECT_LE(std::ssize(payload), MostLogitBytes(1, std::ssize(used), ids) + 24);
  const auto partial = ParseHeadPartial(payload, ids, std::ssize(used));
  EXPECT_TRUE(partial.ok()) << partial.status();
  if (!partial.ok()) return {};
  EXPECT_TRUE(std::ranges::equal(partial->hidden, hidden));
  EXPECT_EQ(partial->rows.size(), used.size());
  std::vector<std::vector<float>> decoded;
  for (size_t row = 0; row < partial->rows.size(); ++row) {
    EXPECT_GE(partial->rows[row].count(), std::min(used[row], ids));
    partial->rows[row].CopyTo(decoded.emplace_back(static_cast<size_t>(ids), 5.0f));
  }
  return decoded;
}

TEST(HeadPartialTest, TheLargestAndTheirEqualsOrAllThatAreKnown) {
  const std::vector<float> logits = {1, 3, -2, 3, 0, 2, 9, 9};  // the last two are not known yet
  EXPECT_THAT(Decoded(logits, 8, 6, {1})[0], ElementsAre(-kInfinity, 3, -kInfinity, 3, -kInfinity, -kInfinity));
  EXPECT_THAT(Decoded(logits, 8, 6, {3})[0], ElementsAre(-kInfinity, 3, -kInfinity, 3, -kInfinity, 2));
  EXPECT_THAT(Decoded(logits, 8, 6, {4})[0], ElementsAre(1, 3, -2, 3, 0, 2)) << "more than half of them are shorter as all";
  EXPECT_THAT(Decoded(logits, 8, 6, {INT64_MAX})[0], ElementsAre(1, 3, -2, 3, 0, 2));
}

TEST(HeadPartialTest, RowsHaveEachTheirOwn) {
  const std::vector<float> logits = {0, 1, 2, 3, 9, 3, 2, 1, 0, 9};
  const auto decoded = Decoded(logits, 5, 4, {INT64_MAX, 1});
  EXPECT_THAT(decoded[0], ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(decoded[1], ElementsAre(3, -kInfinity, -kInfinity, -kInfinity));
  EXPECT_TRUE(Decoded({}, 5, 4, {}).empty());
}

TEST(HeadPartialTest, LogitsThatSamplingRefusesAreSentUnchanged) {
  const auto nan = Decoded({0, kNaN, 2, 3}, 4, 4, {1})[0];
  EXPECT_TRUE(std::isnan(nan[1]));
  EXPECT_EQ(nan[2], 2);
  EXPECT_THAT(Decoded({0, kInfinity, 2, 3}, 4, 4, {1})[0], ElementsAre(0, kInfinity, 2, 3));
  EXPECT_THAT(Decoded(std::vector<float>(4, -kInfinity), 4, 4, {1})[0], testing::Each(-kInfinity));
  EXPECT_THAT(Decoded(std::vector<float>(4, 1), 4, 4, {1})[0], testing::Each(1)) << "too many equals for pairs";
}

TEST(HeadPartialTest, WhatIsNoneIsRefusedWithASentence) {
  const auto refusal = [](const std::vector<uint32_t>& numbers, int64_t ids = 8) {
    return std::string(ParseHeadPartial(Bytes32(numbers), ids, 2).status().message());
  };
  const uint32_t one = std::bit_cast<uint32_t>(1.0f);
  ASSERT_EQ(refusal({1, 2, 3, one, 7, one}), "");
  ASSERT_EQ(refusal({2, 1, 0, one, kAllIds, 0, 0}, 2), "");
  EXPECT_THAT(refusal({}), HasSubstr("ends 4 bytes early"));
  EXPECT_THAT(refusal({3}), HasSubstr("logits of 3 rows, the limit is 2"));
  EXPECT_THAT(refusal({UINT32_MAX}), HasSubstr("the limit is 2"));
  EXPECT_THAT(refusal({1}), HasSubstr("ends 4 bytes early"));
  EXPECT_THAT(refusal({1, 0}), HasSubstr("logits of 0 of 8 ids"));
  EXPECT_THAT(refusal({1, 5}), HasSubstr("logits of 5 of 8 ids"));  // all of them were shorter
  EXPECT_THAT(refusal({1, kAllIds - 1}), HasSubstr("logits of 4294967294 of 8 ids"));
  EXPECT_THAT(refusal({1, 2, 3, one, 7}), HasSubstr("ends 4 bytes early"));
  EXPECT_THAT(refusal({1, kAllIds, one}), HasSubstr("ends 28 bytes early"));
  EXPECT_THAT(refusal({1, kAllIds}, int64_t{1} << 40), HasSubstr("early"));
  EXPECT_THAT(refusal({1, 2, 3, one, 3, one}), HasSubstr("id 3 is not one of 4 to 7"));
  EXPECT_THAT(refusal({1, 1, 8, one}), HasSubstr("id 8 is not one of 0 to 7"));
  EXPECT_THAT(refusal({1, 1, 3, std::bit_cast<uint32_t>(kNaN)}), HasSubstr("the logit of id 3"));
  EXPECT_THAT(refusal({1, 1, 3, std::bit_cast<uint32_t>(kInfinity)}), HasSubstr("the logit of id 3"));
}

TEST(HeadPartialTest, RandomBytesStayWithinTheirBounds) {
  std::mt19937_64 random(2);
  std::vector<float> logits(64);
  for (float& logit : logits) logit = static_cast<float>(random() % 1000);
  const std::vector<std::byte> hidden(16);
  for (int i = 0; i < 100'000; ++i) {
    const std::vector<int64_t> used = {static_cast<int64_t>(random() % 40), INT64_MAX};
    std::vector<std::byte> payload = HeadPartialEncoder().Encode(logits, 32, 32, used, hidden);
    payload.resize(payload.size() - random() % 20);
    for (int changes = static_cast<int>(random() % 4); changes > 0; --changes) payload[random() % 24] = static_cast<std::byte>(random());
    payload.shrink_to_fit();  // so that AddressSanitizer sees the end
    const auto partial = ParseHeadPartial(payload, 32, 2);
    if (!partial.ok()) continue;
    std::vector<float> decoded(32);
    for (const LogitsSoFar& row : partial->rows) row.CopyTo(decoded);
    ASSERT_LE(partial->hidden.size(), payload.size());
  }
}

}  // namespace
}  // namespace lime
