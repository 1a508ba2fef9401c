// What is sent arrives as it was; anything else is refused and reads nothing beyond its end.
#include "common/activation.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

ActivationHeader Example() {
  return {.epoch = 3, .step = int64_t{1} << 40, .stage = 7, .microbatch = 2, .payload = Payload::kHidden, .bytes = 4096};
}

TEST(ActivationTest, AHeaderArrivesAsItWas) {
  for (const Payload payload : {Payload::kToken, Payload::kHidden, Payload::kHeadPartial}) {
    ActivationHeader header = Example();
    header.payload = payload;
    const auto parsed = ParseActivationHeader(Encode(header));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, header);
  }
}

TEST(ActivationTest, AProbeHasItsSizeAndBelongsToNoStep) {
  const ActivationHeader probe{.epoch = 3, .bytes = kProbeBytes - static_cast<int64_t>(kActivationHeaderBytes), .probe = true};
  const auto parsed = ParseActivationHeader(Encode(probe));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, probe);
  const auto refused = [&](auto change) {
    ActivationHeader header = probe;
    change(header);
    return !ParseActivationHeader(Encode(header)).ok();
  };
  EXPECT_TRUE(refused([](ActivationHeader& h) { ++h.bytes; }));
  EXPECT_TRUE(refused([](ActivationHeader& h) { h.bytes = 0; }));
  EXPECT_TRUE(refused([](ActivationHeader& h) { h.bytes += kProbeBytes; }));
  EXPECT_FALSE(refused([](ActivationHeader& h) { h.bytes += kLargeProbeBytes - kProbeBytes; }));
  EXPECT_TRUE(refused([](ActivationHeader& h) { h.step = 1; }));
  EXPECT_TRUE(refused([](ActivationHeader& h) { h.stage = 1; }));
  EXPECT_TRUE(refused([](ActivationHeader& h) { h.microbatch = 1; }));
}

TEST(ActivationTest, ArrivalsReturnAndWhatIsNoneIsRefused) {
  const std::vector<int64_t> arrivals = {0, 1, int64_t{1} << 55};
  const std::vector<std::byte> bytes = EncodeArrivals(arrivals);
  ASSERT_EQ(bytes.size(), 24u);
  EXPECT_EQ(*ParseArrivals(bytes), arrivals);
  EXPECT_FALSE(ParseArrivals({}).ok());
  EXPECT_FALSE(ParseArrivals(std::span(bytes).first(23)).ok());
  EXPECT_FALSE(ParseArrivals(EncodeArrivals(std::vector<int64_t>{-1})).ok());
  EXPECT_FALSE(ParseArrivals(EncodeArrivals(std::vector<int64_t>{(int64_t{1} << 55) + 1})).ok());
  EXPECT_TRUE(ParseArrivals(EncodeArrivals(std::vector<int64_t>(kMostArrivals))).ok());
  EXPECT_FALSE(ParseArrivals(EncodeArrivals(std::vector<int64_t>(kMostArrivals + 1))).ok());
}

TEST(ActivationTest, TheWireFormatIsLittleEndianWhateverTheMachine) {
  const auto bytes = Encode(Example());
  EXPECT_EQ(std::to_integer<int>(bytes[0]), 'L');
  EXPECT_EQ(std::to_integer<int>(bytes[3]), 'E');
  EXPECT_EQ(std::to_integer<int>(bytes[8]), 3);          // epoch
  EXPECT_EQ(std::to_integer<int>(bytes[16 + 5]), 1);     // step, bit 40
  EXPECT_EQ(std::to_integer<int>(bytes[40 + 1]), 0x10);  // 4096 bytes
}

TEST(ActivationTest, WhatIsNoHeaderIsRefusedWithASentence) {
  const auto refusal = [](auto change) {
    ActivationHeader header = Example();
    change(header);
    return std::string(ParseActivationHeader(Encode(header)).status().message());
  };
  EXPECT_THAT(refusal([](ActivationHeader& h) { h.epoch = -1; }), HasSubstr("negative"));
  EXPECT_THAT(refusal([](ActivationHeader& h) { h.stage = 1 << 30; }), HasSubstr("larger than any plan allows"));
  EXPECT_THAT(refusal([](ActivationHeader& h) { h.bytes = kMaxActivationBytes + 1; }), HasSubstr("the limit is"));
  auto bytes = Encode(Example());
  EXPECT_FALSE(ParseActivationHeader(std::span(bytes).first(kActivationHeaderBytes - 1)).ok());
  bytes[4] = std::byte{9};
  EXPECT_THAT(std::string(ParseActivationHeader(bytes).status().message()), HasSubstr("version 9"));
  bytes[0] = std::byte{0};
  EXPECT_THAT(std::string(ParseActivationHeader(bytes).status().message()), HasSubstr("is not an activation"));
}

TEST(ActivationTest, RandomBytesAreAHeaderOnlyIfTheyEncodeToThemselves) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 200'000; ++i) {
    auto bytes = Encode(Example());
    for (int changes = 1 + static_cast<int>(random() % 4); changes > 0; --changes)
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    const auto header = ParseActivationHeader(bytes);
    if (header.ok()) {
      EXPECT_EQ(Encode(*header), bytes);
    }
  }
}

TEST(ActivationTest, SampledTokensArriveAsTheyWereAndAreBounded) {
  const std::vector<SampledToken> tokens = {{.sequence = 0, .position = 17, .token = 128255}, {.sequence = 15, .position = 1, .token = 0}};
  const std::vector<std::byte> bytes = Encode(tokens);
  EXPECT_EQ(*ParseSampledTokens(bytes, 2), tokens);
  EXPECT_TRUE(ParseSampledTokens({}, 0)->empty());
  EXPECT_FALSE(ParseSampledTokens(bytes, 1).ok());
  EXPECT_FALSE(ParseSampledTokens(std::span(bytes).first(bytes.size() - 1), 2).ok());
  std::vector<std::byte> negative = bytes;
  negative[3] = std::byte{0x80};
  EXPECT_FALSE(ParseSampledTokens(negative, 2).ok());
}

}  // namespace
}  // namespace lime
