#include "daemon/logic/kv_host.h"

#include "absl/strings/str_cat.h"
#include "planner/base/check.h"

namespace lime {
namespace {

template <typename... What>
absl::Status WrongLent(const What&... what) {
  return Invalid("lent KV: ", what...);
}

}  // namespace

KvHost::KvHost(const Shape& shape) : shape_(shape), sequences_(static_cast<size_t>(shape.sequences)) {
  LIME_CHECK(shape.layers > 0 && shape.piece_bytes > 0 && shape.slots >= 0);
  for (int64_t slot = shape.slots - 1; slot >= 0; --slot) free_.push_back(slot);
}

absl::Status KvHost::CheckSequence(int32_t sequence, int64_t life) const {
  if (sequence < 0 || sequence >= shape_.sequences) return WrongLent("sequence ", sequence, " of ", shape_.sequences);
  if (life < 0) return WrongLent("life ", life, " of sequence ", sequence);
  return absl::OkStatus();
}

absl::Status KvHost::CheckLayer(int32_t layer) const {
  return layer < 0 || layer >= shape_.layers ? WrongLent("layer ", layer, " of ", shape_.layers) : absl::OkStatus();
}

absl::Status KvHost::CheckBounds(const KvChunk& chunk) const {
  LIME_RETURN_IF_ERROR(CheckSequence(chunk.sequence, chunk.life));
  LIME_RETURN_IF_ERROR(CheckLayer(chunk.layer));
  if (chunk.piece < 0 || chunk.piece >= shape_.pieces_per_sequence)
    return WrongLent("piece ", chunk.piece, " of ", shape_.pieces_per_sequence);
  if (chunk.bytes.empty() || chunk.offset < 0 || chunk.offset > shape_.piece_bytes - std::ssize(chunk.bytes))
    return WrongLent(chunk.bytes.size(), " bytes at ", chunk.offset, " of ", shape_.piece_bytes);
  return absl::OkStatus();
}

absl::StatusOr<KvHost::Placed> KvHost::OnChunk(const KvChunk& chunk) {
  if (chunk.number != next_number_) return WrongLent("chunk ", chunk.number, " comes where ", next_number_, " is the next");
  LIME_RETURN_IF_ERROR(CheckBounds(chunk));
  if (!GoesOn(chunk)) LIME_RETURN_IF_ERROR(BeginPiece(chunk));
  ++next_number_;
  Sequence& sequence = sequences_[static_cast<size_t>(chunk.sequence)];
  const bool alive = IsAlive(chunk.sequence, chunk.life);
  Placed placed;
  if (alive) placed.offset = Offset(sequence.slots.back(), chunk.layer) + chunk.offset;
  next_->offset += std::ssize(chunk.bytes);
  placed.ends_layer = next_->offset == shape_.piece_bytes;
  if (!placed.ends_layer) return placed;
  ++next_->layer, next_->offset = 0;
  if (next_->layer == shape_.layers) {
    next_.reset();
    if (alive) ++sequence.kept;
  }
  return placed;
}

bool KvHost::GoesOn(const KvChunk& chunk) const {
  return next_ && chunk.sequence == next_->sequence && chunk.life == next_->life && chunk.piece == next_->piece &&
         chunk.layer == next_->layer && chunk.offset == next_->offset;
}

// A piece is given up for another one between two layers, once its sequence has ended.
bool KvHost::MayBegin(const KvChunk& chunk) const {
  if (chunk.layer != 0 || chunk.offset != 0) return false;
  if (!next_) return true;
  return next_->offset == 0 && (!IsAlive(next_->sequence, next_->life) || (chunk.sequence == next_->sequence && chunk.life > next_->life));
}

absl::Status KvHost::BeginPiece(const KvChunk& chunk) {
  if (!MayBegin(chunk))
    return WrongLent("sequence ", chunk.sequence, " piece ", chunk.piece, " layer ", chunk.layer, " offset ", chunk.offset,
                     " does not go on what came");
  Sequence& sequence = sequences_[static_cast<size_t>(chunk.sequence)];
  if (chunk.life < sequence.begun)
    return WrongLent("life ", chunk.life, " of sequence ", chunk.sequence, " comes when ", sequence.begun, " has begun");
  if (IsAlive(chunk.sequence, chunk.life)) {
    const bool first = chunk.life - 1 > sequence.ended;  // of its life: what there is belongs to one that has ended
    const int64_t kept = first ? 0 : sequence.kept;
    if (chunk.piece != kept)
      return WrongLent("piece ", chunk.piece, " of sequence ", chunk.sequence, " comes where ", kept, " is the next");
    if (free_.empty() && (!first || sequence.slots.empty()))
      return absl::ResourceExhaustedError(absl::StrCat("lent KV: all ", shape_.slots, " slots have pieces"));
    End(sequence, chunk.life - 1);
    sequence.slots.push_back(free_.back());
    free_.pop_back();
  }
  sequence.begun = chunk.life;
  next_ = {.sequence = chunk.sequence, .life = chunk.life, .piece = chunk.piece};
  return absl::OkStatus();
}

absl::Status KvHost::TakeOver(int32_t sequence, int64_t pieces) {
  LIME_RETURN_IF_ERROR(CheckSequence(sequence, 0));
  Sequence& of = sequences_[static_cast<size_t>(sequence)];
  LIME_CHECK(of.begun < 0 && of.slots.empty()) << "sequence " << sequence;
  if (pieces > std::ssize(free_) || pieces > shape_.pieces_per_sequence)
    return absl::ResourceExhaustedError(absl::StrCat("lent KV: ", pieces, " pieces of sequence ", sequence, " are to be taken over, and ",
                                                     free_.size(), " slots are free"));
  for (; of.kept < pieces; ++of.kept) {
    of.slots.push_back(free_.back());
    free_.pop_back();
  }
  of.begun = 0;
  return absl::OkStatus();
}

absl::Status KvHost::OnFree(int32_t sequence, int64_t life) {
  LIME_RETURN_IF_ERROR(CheckSequence(sequence, life));
  End(sequences_[static_cast<size_t>(sequence)], life);
  return absl::OkStatus();
}

void KvHost::End(Sequence& sequence, int64_t life) {
  if (life <= sequence.ended) return;
  free_.insert(free_.end(), sequence.slots.rbegin(), sequence.slots.rend());
  sequence.slots.clear();
  sequence.kept = 0;
  sequence.ended = life;
}

absl::StatusOr<std::vector<Bytes>> KvHost::Pieces(int32_t sequence, int64_t life, int32_t layer, int64_t count) const {
  LIME_RETURN_IF_ERROR(CheckSequence(sequence, life));
  LIME_RETURN_IF_ERROR(CheckLayer(layer));
  if (count < 0 || count > shape_.pieces_per_sequence) return WrongLent(count, " pieces of ", shape_.pieces_per_sequence);
  const Sequence& of = sequences_[static_cast<size_t>(sequence)];
  if (life - 1 != of.ended || count > of.kept)
    return absl::FailedPreconditionError(absl::StrCat("lent KV: ", count, " pieces of sequence ", sequence, " in life ", life, ", and ",
                                                      of.kept, " of the life after ", of.ended, " are kept"));
  std::vector<Bytes> offsets;
  for (int64_t piece = 0; piece < count; ++piece) offsets.push_back(Offset(of.slots[static_cast<size_t>(piece)], layer));
  return offsets;
}

}  // namespace lime
