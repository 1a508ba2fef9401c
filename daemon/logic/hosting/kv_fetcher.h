// Decides which lent pieces of KV a device, the owner, fetches back from its host for a while, and
// where they lie. This is a cache whose future uses are known: layers are used one after another,
// and again from the first in every step.
//
//   wanted ── a place is free, or its piece is used later ──► on its way ── all bytes are there
//   ──► there ── another piece is wanted, and this one is used the latest ──► gone
//
// Pure: which bytes lie where; the owner has memory and links. The host keeps all pieces, so any
// piece that is not there can be fetched.
//
// Thread: the owner's.   Invariants: a place has at most one layer of a piece. A piece that is on
// its way, or in use by attention, keeps its place.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "daemon/logic/hosting/kv_message.h"
#include "planner/base/bytes.h"
#include "planner/base/check.h"
#include "planner/base/status.h"
#include "planner/plan/hosting/kv_on_host.h"
#include "planner/plan/kv_spill.h"

namespace lime {

class KvFetcher {
 public:
  struct Shape {
    int64_t layers = 0;                                   // of the owner
    int64_t sequences = 0;                                // slots for them
    Bytes piece_bytes = 0;                                // of one layer
    int64_t places = 0;                                   // each for one layer of a piece
    Bytes bytes() const { return places * piece_bytes; }  // of memory
  };
  struct Placed {
    Bytes offset = 0;         // in memory, where the bytes go
    bool ends_piece = false;  // the layer's piece is complete with them
  };

  // REQUIRES: all numbers are positive.
  explicit KvFetcher(const Shape& shape)
      : shape_(shape), sequences_(static_cast<size_t>(shape.sequences)), places_(static_cast<size_t>(shape.places)) {
    LIME_CHECK(shape.layers > 0 && shape.sequences > 0 && shape.piece_bytes > 0 && shape.places > 0);
    where_.reserve(places_.size());
  }

  // ---- Wanted pieces

  // Attention sees the pieces [first, end) of this life of a sequence, and the host has them.
  void SetSequence(int32_t sequence, int64_t life, int64_t first, int64_t end) {
    Sequence& what = sequences_.at(static_cast<size_t>(sequence));
    const Sequence now{.life = life, .first = first, .end = end};
    all_there_ = all_there_ && what == now;
    what = now;
  }

  // `count` layers, spread evenly, are fetched ahead of their use.
  void SetLayers(int64_t count) {
    LIME_CHECK(count >= 0 && count <= shape_.layers) << count << " of " << shape_.layers;
    all_there_ = all_there_ && count == fetched_layers_;
    fetched_layers_ = count;
  }

  int64_t num_layers() const { return fetched_layers_; }
  bool Fetches(int32_t layer) const { return IsAmong(layer, fetched_layers_, shape_.layers); }

  // The layer that is used next. The others follow in order, and then again from the first.
  void SetNext(int32_t layer) { next_ = layer; }
  // A computation waits for all pieces of this layer. They come first, even if SetLayers leaves the
  // layer out. Nothing: no computation waits.
  void SetAwaited(std::optional<int32_t> layer) {
    all_there_ = all_there_ && (!layer || Fetches(*layer));
    awaited_ = layer;
  }

  // Attention uses this layer now, so its fetched pieces stay. Nothing: none is in use.
  void SetInUse(std::optional<int32_t> layer) { in_use_ = layer; }

  // ---- On its way

  // The next fetch. Nothing while kKvFetchesUnderWay are under way, if all wanted pieces are here,
  // or if the next one has no room.
  std::optional<KvFetch> Begin() {
    if (all_there_ || std::ssize(under_way_) >= kKvFetchesUnderWay) return std::nullopt;
    for (int64_t turn = awaited_ ? kAtOnce : 0; turn < shape_.layers; ++turn) {
      const int32_t layer = turn == kAtOnce ? *awaited_ : static_cast<int32_t>((next_ + turn) % shape_.layers);
      if (turn != kAtOnce && (!Fetches(layer) || layer == awaited_)) continue;
      for (int32_t s = 0; s < shape_.sequences; ++s) {
        const Sequence& sequence = sequences_[static_cast<size_t>(s)];
        for (int64_t piece = sequence.first; piece < sequence.end; ++piece) {
          const KvFetch what{.sequence = s, .life = sequence.life, .layer = layer, .piece = piece};
          if (where_.contains(KeyOf(what))) continue;
          const std::optional<int64_t> place = PlaceFor(turn);
          return place ? std::optional(StartFetch(*place, what)) : std::nullopt;
        }
      }
    }
    all_there_ = true;
    return std::nullopt;
  }

  // Takes bytes of a fetch. InvalidArgument if no fetch is under way, or if the bytes do not follow
  // the ones before; nothing has changed then.
  absl::StatusOr<Placed> On(const KvFetched& fetched) {
    if (under_way_.empty()) return Invalid("fetched KV: bytes of fetch ", fetched.number, " arrived, but no fetch is under way");
    const int64_t i = under_way_.front();
    Place& place = places_[static_cast<size_t>(i)];
    if (fetched.number != place.what.number)
      return Invalid("fetched KV: bytes of fetch ", fetched.number, " arrived, expected fetch ", place.what.number);
    if (fetched.offset != place.there || fetched.bytes.empty() || std::ssize(fetched.bytes) > shape_.piece_bytes - place.there)
      return Invalid("fetched KV: ", fetched.bytes.size(), " bytes at offset ", fetched.offset, " do not follow the ", place.there,
                     " bytes of ", shape_.piece_bytes);
    const Placed placed{.offset = i * shape_.piece_bytes + place.there,
                        .ends_piece = place.there + std::ssize(fetched.bytes) == shape_.piece_bytes};
    place.there += std::ssize(fetched.bytes);
    if (placed.ends_piece) under_way_.pop_front();
    return placed;
  }

  bool under_way() const { return !under_way_.empty(); }

  // ---- Fetched pieces

  // Where one layer of a piece lies in memory. Nothing if it is not complete.
  std::optional<Bytes> Find(int32_t layer, int32_t sequence, int64_t life, int64_t piece) const {
    const auto found = where_.find(Key{layer, sequence, life, piece});
    if (found == where_.end() || places_[static_cast<size_t>(found->second)].there < shape_.piece_bytes) return std::nullopt;
    return found->second * shape_.piece_bytes;
  }

  // Bytes of a layer's pieces [first, end) of a sequence that have not come yet.
  Bytes Missing(int32_t layer, int32_t sequence, int64_t life, int64_t first, int64_t end) const {
    Bytes missing = 0;
    for (int64_t piece = first; piece < end; ++piece) {
      const auto found = where_.find(Key{layer, sequence, life, piece});
      missing += shape_.piece_bytes - (found == where_.end() ? 0 : places_[static_cast<size_t>(found->second)].there);
    }
    return missing;
  }

 private:
  static constexpr int64_t kAtOnce = -1;                                  // before every layer
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();  // after every layer

  struct Sequence {
    int64_t life = 0;
    int64_t first = 0, end = 0;
    friend bool operator==(const Sequence&, const Sequence&) = default;
  };
  struct Place {
    bool occupied = false;
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

  bool IsWanted(const KvFetch& what) const {
    const Sequence& sequence = sequences_[static_cast<size_t>(what.sequence)];
    return what.life == sequence.life && what.piece >= sequence.first && what.piece < sequence.end &&
           (Fetches(what.layer) || what.layer == awaited_);
  }

  // How many layers are used before this one.
  int64_t Distance(int32_t layer) const {
    if (layer == awaited_) return kAtOnce;
    return (layer - next_ + shape_.layers) % shape_.layers;
  }

  // A place for a piece that is used after `distance` layers: a free place, or else the place whose
  // piece is used last of all, if that is after the new piece.
  std::optional<int64_t> PlaceFor(int64_t distance) const {
    std::optional<int64_t> best;
    int64_t latest = distance;
    for (int64_t i = 0; i < shape_.places; ++i) {
      const Place& place = places_[static_cast<size_t>(i)];
      if (!place.occupied) return i;
      if (place.there < shape_.piece_bytes || place.what.layer == in_use_) continue;
      const int64_t later = IsWanted(place.what) ? Distance(place.what.layer) : kNever;
      if (later > latest) best = i, latest = later;
    }
    return best;
  }

  KvFetch StartFetch(int64_t i, const KvFetch& what) {
    Place& place = places_[static_cast<size_t>(i)];
    if (place.occupied) where_.erase(KeyOf(place.what));
    place = {.occupied = true, .what = what};
    place.what.number = next_number_++;
    where_[KeyOf(what)] = i;
    under_way_.push_back(i);
    return place.what;
  }

  const Shape shape_;
  std::vector<Sequence> sequences_;
  int64_t fetched_layers_ = 0;
  int32_t next_ = 0;
  std::optional<int32_t> awaited_, in_use_;  // layers
  std::vector<Place> places_;
  absl::flat_hash_map<Key, int64_t> where_;  // place
  std::deque<int64_t> under_way_;            // places, in order of their fetches
  int64_t next_number_ = 0;
  bool all_there_ = false;  // all wanted pieces are here, or on their way
};

}  // namespace lime
