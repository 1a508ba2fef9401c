// Messages between a device, the owner, and the host that keeps KV for it: pieces
// (daemon/logic/pages/kv_away.h) in both directions, and queries about them.
//
// On the wire: a header for each kind, little-endian, then raw bytes as in memory. Hostile input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/model/model_config.h"
#include "planner/plan/plan.h"

namespace lime {

// Owner to host: a chunk of one layer of a piece.
struct KvChunk {
  int64_t number = 0;    // counted from 0, over all chunks from this owner to this host
  int32_t sequence = 0;  // slot
  int64_t life = 0;      // the sequence's number in the slot (KvAway::life)
  int32_t layer = 0;     // index among the owner's layers
  int64_t piece = 0;     // of the sequence, from 0
  Bytes offset = 0;      // in the layer's piece
  std::span<const std::byte> bytes;
};

// Host to owner: one layer of a piece is complete.
struct KvStored {
  int64_t number = 0;  // of its last chunk
};

// Owner to host: pieces of this life of the slot, and of all lives before, are free.
struct KvFree {
  int32_t sequence = 0;
  int64_t life = 0;
};

// Owner to host: attend to the first pieces of these sequences.
struct KvQuery {
  struct Sequence {
    int32_t sequence = 0;  // slot
    int64_t life = 0;
    int32_t pieces = 0;              // from the first on
    std::vector<int32_t> positions;  // of its rows
  };
  int64_t number = 0;
  int32_t layer = 0;  // index among the owner's layers
  std::vector<Sequence> sequences;
  std::span<const std::byte> queries;  // fp32 [rows of all sequences in order, heads * head_dim]
};

// Host to owner: the answer to a query.
struct KvRecords {
  int64_t number = 0;  // of the query
  std::span<const std::byte> records;
};

// Owner to host: send one layer of a piece back. The host still keeps it.
struct KvFetch {
  int64_t number = 0;    // counted from 0, over all fetches of this owner from this host
  int32_t sequence = 0;  // slot
  int64_t life = 0;
  int32_t layer = 0;  // index among the owner's layers
  int64_t piece = 0;
};

// Host to owner: a chunk of a fetched piece.
struct KvFetched {
  int64_t number = 0;  // of the fetch
  Bytes offset = 0;    // in the layer's piece
  std::span<const std::byte> bytes;
};

using KvMessage = std::variant<KvChunk, KvStored, KvFree, KvQuery, KvRecords, KvFetch, KvFetched>;

// True for a message that a host sends.
inline bool IsAnswer(const KvMessage& message) {
  return std::holds_alternative<KvStored>(message) || std::holds_alternative<KvRecords>(message) ||
         std::holds_alternative<KvFetched>(message);
}

inline constexpr int64_t kMaxKvSequences = 4096;          // slots, and sequences of one query
inline constexpr int64_t kMaxKvQueryRows = 1 << 16;       // of all its sequences
inline constexpr int64_t kMaxKvPieces = 1 << 20;          // of a sequence
inline constexpr Bytes kMaxKvLayerPieceBytes = 1 * kGiB;  // of a piece, one layer

std::vector<std::byte> Encode(const KvMessage& message);
// A view of `payload`: spans point into it and may be unaligned. InvalidArgument for an unknown
// kind, a wrong length, numbers out of bounds, an empty chunk or query, and queries that have no
// whole number of fp32 values for each row.
absl::StatusOr<KvMessage> ParseKvMessage(std::span<const std::byte> payload);

// Checks that queries about KV of a plan, and their answers, fit in a message, and that the plan
// has not too many slots.
absl::Status CheckKvMessages(const Plan& plan, const ModelConfig& config);
// Memory for the queries and records of one micro-batch, once in memory and once on their way. A
// host has this for each of its owners, and also the pieces that go back to the owner.
Bytes AskingBytes(const Plan& plan, int32_t device, const ModelConfig& config);

}  // namespace lime
