#include "proto/convert/bulk_convert.h"

#include <xxhash.h>

#include <utility>

#include "lime/v1/bulk.pb.h"
#include "proto/convert/message_fields.h"

namespace lime {
namespace {

constexpr size_t kMaxPath = 4096, kMaxHash = 16;
constexpr Bytes kMaxDiskBytes = Bytes{1} << 60;
constexpr double kMaxUnusedSeconds = 1e10;
constexpr int64_t kMaxHeldBlocks = 2 * fields::kMaxLayer + 4;

using fields::PlainName;
using fields::Within;
using fields::Wrong;

}  // namespace

static void List(MessageFields& f, BlockId& id, v1::Block& m) {
  f.Block(LIME_FIELD(m, kind), LIME_FIELD(m, layer), id);
}

namespace {

absl::StatusOr<StoreOffer> OfferFromProto(v1::Offer& message) {
  Bytes bytes = static_cast<Bytes>(message.manifest().size() + message.config().size());
  for (const std::string& header : message.headers()) bytes += static_cast<Bytes>(header.size());
  LIME_RETURN_IF_ERROR(Within("offer", bytes, 1, kMaxOfferBytes));
  StoreOffer offer{.model = PlainName(message.model()), .config_json = std::move(*message.mutable_config()), .check = message.check()};
  LIME_ASSIGN_OR_RETURN(offer.manifest, ParseStoreManifest(message.manifest(), "the manifest of the pushed model"));
  for (std::string& header : *message.mutable_headers()) offer.headers.push_back(std::move(header));
  for (const v1::Block& block : message.blocks()) {
    LIME_ASSIGN_OR_RETURN(offer.blocks.emplace_back(), ReadMessage<BlockId>(block));
  }
  LIME_RETURN_IF_ERROR(CheckOffer(offer));
  return offer;
}

absl::StatusOr<PushChunk> ChunkFromProto(v1::Chunk& message) {
  LIME_RETURN_IF_ERROR(Within("position", message.position(), 0, kMaxPushPosition));
  LIME_RETURN_IF_ERROR(Within("data", static_cast<int64_t>(message.data().size()), 1, kMaxPushChunkBytes));
  return PushChunk{.position = message.position(), .data = std::move(*message.mutable_data()), .xxh3 = message.xxh3()};
}

}  // namespace

bool PushChunk::intact() const {
  return XXH3_64bits(data.data(), data.size()) == xxh3;
}

void ToProto(const StoreOffer& offer, v1::PushRequest& message) {
  v1::Offer& into = *message.mutable_offer();
  into.set_model(PlainName(offer.model));
  into.set_manifest(StoreManifestText(offer.manifest));
  into.set_config(offer.config_json);
  for (const std::string& header : offer.headers) into.add_headers(header);
  for (const BlockId id : offer.blocks) WriteMessage(id, *into.add_blocks());
  into.set_check(offer.check);
}

void ToProto(PushChunk chunk, v1::PushRequest& message) {
  v1::Chunk& into = *message.mutable_chunk();
  into.set_position(chunk.position);
  into.set_data(std::move(chunk.data));
  into.set_xxh3(chunk.xxh3);
}

absl::StatusOr<PushRequest> FromProto(v1::PushRequest& message) {
  switch (message.what_case()) {
    case v1::PushRequest::kOffer: {
      LIME_ASSIGN_OR_RETURN(StoreOffer offer, OfferFromProto(*message.mutable_offer()));
      return offer;
    }
    case v1::PushRequest::kChunk: {
      LIME_ASSIGN_OR_RETURN(PushChunk chunk, ChunkFromProto(*message.mutable_chunk()));
      return chunk;
    }
    case v1::PushRequest::WHAT_NOT_SET:
      break;
  }
  return Wrong("a push sent a message of an unknown kind; run the same release everywhere");
}

static void List(MessageFields& f, StoredModel& stored, v1::StoredModel& m) {
  f.Any(LIME_FIELD(m, model), stored.model);
  f.Text(LIME_FIELD(m, name), stored.name, fields::kMaxName, PlainName);
  f.Number(LIME_FIELD(m, bytes), stored.bytes, 0, kMaxDiskBytes);
  f.Number(LIME_FIELD(m, blocks), stored.blocks, 0, kMaxPushUnits);
  f.Number(LIME_FIELD(m, held), stored.held, 0, stored.blocks);
  f.Number(LIME_FIELD(m, unused_seconds), stored.unused_seconds, 0, kMaxUnusedSeconds);
  f.Any(LIME_FIELD(m, in_use), stored.in_use);
}

static void List(MessageFields& f, StoreContent& content, v1::ListStoreReply& m) {
  f.Text(LIME_FIELD(m, folder), content.folder, kMaxPath);
  f.Number(LIME_FIELD(m, total_bytes), content.total, 0, kMaxDiskBytes);
  f.Number(LIME_FIELD(m, free_bytes), content.free, 0, content.total);
  f.Each("models", content.models, m.mutable_models(), 0, kMaxStoredModels);
}
LIME_CONVERT(StoreContent, v1::ListStoreReply)

static void List(MessageFields& f, PushLooking& looking, v1::Looking& m) {
  f.Number(LIME_FIELD(m, total_bytes), looking.total, 0, kMaxPushPosition);
  f.Number(LIME_FIELD(m, done_bytes), looking.done, 0, looking.total);
}

static void List(MessageFields& f, PushMissing& missing, v1::Missing& m) {
  f.Ascending("units", missing.units, m.mutable_units(), kMaxPushUnits);
}

static void List(MessageFields& f, PushStored& stored, v1::Stored& m) {
  f.Number(LIME_FIELD(m, position), stored.position, 0, kMaxPushPosition);
}

static void List(MessageFields& f, PushAgain& again, v1::Again& m) {
  f.Number(LIME_FIELD(m, position), again.position, 0, kMaxPushPosition);
}

static void List(MessageFields&, PushComplete&, v1::Complete&) {}

static void List(MessageFields& f, PushEvent& event, v1::PushEvent& m) {
  f.Case<PushLooking>(LIME_PART(m, looking), event);
  f.Case<PushMissing>(LIME_PART(m, missing), event);
  f.Case<PushStored>(LIME_PART(m, stored), event);
  f.Case<PushAgain>(LIME_PART(m, again), event);
  f.Case<PushComplete>(LIME_PART(m, complete), event);
  f.NoOther("a device sent a message of an unknown kind; run the same release everywhere");
}
LIME_CONVERT(PushEvent, v1::PushEvent)

static void List(MessageFields& f, HoldingsCall& call, v1::HoldingsRequest& m) {
  f.Text(LIME_FIELD(m, weights), call.weights, kMaxPath);
  f.Any(LIME_FIELD(m, model), call.model);
}
LIME_CONVERT(HoldingsCall, v1::HoldingsRequest)

static void List(MessageFields& f, HeldBundles& held, v1::HeldBundles& m) {
  f.Number(LIME_FIELD(m, layer), held.layer, 0, fields::kMaxLayer);
  f.Number(LIME_FIELD(m, decider_bits), held.decider.bits, 0, kMostDeciderBits);
  f.Number(LIME_FIELD(m, decider_directions), held.decider.directions, 0, kMostDeciderDirections);
}

static void List(MessageFields& f, DeviceHoldings& holdings, v1::HoldingsReply& m) {
  f.Any(LIME_FIELD(m, whole), holdings.whole);
  f.Any(LIME_FIELD(m, takes), holdings.accepts_pushes);
  f.Each("blocks", holdings.blocks, m.mutable_blocks(), 0, kMaxHeldBlocks);
  f.Each("bundles", holdings.neurons.bundles, m.mutable_bundles(), 0, fields::kMaxLayer);
  f.Text(LIME_FIELD(m, predictor), holdings.neurons.predictor, kMaxHash);
}
LIME_CONVERT(DeviceHoldings, v1::HoldingsReply)

}  // namespace lime
