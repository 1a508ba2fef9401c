// Counts which pieces of the sequences' KV have left memory, for the disk or for a host. Pure:
// counts; pages and files are the owner's.
//
//   computed ──► full ──► written ──► away
//
// A piece is 256 positions of one sequence, in all layers of the device. The pieces of a sequence
// go in order, so each state is a number of pieces. A piece is written once it is full and the plan
// lets it go. It goes away, and its pages become free, only when they are needed.
//
// Thread: the owner's.   Invariant: away <= written <= full; pieces that are away are written.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "planner/base/check.h"
#include "planner/plan/plan.h"

namespace lime {

class KvAway {
 public:
  struct Piece {
    int32_t sequence = 0;
    int64_t piece = 0;
    int64_t life = 0;  // counts the sequences that the slot has had
    friend bool operator==(const Piece&, const Piece&) = default;
  };

  explicit KvAway(int64_t max_sequences) : slots_(static_cast<size_t>(max_sequences)) {}

  // From now on only the first `pieces` pieces of each sequence may go. Pieces away stay away.
  void SetReach(int64_t pieces) { reach_ = pieces; }
  int64_t reach() const { return reach_; }

  // The first `positions` positions of the sequence are computed, and will not change.
  void Computed(int32_t sequence, int64_t positions) {
    Slot& slot = slots_.at(static_cast<size_t>(sequence));
    slot.full = std::max(slot.full, positions / kKvPiece);
  }

  // A new sequence takes over `positions` positions from the previous plan; its first `away` pieces
  // are away already.  REQUIRES: these pieces are full
  void TakeOver(int32_t sequence, int64_t positions, int64_t away) {
    LIME_CHECK_LE(away, positions / kKvPiece);
    Computed(sequence, positions);
    Slot& slot = slots_.at(static_cast<size_t>(sequence));
    slot.written = slot.away = away;
  }

  // Chooses the next piece to write: of all that may go, the one closest to the front of its
  // sequence. Nothing while another is being written, or if there is none.
  std::optional<Piece> BeginWrite() {
    if (writing_) return std::nullopt;
    for (size_t s = 0; s < slots_.size(); ++s) {
      const Slot& slot = slots_[s];
      if (slot.written < MayGo(slot) && (!writing_ || slot.written < writing_->piece))
        writing_ = {.sequence = static_cast<int32_t>(s), .piece = slot.written, .life = slot.life};
    }
    return writing_;
  }

  // The piece is written, or could not be. It counts if its sequence still has the slot.
  void EndWrite(bool written) {
    LIME_CHECK(writing_.has_value());
    Slot& slot = slots_[static_cast<size_t>(writing_->sequence)];
    if (written && slot.life == writing_->life) ++slot.written;
    writing_.reset();
  }

  // True if some pieces that may go are not written yet.
  bool HasToWrite() const {
    return writing_ || std::ranges::any_of(slots_, [this](const Slot& slot) { return slot.written < MayGo(slot); });
  }

  // Sends a written piece away, the one closest to the sequence's front. Nothing if there is none.
  std::optional<Piece> FreeNext() {
    Slot* best = nullptr;
    for (Slot& slot : slots_) {
      if (slot.away < std::min(slot.written, reach_) && (best == nullptr || slot.away < best->away)) best = &slot;
    }
    if (best == nullptr) return std::nullopt;
    return Piece{.sequence = static_cast<int32_t>(best - slots_.data()), .piece = best->away++, .life = best->life};
  }

  // Pieces of the sequence that are away, from the first on.
  int64_t away(int32_t sequence) const { return slots_.at(static_cast<size_t>(sequence)).away; }
  // Pieces of the sequence that are written, from the first on; some of them are still in memory.
  int64_t written(int32_t sequence) const { return slots_.at(static_cast<size_t>(sequence)).written; }
  // Changes when the slot's sequence ends, or keeps less than it had.
  int64_t life(int32_t sequence) const { return slots_.at(static_cast<size_t>(sequence)).life; }
  // The largest away() of all sequences.
  int64_t most_away() const {
    int64_t most = 0;
    for (const Slot& slot : slots_) most = std::max(most, slot.away);
    return most;
  }

  // Only the first `pieces` pieces stay in the slot, for another sequence. If others were full, the
  // slot has another life: reads and writes under way count no more, and what is away stays.
  void Cut(int32_t sequence, int64_t pieces) {
    Slot& slot = slots_.at(static_cast<size_t>(sequence));
    if (slot.full <= pieces) return;
    slot = {.full = pieces, .written = std::min(slot.written, pieces), .away = std::min(slot.away, pieces), .life = slot.life + 1};
  }

  // The sequence has ended.
  void Release(int32_t sequence) {
    Slot& slot = slots_.at(static_cast<size_t>(sequence));
    slot = {.life = slot.life + 1};
  }

 private:
  struct Slot {
    int64_t full = 0, written = 0, away = 0;
    int64_t life = 0;
  };
  int64_t MayGo(const Slot& slot) const { return slot.full < reach_ ? slot.full : reach_; }

  std::vector<Slot> slots_;
  int64_t reach_ = 0;
  std::optional<Piece> writing_;
};

}  // namespace lime
