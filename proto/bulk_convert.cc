#include "proto/bulk_convert.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "proto/fields.h"

namespace lime {
namespace {

constexpr size_t kMaxModelName = 512, kMaxPath = 4096;
constexpr int32_t kMaxLayer = 100'000;
constexpr Bytes kMaxDiskBytes = Bytes{1} << 60;
constexpr double kMaxUnusedSeconds = 1e10;
constexpr int64_t kMaxHeldBlocks = 2 * kMaxLayer + 4;

using fields::Printable;
using fields::Within;
using fields::Wrong;

// Protobuf's strings are UTF-8, and a terminal is no place for control characters.
std::string PlainName(const std::string& name) {
  std::string plain = name.substr(0, kMaxModelName);
  std::ranges::replace_if(
      plain, [](char c) { return static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e; }, '?');
  return plain;
}

absl::StatusOr<BlockId> BlockFromProto(const v1::Block& message) {
  LIME_RETURN_IF_ERROR(Within("kind", message.kind(), 0, static_cast<int>(BlockKind::kHead)));
  const auto kind = static_cast<BlockKind>(message.kind());
  const bool layered = kind == BlockKind::kAttention || kind == BlockKind::kMlp;
  LIME_RETURN_IF_ERROR(Within("layer", message.layer(), 0, layered ? kMaxLayer : 0));
  return BlockId{kind, message.layer()};
}

void BlockToProto(BlockId id, v1::Block& into) {
  into.set_kind(static_cast<uint32_t>(id.kind));
  into.set_layer(id.layer);
}

absl::StatusOr<StoreOffer> OfferFromProto(v1::Offer& message) {
  Bytes bytes = static_cast<Bytes>(message.manifest().size() + message.config().size());
  for (const std::string& header : message.headers()) bytes += static_cast<Bytes>(header.size());
  LIME_RETURN_IF_ERROR(Within("offer", bytes, 1, kMaxOfferBytes));
  StoreOffer offer{.model = PlainName(message.model()), .config_json = std::move(*message.mutable_config()), .check = message.check()};
  LIME_ASSIGN_OR_RETURN(offer.manifest, ParseStoreManifest(message.manifest(), "the manifest of the pushed model"));
  for (std::string& header : *message.mutable_headers()) offer.headers.push_back(std::move(header));
  for (const v1::Block& block : message.blocks()) {
    LIME_ASSIGN_OR_RETURN(const BlockId id, BlockFromProto(block));
    offer.blocks.push_back(id);
  }
  LIME_RETURN_IF_ERROR(CheckOffer(offer));
  return offer;
}

absl::StatusOr<PushChunk> ChunkFromProto(v1::Chunk& message) {
  LIME_RETURN_IF_ERROR(Within("position", message.position(), 0, kMaxPushPosition));
  LIME_RETURN_IF_ERROR(Within("data", static_cast<int64_t>(message.data().size()), 1, kMaxPushChunkBytes));
  return PushChunk{.position = message.position(), .data = std::move(*message.mutable_data()), .xxh3 = message.xxh3()};
}

absl::StatusOr<StoredModel> StoredFromProto(const v1::StoredModel& message) {
  LIME_RETURN_IF_ERROR(Printable("name", message.name(), kMaxModelName));
  LIME_RETURN_IF_ERROR(Within("bytes", message.bytes(), 0, kMaxDiskBytes));
  LIME_RETURN_IF_ERROR(Within("blocks", message.blocks(), 0, kMaxPushUnits));
  LIME_RETURN_IF_ERROR(Within("held", message.held(), 0, message.blocks()));
  const double unused = message.unused_seconds();
  if (!(unused >= 0 && unused <= kMaxUnusedSeconds)) return Wrong("field \"unused_seconds\" = ", unused, " is no time");
  return StoredModel{.model = message.model(),
                     .name = message.name(),
                     .bytes = message.bytes(),
                     .held = message.held(),
                     .blocks = message.blocks(),
                     .unused_seconds = unused,
                     .in_use = message.in_use()};
}

absl::StatusOr<PushMissing> MissingFromProto(const v1::Missing& message) {
  LIME_RETURN_IF_ERROR(Within("units", message.units_size(), 0, kMaxPushUnits));
  PushMissing missing;
  for (const int32_t unit : message.units()) {
    LIME_RETURN_IF_ERROR(Within("units", unit, missing.units.empty() ? 0 : missing.units.back() + 1, kMaxPushUnits));
    missing.units.push_back(unit);
  }
  return missing;
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
  for (const BlockId id : offer.blocks) BlockToProto(id, *into.add_blocks());
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
  return Wrong("a push says what is not known here; run the same release everywhere");
}

void ToProto(const StoreContent& content, v1::ListStoreReply& message) {
  message.set_folder(content.folder);
  message.set_free_bytes(content.free);
  message.set_total_bytes(content.total);
  for (const StoredModel& stored : content.models) {
    v1::StoredModel& into = *message.add_models();
    into.set_model(stored.model);
    into.set_name(PlainName(stored.name));
    into.set_bytes(stored.bytes);
    into.set_held(stored.held);
    into.set_blocks(stored.blocks);
    into.set_unused_seconds(stored.unused_seconds);
    into.set_in_use(stored.in_use);
  }
}

absl::StatusOr<StoreContent> FromProto(const v1::ListStoreReply& message) {
  LIME_RETURN_IF_ERROR(Printable("folder", message.folder(), kMaxPath));
  LIME_RETURN_IF_ERROR(Within("total_bytes", message.total_bytes(), 0, kMaxDiskBytes));
  LIME_RETURN_IF_ERROR(Within("free_bytes", message.free_bytes(), 0, message.total_bytes()));
  LIME_RETURN_IF_ERROR(Within("models", message.models_size(), 0, kMaxStoredModels));
  StoreContent content{.folder = message.folder(), .free = message.free_bytes(), .total = message.total_bytes(), .models = {}};
  for (const v1::StoredModel& stored : message.models()) {
    LIME_ASSIGN_OR_RETURN(StoredModel model, StoredFromProto(stored));
    content.models.push_back(std::move(model));
  }
  return content;
}

void ToProto(const PushEvent& event, v1::PushEvent& message) {
  if (const auto* looking = std::get_if<PushLooking>(&event)) {
    message.mutable_looking()->set_done_bytes(looking->done);
    message.mutable_looking()->set_total_bytes(looking->total);
  } else if (const auto* missing = std::get_if<PushMissing>(&event)) {
    message.mutable_missing()->mutable_units()->Add(missing->units.begin(), missing->units.end());
  } else if (const auto* stored = std::get_if<PushStored>(&event)) {
    message.mutable_stored()->set_position(stored->position);
  } else if (const auto* again = std::get_if<PushAgain>(&event)) {
    message.mutable_again()->set_position(again->position);
  } else {
    message.mutable_complete();
  }
}

absl::StatusOr<PushEvent> FromProto(const v1::PushEvent& message) {
  switch (message.what_case()) {
    case v1::PushEvent::kLooking:
      LIME_RETURN_IF_ERROR(Within("total_bytes", message.looking().total_bytes(), 0, kMaxPushPosition));
      LIME_RETURN_IF_ERROR(Within("done_bytes", message.looking().done_bytes(), 0, message.looking().total_bytes()));
      return PushLooking{message.looking().done_bytes(), message.looking().total_bytes()};
    case v1::PushEvent::kMissing: {
      LIME_ASSIGN_OR_RETURN(PushMissing missing, MissingFromProto(message.missing()));
      return missing;
    }
    case v1::PushEvent::kStored:
      LIME_RETURN_IF_ERROR(Within("position", message.stored().position(), 0, kMaxPushPosition));
      return PushStored{message.stored().position()};
    case v1::PushEvent::kAgain:
      LIME_RETURN_IF_ERROR(Within("position", message.again().position(), 0, kMaxPushPosition));
      return PushAgain{message.again().position()};
    case v1::PushEvent::kComplete:
      return PushComplete{};
    case v1::PushEvent::WHAT_NOT_SET:
      break;
  }
  return Wrong("a device says what is not known here; run the same release everywhere");
}

void ToProto(const HoldingsCall& call, v1::HoldingsRequest& message) {
  message.set_weights(call.weights);
  message.set_model(call.model);
}

absl::StatusOr<HoldingsCall> FromProto(const v1::HoldingsRequest& message) {
  LIME_RETURN_IF_ERROR(fields::Printable("weights", message.weights(), kMaxPath));
  return HoldingsCall{.weights = message.weights(), .model = message.model()};
}

void ToProto(const DeviceHoldings& holdings, v1::HoldingsReply& message) {
  message.set_whole(holdings.whole);
  message.set_takes(holdings.takes);
  for (const BlockId id : holdings.blocks) BlockToProto(id, *message.add_blocks());
}

absl::StatusOr<DeviceHoldings> FromProto(const v1::HoldingsReply& message) {
  LIME_RETURN_IF_ERROR(Within("blocks", message.blocks_size(), 0, kMaxHeldBlocks));
  DeviceHoldings holdings{.whole = message.whole(), .takes = message.takes()};
  for (const v1::Block& block : message.blocks()) {
    LIME_ASSIGN_OR_RETURN(const BlockId id, BlockFromProto(block));
    holdings.blocks.push_back(id);
  }
  return holdings;
}

}  // namespace lime
