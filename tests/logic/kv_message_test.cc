// What is sent arrives as it was; anything else is refused and reads nothing beyond its end.
#include "daemon/logic/hosting/kv_message.h"

#include <algorithm>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/instance/instance.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<std::byte>& Raw() {
  static const std::vector<std::byte> raw = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}, std::byte{5}, std::byte{6},
                                             std::byte{7}, std::byte{8}, std::byte{9}, std::byte{1}, std::byte{2}, std::byte{3}};
  return raw;
}

KvChunk Chunk() {
  return {.number = int64_t{1} << 40, .sequence = 3, .life = 5, .layer = 7, .piece = 11, .offset = 13, .bytes = Raw()};
}

// Three rows, each of one value.
KvQuery Query() {
  return {
      .number = 9,
      .layer = 2,
      .sequences = {{.sequence = 4, .life = 6, .pieces = 8, .positions = {2048, 2049}}, {.sequence = 0, .pieces = 1, .positions = {300}}},
      .queries = Raw()};
}

KvFetch Fetch() {
  return {.number = 21, .sequence = 3, .life = 5, .layer = 7, .piece = 11};
}

std::vector<KvMessage> Examples() {
  return {Chunk(),
          KvStored{.number = 17},
          KvFree{.sequence = 2, .life = 3},
          Query(),
          KvRecords{.number = 9, .records = Raw()},
          Fetch(),
          KvFetched{.number = 21, .offset = 13, .bytes = Raw()}};
}

std::string Refusal(const KvMessage& message) {
  return std::string(ParseKvMessage(Encode(message)).status().message());
}

template <typename Kind>
Kind Returned(const KvMessage& message, const std::vector<std::byte>& bytes) {
  const auto parsed = ParseKvMessage(bytes);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->index(), message.index());
  return std::get<Kind>(*parsed);
}

bool IsIn(std::span<const std::byte> part, const std::vector<std::byte>& bytes) {
  return part.data() >= bytes.data() && part.data() + part.size() == bytes.data() + bytes.size();
}

TEST(KvMessageTest, AMessageArrivesAsItWasAndItsBytesAreNotCopied) {
  {
    const std::vector<std::byte> bytes = Encode(Chunk());
    const auto chunk = Returned<KvChunk>(Chunk(), bytes);
    EXPECT_EQ(chunk.number, int64_t{1} << 40);
    EXPECT_EQ(chunk.sequence, 3);
    EXPECT_EQ(chunk.life, 5);
    EXPECT_EQ(chunk.layer, 7);
    EXPECT_EQ(chunk.piece, 11);
    EXPECT_EQ(chunk.offset, 13);
    EXPECT_TRUE(std::ranges::equal(chunk.bytes, Raw()));
    EXPECT_TRUE(IsIn(chunk.bytes, bytes));
  }
  {
    const KvFree free{.sequence = 2, .life = 3};
    const auto returned = Returned<KvFree>(free, Encode(free));
    EXPECT_EQ(returned.sequence, 2);
    EXPECT_EQ(returned.life, 3);
  }
  {
    const std::vector<std::byte> bytes = Encode(Query());
    const auto query = Returned<KvQuery>(Query(), bytes);
    EXPECT_EQ(query.number, 9);
    EXPECT_EQ(query.layer, 2);
    ASSERT_EQ(query.sequences.size(), 2u);
    EXPECT_EQ(query.sequences[0].sequence, 4);
    EXPECT_EQ(query.sequences[0].life, 6);
    EXPECT_EQ(query.sequences[0].pieces, 8);
    EXPECT_THAT(query.sequences[0].positions, ElementsAre(2048, 2049));
    EXPECT_THAT(query.sequences[1].positions, ElementsAre(300));
    EXPECT_TRUE(std::ranges::equal(query.queries, Raw()));
    EXPECT_TRUE(IsIn(query.queries, bytes));
  }
  EXPECT_EQ(Returned<KvStored>(KvStored{.number = 17}, Encode(KvStored{.number = 17})).number, 17);
  const KvRecords records{.number = 9, .records = Raw()};
  const std::vector<std::byte> bytes = Encode(records);
  EXPECT_EQ(Returned<KvRecords>(records, bytes).number, 9);
  EXPECT_TRUE(std::ranges::equal(Returned<KvRecords>(records, bytes).records, Raw()));
  {
    const auto fetch = Returned<KvFetch>(Fetch(), Encode(Fetch()));
    EXPECT_EQ(std::tuple(fetch.number, fetch.sequence, fetch.life, fetch.layer, fetch.piece), std::tuple(21, 3, 5, 7, 11));
    const KvFetched fetched{.number = 21, .offset = 13, .bytes = Raw()};
    const std::vector<std::byte> sent = Encode(fetched);
    const auto returned = Returned<KvFetched>(fetched, sent);
    EXPECT_EQ(std::pair(returned.number, returned.offset), std::pair(int64_t{21}, Bytes{13}));
    EXPECT_TRUE(std::ranges::equal(returned.bytes, Raw()));
    EXPECT_TRUE(IsIn(returned.bytes, sent));
  }
}

TEST(KvMessageTest, TheWireFormatIsLittleEndianWhateverTheMachine) {
  const auto bytes = Encode(Chunk());
  ASSERT_EQ(bytes.size(), 44 + Raw().size());
  const std::vector<std::pair<size_t, int>> expected = {{0, 1}, {4 + 5, 1}, {12, 3}, {16, 5}, {24, 7}, {28, 11}, {36, 13}, {44, 1}};
  for (const auto& [at, value] : expected) EXPECT_EQ(std::to_integer<int>(bytes[at]), value) << "byte " << at;
  std::vector<int> kinds;
  for (const KvMessage& message : Examples()) kinds.push_back(std::to_integer<int>(Encode(message)[0]));
  EXPECT_THAT(kinds, ElementsAre(1, 2, 3, 4, 5, 6, 7));
}

TEST(KvMessageTest, WhatEndsEarlyIsRefused) {
  for (const KvMessage& message : Examples()) {
    const std::vector<std::byte> bytes = Encode(message);
    const bool has_none =
        std::holds_alternative<KvStored>(message) || std::holds_alternative<KvFree>(message) || std::holds_alternative<KvFetch>(message);
    const size_t raw = has_none ? 0 : Raw().size();
    for (size_t size = 0; size < bytes.size() - raw; ++size) {
      const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<int64_t>(size));  // a sanitizer sees what is read behind
      EXPECT_EQ(ParseKvMessage(cut).status().code(), absl::StatusCode::kInvalidArgument) << size << " bytes of kind " << message.index();
    }
  }
}

TEST(KvMessageTest, WhatGoesOnBehindItsEndOrIsOfNoKindIsRefused) {
  std::vector<std::byte> bytes = Encode(KvStored{.number = 17});
  bytes.push_back(std::byte{0});
  EXPECT_THAT(std::string(ParseKvMessage(bytes).status().message()), HasSubstr("1 bytes follow its end"));
  bytes = Encode(KvFree{});
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(ParseKvMessage(bytes).ok());
  for (const int kind : {0, 8, 255}) {
    bytes = Encode(KvStored{.number = 17});
    bytes[0] = static_cast<std::byte>(kind);
    EXPECT_THAT(std::string(ParseKvMessage(bytes).status().message()), HasSubstr("kind "));
  }
}

TEST(KvMessageTest, NumbersOfAChunkOutOfBoundsAreRefused) {
  const auto refusal = [](auto change) {
    KvChunk chunk = Chunk();
    change(chunk);
    return Refusal(chunk);
  };
  EXPECT_EQ(refusal([](KvChunk&) {}), "");
  EXPECT_THAT(refusal([](KvChunk& c) { c.number = -1; }), HasSubstr("number -1"));
  EXPECT_THAT(refusal([](KvChunk& c) { c.sequence = -1; }), HasSubstr("sequence -1"));
  EXPECT_THAT(refusal([](KvChunk& c) { c.sequence = kMaxKvSequences; }), HasSubstr("sequence 4096"));
  EXPECT_EQ(refusal([](KvChunk& c) { c.sequence = kMaxKvSequences - 1; }), "");
  EXPECT_THAT(refusal([](KvChunk& c) { c.life = -1; }), HasSubstr("life -1"));
  EXPECT_THAT(refusal([](KvChunk& c) { c.layer = -1; }), HasSubstr("layer -1"));
  EXPECT_THAT(refusal([](KvChunk& c) { c.layer = kMaxPlanBlocks; }), HasSubstr("layer 65536"));
  EXPECT_THAT(refusal([](KvChunk& c) { c.piece = -1; }), HasSubstr("piece -1"));
  EXPECT_THAT(refusal([](KvChunk& c) { c.piece = kMaxKvPieces; }), HasSubstr("piece 1048576"));
  EXPECT_THAT(refusal([](KvChunk& c) { c.offset = -1; }), HasSubstr("12 bytes at offset -1"));
  EXPECT_THAT(refusal([](KvChunk& c) { c.offset = std::numeric_limits<int64_t>::max(); }), HasSubstr("12 bytes at offset "));
  EXPECT_THAT(refusal([](KvChunk& c) { c.offset = kMaxKvLayerPieceBytes - 11; }), HasSubstr("12 bytes at offset "));
  EXPECT_EQ(refusal([](KvChunk& c) { c.offset = kMaxKvLayerPieceBytes - 12; }), "");
  EXPECT_THAT(refusal([](KvChunk& c) { c.bytes = {}; }), HasSubstr("a chunk is empty"));
}

TEST(KvMessageTest, NumbersOfAFetchOutOfBoundsAreRefused) {
  const auto refusal = [](auto change) {
    KvFetch fetch = Fetch();
    change(fetch);
    return Refusal(fetch);
  };
  EXPECT_EQ(refusal([](KvFetch&) {}), "");
  EXPECT_THAT(refusal([](KvFetch& f) { f.number = -1; }), HasSubstr("number -1"));
  EXPECT_THAT(refusal([](KvFetch& f) { f.sequence = kMaxKvSequences; }), HasSubstr("sequence 4096"));
  EXPECT_THAT(refusal([](KvFetch& f) { f.life = -1; }), HasSubstr("life -1"));
  EXPECT_THAT(refusal([](KvFetch& f) { f.layer = -1; }), HasSubstr("layer -1"));
  EXPECT_THAT(refusal([](KvFetch& f) { f.piece = kMaxKvPieces; }), HasSubstr("piece 1048576"));
  EXPECT_THAT(Refusal(KvFetched{.number = -1, .bytes = Raw()}), HasSubstr("number -1"));
  EXPECT_THAT(Refusal(KvFetched{.offset = -1, .bytes = Raw()}), HasSubstr("12 bytes at offset -1"));
  EXPECT_THAT(Refusal(KvFetched{}), HasSubstr("a chunk is empty"));
}

TEST(KvMessageTest, NumbersOfAnswersOutOfBoundsAreRefused) {
  EXPECT_THAT(Refusal(KvStored{.number = -1}), HasSubstr("number -1"));
  EXPECT_THAT(Refusal(KvFree{.sequence = kMaxKvSequences}), HasSubstr("sequence 4096"));
  EXPECT_THAT(Refusal(KvFree{.life = -1}), HasSubstr("life -1"));
  EXPECT_THAT(Refusal(KvRecords{.number = -1}), HasSubstr("number -1"));
}

TEST(KvMessageTest, NumbersOfAQueryOutOfBoundsAreRefused) {
  const auto refusal = [](auto change) {
    KvQuery query = Query();
    change(query);
    return Refusal(query);
  };
  EXPECT_EQ(refusal([](KvQuery&) {}), "");
  EXPECT_THAT(refusal([](KvQuery& q) { q.number = -1; }), HasSubstr("number -1"));
  EXPECT_THAT(refusal([](KvQuery& q) { q.layer = kMaxPlanBlocks; }), HasSubstr("layer 65536"));
  EXPECT_THAT(refusal([](KvQuery& q) { q.sequences.clear(); }), HasSubstr("a query names 0 sequences"));
  EXPECT_THAT(refusal([](KvQuery& q) { q.sequences.resize(kMaxKvSequences + 1); }), HasSubstr("a query names 4097 sequences"));
  EXPECT_THAT(refusal([](KvQuery& q) { q.sequences[1].sequence = -1; }), HasSubstr("sequence -1"));
  EXPECT_THAT(refusal([](KvQuery& q) { q.sequences[0].life = -1; }), HasSubstr("life -1"));
  EXPECT_THAT(refusal([](KvQuery& q) { q.sequences[0].pieces = 0; }), HasSubstr("0 pieces"));
  EXPECT_THAT(refusal([](KvQuery& q) { q.sequences[0].pieces = kMaxKvPieces + 1; }), HasSubstr("1048577 pieces"));
  EXPECT_THAT(refusal([](KvQuery& q) { q.sequences[0].positions.clear(); }), HasSubstr("a sequence has 0 rows"));
  EXPECT_THAT(refusal([](KvQuery& q) { q.sequences[0].positions[1] = -1; }), HasSubstr("position -1"));
  EXPECT_THAT(refusal([](KvQuery& q) { q.queries = {}; }), HasSubstr("0 bytes of queries do not match 3 rows"));
  EXPECT_THAT(refusal([](KvQuery& q) { q.queries = q.queries.first(11); }), HasSubstr("11 bytes of queries do not match 3 rows"));
  EXPECT_THAT(refusal([](KvQuery& q) { q.sequences[0].positions.pop_back(); }), HasSubstr("12 bytes of queries do not match 2 rows"));
}

TEST(KvMessageTest, AllSequencesOfAQueryTogetherHaveABoundOfRows) {
  const std::vector<std::byte> values(4 * (kMaxKvQueryRows + 1));
  KvQuery query{.sequences = {{.pieces = 1, .positions = std::vector<int32_t>(kMaxKvQueryRows - 1)}, {.pieces = 1, .positions = {0}}},
                .queries = std::span(values).first(4 * kMaxKvQueryRows)};
  EXPECT_EQ(Refusal(query), "");
  query.sequences[1].positions.push_back(0);
  query.queries = values;
  EXPECT_THAT(Refusal(query), HasSubstr("a sequence has 2 rows, but a query may have 1 "));
}

TEST(KvMessageTest, ACountThatTheBytesCannotHoldIsRefusedBeforeThereIsRoomForIt) {
  std::vector<std::byte> bytes = Encode(Query());
  bytes.resize(20 + 20 + 8);  // up to the first sequence's positions, which its count says more of
  bytes[20 + 16] = std::byte{3};
  EXPECT_THAT(std::string(ParseKvMessage(bytes).status().message()), HasSubstr("positions of 3 rows do not fit in 8 bytes"));
}

TEST(KvMessageTest, WhateverComesIsRefusedOrReturnsAsItIs) {
  std::mt19937_64 random(1);
  const std::vector<KvMessage> examples = Examples();
  int accepted = 0, refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> bytes = Encode(examples[random() % examples.size()]);
    for (uint64_t changes = random() % 4; changes > 0; --changes) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 1));
    const auto parsed = ParseKvMessage(bytes);
    if (!parsed.ok()) {
      ASSERT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
      ++refused;
      continue;
    }
    ASSERT_EQ(Encode(*parsed), bytes);
    ++accepted;
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace lime
