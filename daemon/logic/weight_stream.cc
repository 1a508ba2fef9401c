#include "daemon/logic/weight_stream.h"

#include <optional>
#include <utility>

#include "planner/base/check.h"

namespace lime {

WeightStream::WeightStream(std::vector<Block> blocks, Bytes ring_bytes) : ring_(ring_bytes) {
  LIME_CHECK(!blocks.empty());
  for (Block& block : blocks) {
    for (const Bytes bytes : block.piece_bytes) LIME_CHECK(bytes > 0 && bytes <= ring_bytes) << bytes << " of " << ring_bytes;
    const State state = block.resident ? State::kResident : State::kStreamed;
    blocks_.push_back({std::move(block), state});
  }
}

// ---- Reading ahead

void WeightStream::Advance(std::vector<Load>& loads) {
  DropLoaded();
  for (;;) {
    if (!decisions_.empty() && !StartPieces(decisions_.back(), loads)) return;
    if (decisions_.size() == blocks_.size()) return;
    Decide();
  }
}

// Hands out what is left of a decided use; false when the ring is full.
bool WeightStream::StartPieces(Decision& decision, std::vector<Load>& loads) {
  if (decision.use != Use::kStream && decision.use != Use::kFill) return true;
  const std::vector<Bytes>& pieces = blocks_[decision.block].spec.piece_bytes;
  for (; decision.started < static_cast<int32_t>(pieces.size()); ++decision.started) {
    Load load{.id = next_id_, .block = decision.block, .piece = decision.started, .in_ring = decision.use == Use::kStream};
    if (load.in_ring) {
      const std::optional<Bytes> offset = ring_.Allocate(pieces[decision.started]);
      if (!offset) return false;
      load.offset = *offset;
    }
    pieces_.push_back({load, false});
    loads.push_back(load);
    ++next_id_;
    ++under_way_;
  }
  return true;
}

// Fixes the next use of the block under the cursor.
void WeightStream::Decide() {
  Entry& entry = blocks_[cursor_];
  Use use = Use::kResident;
  if (std::exchange(entry.skip_next, false)) {
    use = Use::kSkip;
  } else if (entry.state == State::kStreamed) {
    use = Use::kStream;
  } else if (entry.state == State::kFillWanted) {
    use = Use::kFill;
    entry.state = State::kFilling;
  }
  decisions_.push_back({.block = cursor_, .use = use});
  cursor_ = (cursor_ + 1) % num_blocks();
}

void WeightStream::OnLoaded(int64_t id) {
  const int64_t first = pieces_.empty() ? next_id_ : pieces_.front().load.id;
  LIME_CHECK(id >= first && id < next_id_) << "load " << id;
  pieces_[id - first].loaded = true;  // ids of what is in flight are consecutive
  --under_way_;
}

const WeightStream::Load& WeightStream::load(int64_t id) const {
  LIME_CHECK(!pieces_.empty() && id >= pieces_.front().load.id && id < next_id_) << "load " << id;
  return pieces_[id - pieces_.front().load.id].load;
}

// ---- Computing

WeightStream::Use WeightStream::CurrentUse() {
  if (decisions_.empty()) Decide();
  return decisions_.front().use;
}

const WeightStream::Load* WeightStream::ReadyPiece() const {
  const Decision& decision = decisions_.front();
  if (decision.started == decision.released || !pieces_.front().loaded) return nullptr;
  return &pieces_.front().load;
}

void WeightStream::ReleasePiece() {
  LIME_CHECK(ReadyPiece() != nullptr);
  if (pieces_.front().load.in_ring) ring_.ReleaseOldest();
  pieces_.pop_front();
  ++decisions_.front().released;
}

bool WeightStream::FinishBlock() {
  DropLoaded();
  const Decision decision = decisions_.front();
  Entry& entry = blocks_[decision.block];
  LIME_CHECK_EQ(decision.started, decision.released) << "block " << decision.block;
  const bool whole = decision.started == static_cast<int32_t>(entry.spec.piece_bytes.size());
  LIME_CHECK(whole || decision.use == Use::kResident || decision.use == Use::kSkip) << "block " << decision.block;
  decisions_.pop_front();
  computing_ = (computing_ + 1) % num_blocks();
  if (decision.use == Use::kFill && entry.state == State::kFilling) entry.state = State::kResident;
  if (entry.state != State::kShedding) return false;
  entry.state = State::kStreamed;
  return true;
}

void WeightStream::SkipNextUse(int32_t block) {
  LIME_CHECK(decisions_.empty() || decisions_.front().block != block || decisions_.front().released == 0) << "block " << block;
  for (Decision& decision : decisions_) {
    if (decision.block != block) continue;
    if (decision.use == Use::kFill && blocks_[block].state == State::kFilling) blocks_[block].state = State::kFillWanted;
    decision.use = Use::kSkip;
    return;
  }
  blocks_[block].skip_next = true;
}

bool WeightStream::DropsPending() const {
  const Decision& decision = decisions_.front();
  return decision.use == Use::kSkip && decision.started > decision.released && !pieces_.front().loaded;
}

// Gives back what was loaded for a use that is skipped.
void WeightStream::DropLoaded() {
  if (decisions_.empty() || decisions_.front().use != Use::kSkip) return;
  while (decisions_.front().started > decisions_.front().released && pieces_.front().loaded) ReleasePiece();
}

void WeightStream::Restart(std::vector<int32_t>& freed) {
  LIME_CHECK_EQ(under_way_, 0);
  for (Entry& entry : blocks_) {
    if (entry.state == State::kFilling || entry.state == State::kShedding) {
      entry.state = State::kStreamed;
      freed.push_back(static_cast<int32_t>(&entry - blocks_.data()));
    }
    entry.skip_next = false;
  }
  for (const Piece& piece : pieces_) {
    if (piece.load.in_ring) ring_.ReleaseOldest();
  }
  pieces_.clear();
  decisions_.clear();
  computing_ = cursor_ = 0;
}

// ---- Residency

bool WeightStream::Shed(int32_t block) {
  TakeBackDecisions();
  Entry& entry = blocks_[block];
  switch (entry.state) {
    case State::kStreamed:
    case State::kShedding:
      return false;
    case State::kFillWanted: {
      // Of a fill that was skipped, pieces may still be on their way into its memory.
      const Decision* decision = DecisionOf(block);
      const bool dropping = decision != nullptr && decision->use == Use::kSkip && decision->started > decision->released;
      entry.state = dropping ? State::kShedding : State::kStreamed;
      return !dropping;
    }
    case State::kFilling:
      entry.state = State::kShedding;
      return false;
    case State::kResident:
      entry.state = DecisionOf(block) == nullptr ? State::kStreamed : State::kShedding;
      return entry.state == State::kStreamed;
  }
  return false;
}

void WeightStream::Fill(int32_t block) {
  TakeBackDecisions();
  Entry& entry = blocks_[block];
  if (entry.state == State::kStreamed) entry.state = State::kFillWanted;
  if (entry.state == State::kShedding) {
    const Decision* decision = DecisionOf(block);
    const bool skipped_fill = decision != nullptr && decision->use == Use::kSkip && decision->started > 0;
    const bool filling = decision != nullptr && decision->use == Use::kFill;
    entry.state = skipped_fill ? State::kFillWanted : filling ? State::kFilling : State::kResident;
  }
}

const WeightStream::Decision* WeightStream::DecisionOf(int32_t block) const {
  for (const Decision& decision : decisions_) {
    if (decision.block == block) return &decision;
  }
  return nullptr;
}

// Moves the cursor back over uses that nothing was loaded for: they can be decided again. The first one may be under way.
void WeightStream::TakeBackDecisions() {
  while (decisions_.size() > 1 && decisions_.back().started == 0) {
    const Decision& decision = decisions_.back();
    Entry& entry = blocks_[decision.block];
    if (decision.use == Use::kSkip) entry.skip_next = true;
    if (entry.state == State::kFilling) entry.state = State::kFillWanted;
    cursor_ = decision.block;
    decisions_.pop_back();
  }
}

}  // namespace lime
