#include "proto/convert/bulk_convert.h"

#include "absl/strings/str_cat.h"
#include "daemon/stores/store_source.h"
#include "gmock/gmock.h"
#include "lime/v1/bulk.pb.h"
#include "tests/daemon/weights/block_store_fixture.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<PushRequest> Received(const v1::PushRequest& message) {
  v1::PushRequest received;
  EXPECT_TRUE(received.ParseFromString(message.SerializeAsString()));
  return FromProto(received);
}

TEST_F(PreparedTest, AnOfferReturnsAsItWas) {
  const auto source = StoreSource::Open(model_);
  ASSERT_TRUE(source.ok()) << source.status();
  const StoreOffer offer = (*source)->OfferOf({{BlockKind::kMlp, 1}, {BlockKind::kHead, 0}}, true);
  EXPECT_EQ(offer.model, "model");
  v1::PushRequest message;
  ToProto(offer, message);
  const auto back = Received(message);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(std::get<StoreOffer>(*back), offer);
}

TEST_F(PreparedTest, AnOfferOutOfBoundsIsRefused) {
  const auto source = StoreSource::Open(model_);
  ASSERT_TRUE(source.ok()) << source.status();
  const auto refused = [&](const auto& change, const std::string& words) {
    v1::PushRequest message;
    ToProto((*source)->OfferOf({{BlockKind::kMlp, 1}}, true), message);
    change(*message.mutable_offer());
    EXPECT_THAT(std::string(Received(message).status().message()), HasSubstr(words));
  };
  refused([](v1::Offer& o) { o.mutable_blocks(0)->set_kind(kNumBlockKinds); }, absl::StrCat("\"kind\" = ", kNumBlockKinds));
  refused([](v1::Offer& o) { o.mutable_blocks(0)->set_kind(0xffffffff); }, "\"kind\"");
  refused([](v1::Offer& o) { o.mutable_blocks(0)->set_layer(-1); }, "\"layer\" = -1");
  refused([](v1::Offer& o) { o.mutable_blocks(0)->set_layer(2); }, "no block mlp 2");
  refused([](v1::Offer& o) { o.set_manifest("{}"); }, "the manifest of the pushed model");
  refused([](v1::Offer& o) { o.set_config(std::string(kMaxOfferBytes, ' ')); }, "\"offer\"");
  refused([](v1::Offer& o) { o.clear_headers(); }, "headers were sent");
}

TEST(BulkConvertTest, WhatADeviceHoldsReturnsAndIsBounded) {
  const StoreContent content{
      .folder = "/data/\xff",
      .free = 5,
      .total = 9,
      .models = {{.model = 7, .name = "llama", .bytes = 3, .held = 1, .blocks = 2, .unused_seconds = 4.5, .in_use = true}}};
  v1::ListStoreReply message, received;
  ToProto(content, message);
  ASSERT_TRUE(received.ParseFromString(message.SerializeAsString()));
  EXPECT_EQ(*FromProto(received), content);
  const auto refused = [&](const auto& change, const std::string& words) {
    v1::ListStoreReply wrong = message;
    change(wrong);
    EXPECT_THAT(std::string(FromProto(wrong).status().message()), HasSubstr(words));
  };
  refused([](v1::ListStoreReply& m) { m.set_free_bytes(10); }, "\"free_bytes\" = 10");
  refused([](v1::ListStoreReply& m) { m.set_folder("a\033"); }, "\"folder\"");
  refused([](v1::ListStoreReply& m) { m.mutable_models(0)->set_held(3); }, "\"held\" = 3");
  refused([](v1::ListStoreReply& m) { m.mutable_models(0)->set_unused_seconds(-1); }, "\"unused_seconds\"");
  refused([](v1::ListStoreReply& m) { m.mutable_models(0)->set_bytes(-1); }, "\"bytes\"");
}

TEST(BulkConvertTest, ChunksReturnAndThoseOutOfBoundsAreRefused) {
  const PushChunk chunk{.position = 5, .data = "abc", .xxh3 = 7};
  v1::PushRequest message;
  ToProto(chunk, message);
  EXPECT_EQ(std::get<PushChunk>(*Received(message)), chunk);
  EXPECT_FALSE(chunk.intact());
  message.mutable_chunk()->set_position(-1);
  EXPECT_FALSE(Received(message).ok());
  message.mutable_chunk()->set_position(0);
  message.mutable_chunk()->clear_data();
  EXPECT_FALSE(Received(message).ok());
  message.mutable_chunk()->set_data(std::string(static_cast<size_t>(kMaxPushChunkBytes) + 1, 'x'));
  EXPECT_FALSE(Received(message).ok());
  EXPECT_FALSE(Received(v1::PushRequest()).ok());
}

TEST(BulkConvertTest, EventsReturnAndThoseOutOfBoundsAreRefused) {
  for (const PushEvent& event : {PushEvent(PushLooking{1, 2}), PushEvent(PushMissing{{0, 3, 9}}), PushEvent(PushMissing{}),
                                 PushEvent(PushStored{4}), PushEvent(PushAgain{5}), PushEvent(PushComplete{})}) {
    v1::PushEvent message;
    ToProto(event, message);
    EXPECT_EQ(*FromProto(message), event);
  }
  const auto refused = [](const PushEvent& event) {
    v1::PushEvent message;
    ToProto(event, message);
    return !FromProto(message).ok();
  };
  EXPECT_TRUE(refused(PushLooking{3, 2}));
  EXPECT_TRUE(refused(PushLooking{-1, 2}));
  EXPECT_TRUE(refused(PushMissing{{3, 3}}));
  EXPECT_TRUE(refused(PushMissing{{-1}}));
  EXPECT_TRUE(refused(PushStored{-1}));
  EXPECT_TRUE(refused(PushAgain{INT64_MAX}));
  EXPECT_FALSE(FromProto(v1::PushEvent()).ok());
}

TEST(BulkConvertTest, HoldingsReturnAndThoseOutOfBoundsAreRefused) {
  const HoldingsCall call{.weights = "/data/llama", .model = ~uint64_t{0}};
  v1::HoldingsRequest request;
  ToProto(call, request);
  EXPECT_EQ(*FromProto(request), call);
  request.set_weights("/data\n");
  EXPECT_FALSE(FromProto(request).ok());
  const DeviceHoldings holdings{.blocks = {{BlockKind::kEmbedding, 0}, {BlockKind::kMlp, 3}, {BlockKind::kLinearAttention, 5}},
                                .accepts_pushes = true,
                                .neurons = {.bundles = {{.layer = 0}, {.layer = 3, .decider = {8, 64}}}, .predictor = "0123456789abcdef"}};
  v1::HoldingsReply reply;
  ToProto(holdings, reply);
  EXPECT_EQ(*FromProto(reply), holdings);
  const auto refused = [&](auto spoil) {
    v1::HoldingsReply spoilt = reply;
    spoil(*spoilt.mutable_bundles(1), spoilt);
    return !FromProto(spoilt).ok();
  };
  EXPECT_TRUE(refused([](v1::HeldBundles& held, v1::HoldingsReply&) { held.set_layer(-1); }));
  EXPECT_TRUE(refused([](v1::HeldBundles& held, v1::HoldingsReply&) { held.set_decider_bits(9); }));
  EXPECT_TRUE(refused([](v1::HeldBundles& held, v1::HoldingsReply&) { held.set_decider_directions(5000); }));
  EXPECT_TRUE(refused([](v1::HeldBundles&, v1::HoldingsReply& all) { all.set_predictor("0123456789abcdef0"); }));
  EXPECT_TRUE(refused([](v1::HeldBundles&, v1::HoldingsReply& all) { all.set_predictor("\x1b"); }));
  reply.mutable_blocks(1)->set_layer(-1);
  EXPECT_FALSE(FromProto(reply).ok());
  for (const uint32_t kind : {uint32_t{kNumBlockKinds}, ~uint32_t{0}}) {
    v1::HoldingsReply unknown;
    ToProto(holdings, unknown);
    unknown.mutable_blocks(1)->set_kind(kind);
    EXPECT_THAT(std::string(FromProto(unknown).status().message()), ::testing::HasSubstr("\"kind\""));
  }
  EXPECT_EQ(*FromProto(v1::HoldingsReply()), DeviceHoldings());
}

}  // namespace
}  // namespace lime
