// Decides which KV pages the sequences of a device have, and which of their pieces leave the
// device's memory. Pure: counts and decisions. The owner has pages, files and messages, and carries
// out the changes.
//
//   orders, steps ──► KvPages, KvAway ──► NextShown: pages to show to the backend
//                                         NextEnded: sequences that have ended
//                                         NextWrite: a piece to write
//                                         NextCopy: pages to copy to another slot
//               ──► StateBook        ──► NextRestore: a snapshot to copy to the states or pages of a slot
//
// Thread: the owner's, under its lock.   Owner: StageKv, or the simulated cluster.
// In layers with a window, later positions of a sequence take the pages of earlier ones. So another
// sequence can begin with KV of a slot only close behind the slot's newest position, or with a
// snapshot of the slot.
// Invariant: those of KvPages and KvAway; pages before a sequence's first piece in memory are free.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "common/order.h"
#include "daemon/logic/pages/kv_away.h"
#include "daemon/logic/pages/kv_pages.h"
#include "daemon/logic/state_book.h"
#include "planner/base/status.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/micro_batch.h"
#include "planner/plan/plan.h"
#include "planner/plan/plan_rows.h"

namespace lime {

class KvBook {
 public:
  struct Shape {
    int32_t device = 0;
    int64_t layers = 0;   // whose attention is here
    bool leaves = false;  // pieces may leave memory
    // Pieces leave only after a step was ordered: before that the host may not be ready for them.
    bool after_a_step = false;
  };
  // REQUIRES: `plan` is valid and outlives this object.
  KvBook(const Plan& plan, const Shape& shape)
      : plan_(plan),
        shape_(shape),
        window_(WindowOf(plan)),
        pages_({.num_pages = plan.devices[shape.device].kv_pages,
                .num_layers = shape.layers,
                .max_sequences = plan.sequences,
                .retained_pages = RetainsAllKv(plan) ? 0 : RetainedPages(plan),
                .most_pages = window_.positions > 0 ? MostPagesOn(plan, shape.device) : std::vector<int64_t>()}),
        away_(plan.sequences),
        states_(plan),
        kept_(static_cast<size_t>(plan.sequences)),
        least_shared_(static_cast<size_t>(plan.sequences)),
        is_shown_(static_cast<size_t>(plan.sequences), true) {
    shown_.reserve(kept_.size()), ended_.reserve(kept_.size());
  }

  // ---- Sequences

  // Takes over KV of the previous plan: for each sequence its positions, and how many of its pieces
  // are away from the start. ResourceExhausted if it does not fit. Pieces that are away get
  // pages and release them one after another: together they need room for one piece only.
  absl::Status TakeOver(const std::vector<KvSequence>& sequences, const std::vector<int64_t>& away) {
    for (size_t s = 0; s < sequences.size(); ++s) {
      for (int64_t piece = 0; piece < away[s]; ++piece) {
        LIME_RETURN_IF_ERROR(pages_.Extend(sequences[s].to, (piece + 1) * kKvPiece).status());
        pages_.ReleaseRange(sequences[s].to, piece * kKvPiece, (piece + 1) * kKvPiece);
      }
    }
    for (size_t s = 0; s < sequences.size(); ++s) {
      const int32_t to = sequences[s].to;
      const int64_t positions = sequences[s].positions;
      LIME_RETURN_IF_ERROR(pages_.Extend(to, positions).status());
      LIME_RETURN_IF_ERROR(states_.TakeOver(sequences[s]));
      Show(to);
      kept_[static_cast<size_t>(to)] = positions;
      least_shared_[static_cast<size_t>(to)] = window_.LeastShared(window_.FirstPageTaken(positions));
      away_.TakeOver(to, positions, away[s]);
    }
    return absl::OkStatus();
  }

  // First positions whose KV an idle slot has, taken over or kept when its sequence ended. 0: it is
  // free, or a sequence has it.
  int64_t kept(int32_t sequence) const { return kept_[static_cast<size_t>(sequence)]; }

  // The sequence of a slot has ended. The KV of its first `positions` positions stays, and snapshots
  // of no more.
  // REQUIRES: a multiple of SharedKvUnit(plan)
  absl::Status Keep(int32_t sequence, int64_t positions) {
    if (!HasPages(sequence, positions))
      return Invalid("slot ", sequence, " is to keep KV of ", positions, " positions, but it has fewer pages");
    Cut(sequence, positions);
    states_.Keep(sequence, positions);
    kept_[static_cast<size_t>(sequence)] = positions;
    return absl::OkStatus();
  }

  // Whether a sequence begins with pages that are copied from another slot.
  static bool Copies(const AdmitOrder& admit) { return admit.source >= 0 && admit.computed > 0; }
  // Whether the pages for the copies are free.
  bool HasRoomFor(const AdmitOrder& admit) const { return pages_.free_pages() >= pages_.PagesFor(admit.computed); }

  // A sequence takes a slot, with the KV and the states that the order says. InvalidArgument if
  // these are not there, or no longer; ResourceExhausted if too few pages are free.
  absl::Status Begin(const AdmitOrder& admit) {
    LIME_RETURN_IF_ERROR(Copies(admit) ? Copy(admit) : Continue(admit));
    LIME_RETURN_IF_ERROR(states_.Begin(admit));
    kept_[static_cast<size_t>(admit.sequence)] = 0;
    int64_t& least = least_shared_[static_cast<size_t>(admit.sequence)];
    if (admit.computed == 0) least = 0;
    if (admit.snapshot >= 0) least = window_.LeastShared(window_.FirstPageTaken(admit.computed));
    return absl::OkStatus();
  }

  // A running sequence goes back to its first positions. It keeps its pages. InvalidArgument, and
  // nothing changes, if KV or states of these positions are not there, or no longer.
  // REQUIRES: the plan has all KV in memory
  absl::Status RollBack(const RollbackOrder& back) {
    if (!HasPages(back.sequence, back.positions))
      return Invalid("slot ", back.sequence, " is to go back to ", back.positions, " positions, but it has fewer pages");
    const int64_t least = least_shared_[static_cast<size_t>(back.sequence)];
    if (back.positions < least)
      return Invalid("slot ", back.sequence, " is to go back to ", back.positions,
                     " positions, but layers with a window have given pages back, so it can go back to no fewer than ", least);
    return states_.RollBack(back);
  }

  // Gives a sequence all its pages at once.
  absl::Status Reserve(const AdmitOrder& admit) {
    LIME_RETURN_IF_ERROR(admit.computed > 0 ? pages_.Extend(admit.sequence, admit.positions).status()
                                            : pages_.Reserve(admit.sequence, admit.positions));
    Show(admit.sequence);
    return absl::OkStatus();
  }

  // If the plan keeps only the newest positions: evicts older ones to make room for the rows of a
  // step. OutOfRange if a row lies beyond what its sequence has reserved.
  absl::Status Evict(const StepOrder& step) {
    if (RetainsAllKv(plan_)) return absl::OkStatus();
    for (const MicroBatch& batch : step.microbatches) {
      for (const BatchRow& row : batch.rows) {
        LIME_ASSIGN_OR_RETURN(const bool evicted, pages_.Evict(row.sequence, int64_t{row.position} + 1));
        if (evicted) Show(row.sequence);
      }
    }
    return absl::OkStatus();
  }

  // Gives the rows of a step the pages that they lack, one row after another. False if that must
  // wait until pieces are written. ResourceExhausted, with the numbers, if there are too few pages.
  absl::StatusOr<bool> Extend(const StepOrder& step) {
    in_use_ = true;
    for (const MicroBatch& batch : step.microbatches) {
      for (const BatchRow& row : batch.rows) {
        absl::StatusOr<bool> extended = pages_.Extend(row.sequence, row.position + 1);
        while (!extended.ok() && FreeNext()) extended = pages_.Extend(row.sequence, row.position + 1);
        if (!extended.ok()) {
          if (!write_error_.ok() || !away_.HasToWrite()) return write_error_.ok() ? extended.status() : write_error_;
          return false;
        }
        if (*extended) Show(row.sequence);
      }
    }
    return true;
  }

  // A step with these rows begins: their K and V may take the place of others in layers with a
  // window.
  void Reach(const StepOrder& step) {
    if (window_.positions == 0) return;
    for (const MicroBatch& batch : step.microbatches) {
      for (const BatchRow& row : batch.rows) {
        int64_t& least = least_shared_[static_cast<size_t>(row.sequence)];
        least = std::max(least, window_.LeastSharedAt(int64_t{row.position} + 1));
      }
    }
  }

  // A step with these rows has ended: their K and V will not change.
  void Computed(const MicroBatch& batch) {
    if (!shape_.leaves) return;
    for (const BatchRow& row : batch.rows) away_.Computed(row.sequence, row.position + 1);
  }

  void Release(int32_t sequence) {
    states_.Keep(sequence, 0);
    kept_[static_cast<size_t>(sequence)] = 0;
    pages_.Release(sequence);
    ended_.push_back({sequence, away_.life(sequence)});
    away_.Release(sequence);
  }

  // The states of a device, and their snapshots.
  StateBook& states() { return states_; }

  // ---- Memory, and what may leave it

  KvPages& pages() { return pages_; }
  const KvPages& pages() const { return pages_; }
  const KvAway& away() const { return away_; }
  // From now on the first `positions` positions of each sequence may leave memory.
  void SetReach(int64_t positions) { away_.SetReach(positions / kKvPiece); }
  int64_t reach() const { return away_.reach() * kKvPiece; }
  // In every sequence, no position from this one on has left memory.
  int64_t most_away() const { return away_.most_away() * kKvPiece; }

  // ---- What the owner carries out

  // A sequence whose pages have changed since it was last returned. Nothing if there is none.
  std::optional<int32_t> NextShown() {
    if (shown_.empty()) return std::nullopt;
    const int32_t sequence = shown_.back();
    shown_.pop_back();
    is_shown_[static_cast<size_t>(sequence)] = true;
    return sequence;
  }

  // The first `pages` pages of every layer are to be copied. This comes before NextShown.
  struct PageCopy {
    int32_t from = 0, to = 0;  // slots
    int64_t pages = 0;
  };
  std::optional<PageCopy> NextCopy() { return std::exchange(copy_, std::nullopt); }

  // A snapshot is to be copied to the states or pages of a slot, in every layer that has one.
  std::optional<StateBook::Restore> NextRestore() { return states_.NextRestore(); }

  // A sequence that has ended; `life` is its number in the slot.
  struct Ended {
    int32_t sequence = 0;
    int64_t life = 0;
  };
  std::optional<Ended> NextEnded() {
    if (ended_.empty()) return std::nullopt;
    const Ended ended = ended_.front();
    ended_.erase(ended_.begin());
    return ended;
  }

  // The next piece to write. Nothing while one is being written, or if there is none.
  std::optional<KvAway::Piece> NextWrite() {
    if (!shape_.leaves || !write_error_.ok() || (shape_.after_a_step && !in_use_)) return std::nullopt;
    return away_.BeginWrite();
  }

  // A piece is written, or could not be. An error ends all writing, unless its sequence has ended.
  void Written(const KvAway::Piece& piece, const absl::Status& status) {
    const bool ended = away_.life(piece.sequence) != piece.life;
    away_.EndWrite(status.ok());
    if (!status.ok() && !ended) write_error_ = status;
  }

 private:
  // Whether the slot has the pages of these positions, in memory or away.
  bool HasPages(int32_t sequence, int64_t positions) const {
    return shape_.layers == 0 || std::ssize(pages_.Pages(sequence, 0)) >= KvPages::PagesFor(positions, 1);
  }

  void Cut(int32_t sequence, int64_t positions) {
    pages_.Cut(sequence, positions);
    away_.Cut(sequence, positions / kKvPiece);
    Show(sequence);
  }

  // The slot's own KV.
  absl::Status Continue(const AdmitOrder& admit) {
    const int64_t there = kept(admit.sequence);
    if (admit.computed > there || (admit.computed == 0 && there > 0))
      return Invalid("slot ", admit.sequence, " is to continue with KV of ", admit.computed, " positions, but it has ", there);
    LIME_RETURN_IF_ERROR(CheckShared(admit, admit.sequence));
    if (admit.computed == there) return absl::OkStatus();
    const int64_t unit = SharedKvUnit(plan_);
    if (unit == 0 || admit.computed % unit != 0)
      return Invalid("slot ", admit.sequence, " is to continue with KV of ", admit.computed, " positions, not in pages or pieces");
    Cut(admit.sequence, admit.computed);
    return absl::OkStatus();
  }

  absl::Status Copy(const AdmitOrder& admit) {
    if (admit.sequence == admit.source || !CopiesKv(plan_) || admit.computed % kPageTokens != 0 || !HasPages(admit.source, admit.computed))
      return Invalid("slot ", admit.sequence, " is to begin with KV of ", admit.computed, " positions of slot ", admit.source,
                     ", which cannot be copied");
    LIME_RETURN_IF_ERROR(CheckShared(admit, admit.source));
    LIME_RETURN_IF_ERROR(pages_.Reserve(admit.sequence, admit.computed));
    least_shared_[static_cast<size_t>(admit.sequence)] = least_shared_[static_cast<size_t>(admit.source)];
    copy_ = {.from = admit.source, .to = admit.sequence, .pages = admit.computed / kPageTokens};
    Show(admit.sequence);
    return absl::OkStatus();
  }

  // Whether the slot still has all KV that rows behind the order's positions attend to. A snapshot has
  // it in any case.
  absl::Status CheckShared(const AdmitOrder& admit, int32_t slot) const {
    const int64_t least = least_shared_[static_cast<size_t>(slot)];
    if (admit.computed == 0 || admit.snapshot >= 0 || admit.computed >= least) return absl::OkStatus();
    return Invalid("slot ", admit.sequence, " is to begin with KV of ", admit.computed, " positions of slot ", slot,
                   ", but layers with a window have given pages back, so it can begin with no fewer than ", least);
  }

  bool FreeNext() {
    const std::optional<KvAway::Piece> piece = away_.FreeNext();
    if (!piece) return false;
    pages_.ReleaseRange(piece->sequence, piece->piece * kKvPiece, (piece->piece + 1) * kKvPiece);
    Show(piece->sequence);
    return true;
  }

  void Show(int32_t sequence) {
    if (!is_shown_[static_cast<size_t>(sequence)]) return;
    is_shown_[static_cast<size_t>(sequence)] = false;
    shown_.push_back(sequence);
  }

  const Plan& plan_;
  const Shape shape_;
  const KvWindow window_;
  KvPages pages_;
  KvAway away_;
  StateBook states_;
  std::vector<int64_t> kept_;  // positions, by slot
  // By slot, the fewest positions with which another sequence can begin; 0: any number.
  std::vector<int64_t> least_shared_;
  std::optional<PageCopy> copy_;  // ordered, and not carried out
  absl::Status write_error_;      // not ok: nothing is written any more
  bool in_use_ = false;           // a step was ordered
  std::vector<bool> is_shown_;    // by slot: not among shown_
  std::vector<int32_t> shown_;
  std::vector<Ended> ended_;
};

}  // namespace lime
