// Decides where a host keeps the pieces of KV that one other device, the owner, has lent to it.
// Pure: places and offsets; the memory is the caller's.
//
// A place has one piece in all layers of the owner, [layers][piece_bytes]. A piece comes one layer
// after another, each in chunks, in order. The pieces of a sequence come from the first on. The
// message that a sequence has ended may overtake chunks of the sequence; a chunk never overtakes
// the message. A chunk that comes after the message is dropped, but answered as stored, since the
// owner waits for the answer.
//
// Thread: the caller's.   Invariant: a place has at most one piece, and a sequence has pieces of
// one life only.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/logic/hosting/kv_message.h"
#include "planner/base/bytes.h"
#include "planner/base/check.h"
#include "planner/base/status.h"

namespace lime {

class KvHost {
 public:
  struct Shape {
    int64_t layers = 0;     // of the owner
    int64_t sequences = 0;  // slots for them, on the owner
    int64_t pieces_per_sequence = 0;
    Bytes piece_bytes = 0;  // of one layer
    int64_t places = 0;
    Bytes bytes() const { return places * layers * piece_bytes; }  // of memory
  };
  struct Placed {
    std::optional<Bytes> offset;  // where the chunk's bytes go; nothing: they are dropped
    // The layer's piece is complete: answer KvStored once the bytes are in place.
    bool ends_layer = false;
  };

  explicit KvHost(const Shape& shape) : shape_(shape), sequences_(static_cast<size_t>(shape.sequences)) {
    LIME_CHECK(shape.layers > 0 && shape.piece_bytes > 0 && shape.places >= 0);
    for (int64_t place = shape.places - 1; place >= 0; --place) free_.push_back(place);
  }

  // Takes the next chunk. InvalidArgument if it is not the next one, is out of bounds, or is of a
  // life before one that has begun. ResourceExhausted if no place is free for its piece. After an
  // error nothing has changed.
  absl::StatusOr<Placed> OnChunk(const KvChunk& chunk) {
    if (chunk.number != next_number_) return Invalid("lent KV: chunk ", chunk.number, " arrived, expected chunk ", next_number_);
    LIME_RETURN_IF_ERROR(CheckBounds(chunk));
    if (!GoesOn(chunk)) LIME_RETURN_IF_ERROR(BeginPiece(chunk));
    ++next_number_;
    Sequence& sequence = sequences_[static_cast<size_t>(chunk.sequence)];
    const bool alive = IsAlive(chunk.sequence, chunk.life);
    Placed placed;
    if (alive) placed.offset = Offset(sequence.places.back(), chunk.layer) + chunk.offset;
    next_->offset += std::ssize(chunk.bytes);
    placed.ends_layer = next_->offset == shape_.piece_bytes;
    if (!placed.ends_layer) return placed;
    ++next_->layer, next_->offset = 0;
    if (next_->layer == shape_.layers) {
      next_.reset();
      if (alive) ++sequence.stored;
    }
    return placed;
  }

  // Takes over a sequence's first pieces from the previous plan, in its first life, before any
  // chunk. ResourceExhausted if too few places are free.  REQUIRES: the sequence has none
  absl::Status TakeOver(int32_t sequence, int64_t pieces) {
    LIME_RETURN_IF_ERROR(CheckSequence(sequence, 0));
    Sequence& of = sequences_[static_cast<size_t>(sequence)];
    LIME_CHECK(of.begun < 0 && of.places.empty()) << "sequence " << sequence;
    if (pieces > std::ssize(free_) || pieces > shape_.pieces_per_sequence)
      return absl::ResourceExhaustedError(
          absl::StrCat("lent KV: ", pieces, " pieces of sequence ", sequence, " need places, but only ", free_.size(), " are free"));
    for (; of.stored < pieces; ++of.stored) {
      of.places.push_back(free_.back());
      free_.pop_back();
    }
    of.begun = 0;
    return absl::OkStatus();
  }

  // Frees all pieces of the sequence up to this life. InvalidArgument if out of bounds.
  absl::Status OnFree(int32_t sequence, int64_t life) {
    LIME_RETURN_IF_ERROR(CheckSequence(sequence, life));
    End(sequences_[static_cast<size_t>(sequence)], life);
    return absl::OkStatus();
  }

  // The offsets of one layer of the sequence's first `count` pieces. InvalidArgument if out of
  // bounds. FailedPrecondition if fewer pieces are stored, or pieces of another life.
  absl::StatusOr<std::vector<Bytes>> Pieces(int32_t sequence, int64_t life, int32_t layer, int64_t count) const {
    LIME_RETURN_IF_ERROR(CheckSequence(sequence, life));
    LIME_RETURN_IF_ERROR(CheckLayer(layer));
    if (count < 0 || count > shape_.pieces_per_sequence)
      return Invalid("lent KV: the message counts ", count, " pieces of a sequence, the limit is ", shape_.pieces_per_sequence);
    const Sequence& of = sequences_[static_cast<size_t>(sequence)];
    if (life - 1 != of.ended || count > of.stored)
      return absl::FailedPreconditionError(absl::StrCat("lent KV: ", count, " pieces of sequence ", sequence, " in life ", life,
                                                        " are not here: ", of.stored, " of the life after ", of.ended, " are stored"));
    std::vector<Bytes> offsets;
    for (int64_t piece = 0; piece < count; ++piece) offsets.push_back(Offset(of.places[static_cast<size_t>(piece)], layer));
    return offsets;
  }

  // Pieces of the sequence that are complete in all layers.
  int64_t stored(int32_t sequence) const { return sequences_.at(static_cast<size_t>(sequence)).stored; }
  int64_t free_places() const { return static_cast<int64_t>(free_.size()); }

 private:
  struct Sequence {
    int64_t begun = -1;           // the newest life with a chunk
    int64_t ended = -1;           // this life and all before have ended; pieces are of the next one
    int64_t stored = 0;           // pieces
    std::vector<int64_t> places;  // by piece; one more than `stored` while a piece is under way
  };
  struct Next {  // what the next chunk must continue
    int32_t sequence = 0;
    int64_t life = 0, piece = 0;
    int32_t layer = 0;
    Bytes offset = 0;
  };

  absl::Status CheckSequence(int32_t sequence, int64_t life) const {
    if (sequence < 0 || sequence >= shape_.sequences)
      return Invalid("lent KV: sequence ", sequence, " is outside the plan's ", shape_.sequences);
    if (life < 0) return Invalid("lent KV: life ", life, " of sequence ", sequence, " is negative");
    return absl::OkStatus();
  }

  absl::Status CheckLayer(int32_t layer) const {
    return layer < 0 || layer >= shape_.layers ? Invalid("lent KV: layer ", layer, " is outside the device's ", shape_.layers)
                                               : absl::OkStatus();
  }

  absl::Status CheckBounds(const KvChunk& chunk) const {
    LIME_RETURN_IF_ERROR(CheckSequence(chunk.sequence, chunk.life));
    LIME_RETURN_IF_ERROR(CheckLayer(chunk.layer));
    if (chunk.piece < 0 || chunk.piece >= shape_.pieces_per_sequence)
      return Invalid("lent KV: piece ", chunk.piece, " is outside a sequence of ", shape_.pieces_per_sequence);
    if (chunk.bytes.empty() || chunk.offset < 0 || chunk.offset > shape_.piece_bytes - std::ssize(chunk.bytes))
      return Invalid("lent KV: ", chunk.bytes.size(), " bytes at offset ", chunk.offset, " do not fit in a piece of ", shape_.piece_bytes);
    return absl::OkStatus();
  }

  absl::Status BeginPiece(const KvChunk& chunk) {
    if (!MayBegin(chunk))
      return Invalid("lent KV: sequence ", chunk.sequence, " piece ", chunk.piece, " layer ", chunk.layer, " offset ", chunk.offset,
                     " does not continue the chunk before");
    Sequence& sequence = sequences_[static_cast<size_t>(chunk.sequence)];
    if (chunk.life < sequence.begun)
      return Invalid("lent KV: life ", chunk.life, " of sequence ", chunk.sequence, " arrived, but life ", sequence.begun, " has begun");
    if (IsAlive(chunk.sequence, chunk.life)) {
      // The first chunk of its life: the pieces that are here belong to a life that has ended.
      const bool first = chunk.life - 1 > sequence.ended;
      const int64_t stored = first ? 0 : sequence.stored;
      if (chunk.piece != stored)
        return Invalid("lent KV: piece ", chunk.piece, " of sequence ", chunk.sequence, " arrived, expected piece ", stored);
      if (free_.empty() && (!first || sequence.places.empty()))
        return absl::ResourceExhaustedError(absl::StrCat("lent KV: all ", shape_.places, " places are in use"));
      End(sequence, chunk.life - 1);
      sequence.places.push_back(free_.back());
      free_.pop_back();
    }
    sequence.begun = chunk.life;
    next_ = {.sequence = chunk.sequence, .life = chunk.life, .piece = chunk.piece};
    return absl::OkStatus();
  }

  bool GoesOn(const KvChunk& chunk) const {
    return next_ && chunk.sequence == next_->sequence && chunk.life == next_->life && chunk.piece == next_->piece &&
           chunk.layer == next_->layer && chunk.offset == next_->offset;
  }

  // A piece gives way to another one only between two layers, and only if its sequence has ended.
  bool MayBegin(const KvChunk& chunk) const {
    if (chunk.layer != 0 || chunk.offset != 0) return false;
    if (!next_) return true;
    return next_->offset == 0 &&
           (!IsAlive(next_->sequence, next_->life) || (chunk.sequence == next_->sequence && chunk.life > next_->life));
  }

  bool IsAlive(int32_t sequence, int64_t life) const { return life > sequences_[static_cast<size_t>(sequence)].ended; }
  void End(Sequence& sequence, int64_t life) {
    if (life <= sequence.ended) return;
    free_.insert(free_.end(), sequence.places.rbegin(), sequence.places.rend());
    sequence.places.clear();
    sequence.stored = 0;
    sequence.ended = life;
  }

  Bytes Offset(int64_t place, int32_t layer) const { return (place * shape_.layers + layer) * shape_.piece_bytes; }

  const Shape shape_;
  std::vector<Sequence> sequences_;
  std::vector<int64_t> free_;  // free places; the last one is given first
  int64_t next_number_ = 0;
  std::optional<Next> next_;  // of the piece under way
};

}  // namespace lime
