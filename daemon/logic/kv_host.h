// Where pieces of KV that one other device, the owner, has lent to this one, the host, lie in its memory. Pure: slots and offsets; the
// memory is the caller's.
//
// A slot has one piece in all layers of the owner, [layers][piece_bytes]. A piece comes one layer after another, each in chunks, in order;
// the pieces of a sequence come from the first on. Word that a sequence has ended may overtake chunks of it, never the other way round: the
// chunks are dropped, and answered as if they were kept, since the owner waits for it.
//
// Thread: the caller's.   Invariant: a slot has at most one piece; a sequence has pieces of one life only.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "daemon/logic/kv_message.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

class KvHost {
 public:
  struct Shape {
    int64_t layers = 0;     // of the owner
    int64_t sequences = 0;  // slots for them, on the owner
    int64_t pieces_per_sequence = 0;
    Bytes piece_bytes = 0;  // of one layer
    int64_t slots = 0;
    Bytes bytes() const { return slots * layers * piece_bytes; }  // of memory
  };
  struct Placed {
    std::optional<Bytes> offset;  // in memory, where the chunk's bytes go; nothing: they are dropped
    bool ends_layer = false;      // the layer's piece is whole with it: answer KvKept once the bytes are in place
  };

  explicit KvHost(const Shape& shape);

  // InvalidArgument, and nothing has changed, for a chunk that is not the next one, out of bounds, or of a life before one that has begun;
  // ResourceExhausted, likewise, where no slot is free for its piece.
  absl::StatusOr<Placed> OnChunk(const KvChunk& chunk);

  // The first pieces of a sequence in its first life, in all layers, from the plan before: ahead of any chunk. ResourceExhausted where too
  // few slots are free.  REQUIRES: the sequence has none
  absl::Status TakeOver(int32_t sequence, int64_t pieces);

  // All pieces of the sequence up to this life are free. InvalidArgument for what is out of bounds.
  absl::Status OnFree(int32_t sequence, int64_t life);

  // Where in memory one layer of the first `count` pieces of the sequence lies. InvalidArgument for what is out of bounds;
  // FailedPrecondition where fewer are kept, or of another life.
  absl::StatusOr<std::vector<Bytes>> Pieces(int32_t sequence, int64_t life, int32_t layer, int64_t count) const;

  int64_t kept(int32_t sequence) const { return sequences_.at(static_cast<size_t>(sequence)).kept; }  // pieces, in all layers
  int64_t free_slots() const { return static_cast<int64_t>(free_.size()); }

 private:
  struct Sequence {
    int64_t begun = -1;          // newest life that a chunk was of
    int64_t ended = -1;          // this life and all before it; pieces are of the one after it
    int64_t kept = 0;            // pieces
    std::vector<int64_t> slots;  // by piece; one more than are kept where the next is under way
  };
  struct Next {  // what the next chunk is of
    int32_t sequence = 0;
    int64_t life = 0, piece = 0;
    int32_t layer = 0;
    Bytes offset = 0;
  };

  absl::Status CheckSequence(int32_t sequence, int64_t life) const;
  absl::Status CheckLayer(int32_t layer) const;
  absl::Status CheckBounds(const KvChunk& chunk) const;
  absl::Status BeginPiece(const KvChunk& chunk);
  bool GoesOn(const KvChunk& chunk) const;
  bool MayBegin(const KvChunk& chunk) const;
  bool IsAlive(int32_t sequence, int64_t life) const { return life > sequences_[static_cast<size_t>(sequence)].ended; }
  void End(Sequence& sequence, int64_t life);
  Bytes Offset(int64_t slot, int32_t layer) const { return (slot * shape_.layers + layer) * shape_.piece_bytes; }

  const Shape shape_;
  std::vector<Sequence> sequences_;
  std::vector<int64_t> free_;  // slots; the last is given first
  int64_t next_number_ = 0;
  std::optional<Next> next_;  // of the piece under way
};

}  // namespace lime
