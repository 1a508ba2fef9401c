// Which pieces of KV that a host keeps for this device, the owner, come back to it for a while, and where they lie then: a cache of which
// the future is known, since layers are used one after another and again from the first in every step.
//
//   wanted ── a slot is free, or has what is used later ──► on its way ── all bytes are there ──► there ── used, and wanted the latest ──►
//   gone
//
// Pure: which bytes lie where; memory and links are the owner's. The host keeps all of it, so whatever is not there may be asked for.
//
// Thread: the owner's.   Invariants: a slot has at most one layer's piece; what is on its way, or being attended to, keeps its slot.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "daemon/logic/kv_message.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

class KvFetcher {
 public:
  struct Shape {
    int64_t layers = 0;                                  // of the owner
    int64_t sequences = 0;                               // slots for them
    Bytes piece_bytes = 0;                               // of one layer
    int64_t slots = 0;                                   // each of one layer's piece
    Bytes bytes() const { return slots * piece_bytes; }  // of memory
  };
  struct Placed {
    Bytes offset = 0;         // in memory, where the bytes go
    bool ends_piece = false;  // a layer's piece is whole with them
  };

  // REQUIRES: all of it is positive.
  explicit KvFetcher(const Shape& shape);

  // ---- What is wanted

  // Attention sees the pieces [first, end) of this life of a sequence, and the host has them.
  void SetSequence(int32_t sequence, int64_t life, int64_t first, int64_t end);
  // So many of the layers, spread evenly over them, are fetched ahead of their use.
  void SetLayers(int64_t count);
  int64_t num_layers() const { return fetched_layers_; }
  bool Fetches(int32_t layer) const;
  // The layer to be used next; others after it in order, and then again from the first.
  void SetNext(int32_t layer) { next_ = layer; }
  // A computation stands still for all of this layer: it is fetched ahead of all others, whether or not SetLayers would. Nothing: none
  // does.
  void SetAwaited(std::optional<int32_t> layer);
  // What is there of this layer stays, since it is being attended to. Nothing: none is.
  void SetInUse(std::optional<int32_t> layer) { in_use_ = layer; }

  // ---- On its way

  // The next to be fetched. Nothing while kKvFetchesUnderWay are, or where what is wanted next is there, or has no room.
  std::optional<KvFetch> Begin();
  // InvalidArgument, and nothing has changed, for what was not to be fetched, and for bytes that do not follow those that came.
  absl::StatusOr<Placed> On(const KvFetched& fetched);
  bool under_way() const { return !under_way_.empty(); }

  // ---- What is there

  // Where a layer's piece lies in memory; nothing where it is not whole.
  std::optional<Bytes> Find(int32_t layer, int32_t sequence, int64_t life, int64_t piece) const;
  // Of a layer's pieces [first, end) of a sequence, what has still to come.
  Bytes Missing(int32_t layer, int32_t sequence, int64_t life, int64_t first, int64_t end) const;

 private:
  struct Sequence {
    int64_t life = 0;
    int64_t first = 0, end = 0;
    friend bool operator==(const Sequence&, const Sequence&) = default;
  };
  struct Slot {
    bool taken = false;
    KvFetch what;     // number: of its fetch
    Bytes there = 0;  // bytes that have come
  };
  struct Key {
    int32_t layer = 0, sequence = 0;
    int64_t life = 0, piece = 0;
    friend bool operator==(const Key&, const Key&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const Key& k) {
      return H::combine(std::move(h), k.layer, k.sequence, k.life, k.piece);
    }
  };
  static Key KeyOf(const KvFetch& what) { return {what.layer, what.sequence, what.life, what.piece}; }

  bool IsWanted(const KvFetch& what) const;
  int64_t Distance(int32_t layer) const;
  std::optional<int64_t> SlotFor(int64_t distance) const;
  KvFetch Take(int64_t slot, const KvFetch& what);

  const Shape shape_;
  std::vector<Sequence> sequences_;
  int64_t fetched_layers_ = 0;
  int32_t next_ = 0;
  std::optional<int32_t> awaited_, in_use_;  // layers
  std::vector<Slot> slots_;
  absl::flat_hash_map<Key, int64_t> where_;  // slot
  std::deque<int64_t> under_way_;            // slots, in order of their fetches
  int64_t next_number_ = 0;
  bool all_there_ = false;  // of what is wanted, or on its way
};

}  // namespace lime
