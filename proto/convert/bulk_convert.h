// Conversion of the messages of bulk.proto to and from our types, like convert.h for control.proto.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "daemon/formats/push_units.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/sparse_parts.h"
#include "proto/convert/messages.h"

namespace lime {

inline constexpr Bytes kMaxPushChunkBytes = 4 * kMiB;
inline constexpr int64_t kMaxPushUnits = int64_t{1} << 22;
inline constexpr int64_t kMaxPushPosition = int64_t{1} << 52;

struct PushChunk {
  int64_t position = 0;
  std::string data;
  uint64_t xxh3 = 0;

  bool intact() const;
  friend bool operator==(const PushChunk&, const PushChunk&) = default;
};
using PushRequest = std::variant<StoreOffer, PushChunk>;
void ToProto(const StoreOffer& offer, v1::PushRequest& message);
void ToProto(PushChunk chunk, v1::PushRequest& message);
// Moves data out of `message`. A returned offer has passed CheckOffer.
absl::StatusOr<PushRequest> FromProto(v1::PushRequest& message);

struct PushLooking {
  Bytes done = 0, total = 0;
  friend bool operator==(const PushLooking&, const PushLooking&) = default;
};
struct PushMissing {
  std::vector<int32_t> units;
  friend bool operator==(const PushMissing&, const PushMissing&) = default;
};
struct PushStored {
  int64_t position = 0;
  friend bool operator==(const PushStored&, const PushStored&) = default;
};
struct PushAgain {
  int64_t position = 0;
  friend bool operator==(const PushAgain&, const PushAgain&) = default;
};
struct PushComplete {
  friend bool operator==(const PushComplete&, const PushComplete&) = default;
};
using PushEvent = std::variant<PushLooking, PushMissing, PushStored, PushAgain, PushComplete>;
void ToProto(const PushEvent& event, v1::PushEvent& message);
absl::StatusOr<PushEvent> FromProto(const v1::PushEvent& message);

// ---- The content of a store

inline constexpr int64_t kMaxStoredModels = 100'000;

struct StoredModel {
  uint64_t model = 0;         // digest
  std::string name;           // for people; empty: unknown
  Bytes bytes = 0;            // used on the disk
  int32_t held = 0;           // complete blocks
  int32_t blocks = 0;         // of the model; 0: unknown, because its push stopped at the start
  double unused_seconds = 0;  // since it was last pushed or loaded
  bool in_use = false;        // by the installed plan

  friend bool operator==(const StoredModel&, const StoredModel&) = default;
};
struct StoreContent {
  std::string folder;         // empty: the device accepts no weights
  Bytes free = 0, total = 0;  // of its disk
  std::vector<StoredModel> models;

  friend bool operator==(const StoreContent&, const StoreContent&) = default;
};
void ToProto(const StoreContent& content, v1::ListStoreReply& message);
absl::StatusOr<StoreContent> FromProto(const v1::ListStoreReply& message);
// ---- Available blocks

struct HoldingsCall {
  std::string weights;  // folder on the device; empty: its own
  uint64_t model = 0;   // digest; 0: unknown
  friend bool operator==(const HoldingsCall&, const HoldingsCall&) = default;
};
void ToProto(const HoldingsCall& call, v1::HoldingsRequest& message);
absl::StatusOr<HoldingsCall> FromProto(const v1::HoldingsRequest& message);

// The weights that an installation would find on a device.
struct DeviceHoldings {
  bool whole = false;           // a folder with the whole model
  std::vector<BlockId> blocks;  // else the pushed blocks
  bool accepts_pushes = false;  // it has a store for pushed weights
  NeuronFiles neurons;          // in the folder with the whole model
  friend bool operator==(const DeviceHoldings&, const DeviceHoldings&) = default;
};
void ToProto(const DeviceHoldings& holdings, v1::HoldingsReply& message);
absl::StatusOr<DeviceHoldings> FromProto(const v1::HoldingsReply& message);

}  // namespace lime
