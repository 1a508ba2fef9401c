#include "daemon/logic/kv_away.h"

#include <algorithm>

#include "planner/base/check.h"
#include "planner/plan/plan.h"

namespace lime {

void KvAway::Computed(int32_t sequence, int64_t positions) {
  Slot& slot = slots_.at(static_cast<size_t>(sequence));
  slot.full = std::max(slot.full, positions / kKvPiece);
}

void KvAway::TakeOver(int32_t sequence, int64_t positions, int64_t away) {
  LIME_CHECK_LE(away, positions / kKvPiece);
  Computed(sequence, positions);
  Slot& slot = slots_.at(static_cast<size_t>(sequence));
  slot.written = slot.away = away;
}

std::optional<KvAway::Piece> KvAway::BeginWrite() {
  if (writing_) return std::nullopt;
  for (size_t s = 0; s < slots_.size(); ++s) {
    const Slot& slot = slots_[s];
    if (slot.written < MayGo(slot) && (!writing_ || slot.written < writing_->piece))
      writing_ = {.sequence = static_cast<int32_t>(s), .piece = slot.written, .life = slot.life};
  }
  return writing_;
}

void KvAway::EndWrite(bool written) {
  LIME_CHECK(writing_.has_value());
  Slot& slot = slots_[static_cast<size_t>(writing_->sequence)];
  if (written && slot.life == writing_->life) ++slot.written;
  writing_.reset();
}

bool KvAway::HasToWrite() const {
  return writing_ || std::ranges::any_of(slots_, [this](const Slot& slot) { return slot.written < MayGo(slot); });
}

std::optional<KvAway::Piece> KvAway::TakeAway() {
  Slot* best = nullptr;
  for (Slot& slot : slots_) {
    if (slot.away < std::min(slot.written, reach_) && (best == nullptr || slot.away < best->away)) best = &slot;
  }
  if (best == nullptr) return std::nullopt;
  return Piece{.sequence = static_cast<int32_t>(best - slots_.data()), .piece = best->away++, .life = best->life};
}

int64_t KvAway::most_away() const {
  int64_t most = 0;
  for (const Slot& slot : slots_) most = std::max(most, slot.away);
  return most;
}

void KvAway::Release(int32_t sequence) {
  Slot& slot = slots_.at(static_cast<size_t>(sequence));
  slot = {.life = slot.life + 1};
}

}  // namespace lime
