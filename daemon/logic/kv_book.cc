#include "daemon/logic/kv_book.h"

#include "planner/plan/kv_eviction.h"

namespace lime {

KvBook::KvBook(const Plan& plan, const Shape& shape)
    : plan_(plan),
      shape_(shape),
      pages_({.num_pages = plan.devices[shape.device].kv_pages,
              .num_layers = shape.layers,
              .max_sequences = plan.sequences,
              .kept_pages = EvictsKv(plan) ? KeptPages(plan) : 0}),
      away_(plan.sequences),
      taken_over_(static_cast<size_t>(plan.sequences)),
      is_shown_(static_cast<size_t>(plan.sequences), true) {
  shown_.reserve(taken_over_.size()), ended_.reserve(taken_over_.size());
}

// ---- Sequences

// Pages in memory for all but what is away. Of one piece after another, so that none is needed for those that are.
absl::Status KvBook::TakeOver(const std::vector<KvSequence>& sequences, const std::vector<int64_t>& away) {
  for (size_t s = 0; s < sequences.size(); ++s) {
    for (int64_t piece = 0; piece < away[s]; ++piece) {
      LIME_RETURN_IF_ERROR(pages_.Extend(sequences[s].to, (piece + 1) * kKvPiece).status());
      pages_.GiveUp(sequences[s].to, piece * kKvPiece, (piece + 1) * kKvPiece);
    }
  }
  for (size_t s = 0; s < sequences.size(); ++s) {
    const auto& [from, to, positions] = sequences[s];
    LIME_RETURN_IF_ERROR(pages_.Extend(to, positions).status());
    Show(to);
    taken_over_[static_cast<size_t>(to)] = positions;
    away_.TakeOver(to, positions, away[s]);
  }
  return absl::OkStatus();
}

absl::Status KvBook::Reserve(int32_t sequence, int64_t positions) {
  LIME_RETURN_IF_ERROR(taken_over(sequence) > 0 ? pages_.Extend(sequence, positions).status() : pages_.Reserve(sequence, positions));
  Show(sequence);
  return absl::OkStatus();
}

absl::Status KvBook::Evict(const StepOrder& step) {
  if (!EvictsKv(plan_)) return absl::OkStatus();
  for (const MicroBatch& batch : step.microbatches) {
    for (const BatchRow& row : batch.rows) {
      LIME_ASSIGN_OR_RETURN(const bool evicted, pages_.Evict(row.sequence, EvictedPositions(plan_, int64_t{row.position} + 1)));
      if (evicted) Show(row.sequence);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> KvBook::Extend(const StepOrder& step) {
  in_use_ = true;
  for (const MicroBatch& batch : step.microbatches) {
    for (const BatchRow& row : batch.rows) {
      absl::StatusOr<bool> extended = pages_.Extend(row.sequence, row.position + 1);
      while (!extended.ok() && TakeAway()) extended = pages_.Extend(row.sequence, row.position + 1);
      if (!extended.ok()) {
        if (!write_error_.ok() || !away_.HasToWrite()) return write_error_.ok() ? extended.status() : write_error_;
        return false;
      }
      if (*extended) Show(row.sequence);
    }
  }
  return true;
}

bool KvBook::TakeAway() {
  const std::optional<KvAway::Piece> piece = away_.TakeAway();
  if (!piece) return false;
  pages_.GiveUp(piece->sequence, piece->piece * kKvPiece, (piece->piece + 1) * kKvPiece);
  Show(piece->sequence);
  return true;
}

void KvBook::Computed(const MicroBatch& batch) {
  if (!shape_.leaves) return;
  for (const BatchRow& row : batch.rows) away_.Computed(row.sequence, row.position + 1);
}

void KvBook::Release(int32_t sequence) {
  taken_over_[static_cast<size_t>(sequence)] = 0;
  pages_.Release(sequence);
  ended_.push_back({sequence, away_.life(sequence)});
  away_.Release(sequence);
}

// ---- What the owner carries out

void KvBook::Show(int32_t sequence) {
  if (!is_shown_[static_cast<size_t>(sequence)]) return;
  is_shown_[static_cast<size_t>(sequence)] = false;
  shown_.push_back(sequence);
}

std::optional<int32_t> KvBook::TakeShown() {
  if (shown_.empty()) return std::nullopt;
  const int32_t sequence = shown_.back();
  shown_.pop_back();
  is_shown_[static_cast<size_t>(sequence)] = true;
  return sequence;
}

std::optional<KvBook::Ended> KvBook::TakeEnded() {
  if (ended_.empty()) return std::nullopt;
  const Ended ended = ended_.front();
  ended_.erase(ended_.begin());
  return ended;
}

std::optional<KvAway::Piece> KvBook::NextWrite() {
  if (!shape_.leaves || !write_error_.ok() || (shape_.after_a_step && !in_use_)) return std::nullopt;
  return away_.BeginWrite();
}

void KvBook::Written(const KvAway::Piece& piece, const absl::Status& status) {
  const bool ended = away_.life(piece.sequence) != piece.life;
  away_.EndWrite(status.ok());
  if (!status.ok() && !ended) write_error_ = status;
}

}  // namespace lime
