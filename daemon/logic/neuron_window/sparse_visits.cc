#include "daemon/logic/neuron_window/sparse_visits.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "planner/base/check.h"

namespace lime {

absl::StatusOr<std::unique_ptr<SparseVisits>> SparseVisits::Create(std::span<const MaskWindow::Options> parts) {
  std::unique_ptr<SparseVisits> visits(new SparseVisits);
  for (const MaskWindow::Options& window : parts) {
    Part& part = visits->parts_.emplace_back();
    LIME_ASSIGN_OR_RETURN(part.window, NeuronWindow::Create({.window = window}));
    part.reading.resize(static_cast<size_t>(window.neurons));
    part.target = part.with_memory = window.rows;
  }
  return visits;
}

// ---- The begin and the end

absl::Status SparseVisits::BeginNeurons(int32_t part, std::span<const int32_t> mask, int32_t rows) {
  LIME_CHECK(!IsUnderWay()) << "part " << part;
  Part& of = parts_[static_cast<size_t>(part)];
  if (!mask.empty()) LIME_RETURN_IF_ERROR(of.window->BeginStep(mask));
  ++of.counts.visits, of.counts.rows += rows, of.counts.active += std::ssize(mask);
  if (mask.empty()) return absl::OkStatus();
  part_ = part, pieces_ = 0;
  BeginRound();
  return absl::OkStatus();
}

void SparseVisits::BeginPieces(int32_t part, int32_t pieces, const LastMasks& last) {
  LIME_CHECK(!IsUnderWay() && pieces > 0) << "part " << part;
  Part& of = parts_[static_cast<size_t>(part)];
  copies_ = {};
  if (last.masks > 0) of.window->Remember(last.ages, last.masks), copies_ = of.window->loads();
  of.counts.copied += std::ssize(copies_);
  part_ = part, pieces_ = units_ = pieces;
  ready_ = computed_ = next_piece_ = 0, has_loads_ = false;
  piece_read_.assign(kPieces, false);
}

void SparseVisits::BeginRound() {
  Part& part = Current();
  if (!part.window->NextRound()) return End();
  for (const NeuronWindow::Load& load : part.window->loads()) part.reading[static_cast<size_t>(load.neuron)] = true;
  part.counts.loaded += std::ssize(part.window->loads());
  units_ = static_cast<int32_t>(part.window->part().size());
  ready_ = computed_ = arrived_ = released_ = 0;
  has_loads_ = !part.window->loads().empty();
}

void SparseVisits::End() {
  if (Part& part = Current(); part.target != part.window->num_rows()) {
    part.window->SetRows(part.target);
    if (part.target < part.with_memory) given_back_ = {part_, {part.target, part.with_memory - part.target}};
    part.with_memory = part.target;
  }
  part_ = -1;
  units_ = ready_ = computed_ = 0;
}

// ---- Memory

// Rows are not needed while no visit of the part is under way, or if its window does not have them yet.
SparseVisits::Rows SparseVisits::SetRows(int32_t part, int32_t rows) {
  Part& of = parts_[static_cast<size_t>(part)];
  const int32_t before = of.with_memory, needed = part == part_ ? of.window->num_rows() : 0;
  of.target = rows;
  of.with_memory = std::max(rows, std::min(needed, before));
  if (part != part_) of.window->SetRows(rows);
  return {std::min(before, of.with_memory), std::abs(before - of.with_memory)};
}

// ---- Reads

std::span<const NeuronWindow::Load> SparseVisits::TakeLoads() {
  if (!IsUnderWay() || !std::exchange(has_loads_, false)) return {};
  return Current().window->loads();
}

// A place is free once its last piece is computed.
std::optional<SparseVisits::Unit> SparseVisits::TakePiece() {
  if (!IsUnderWay() || by_neurons() || next_piece_ == pieces_ || next_piece_ >= computed_ + kPieces) return std::nullopt;
  const Unit piece{.unit = next_piece_, .place = next_piece_ % kPieces};
  ++next_piece_;
  piece_read_[static_cast<size_t>(piece.place)] = false;
  return piece;
}

void SparseVisits::OnNeuronRead(int32_t neuron) {
  LIME_CHECK(IsUnderWay() && Current().reading[static_cast<size_t>(neuron)]) << "neuron " << neuron << " is not being read";
  Current().reading[static_cast<size_t>(neuron)] = false;
}

void SparseVisits::OnPieceRead(int32_t piece) {
  LIME_CHECK(IsUnderWay() && !by_neurons() && piece < next_piece_) << "piece " << piece << " is not being read";
  piece_read_[static_cast<size_t>(piece % kPieces)] = true;
}

// ---- Computing

std::optional<SparseVisits::Unit> SparseVisits::NextReady() {
  if (ready_ == units_) return std::nullopt;
  if (!by_neurons()) {
    if (ready_ >= next_piece_ || !piece_read_[static_cast<size_t>(ready_ % kPieces)]) return std::nullopt;
    const int32_t piece = ready_++;
    return Unit{.unit = piece, .place = piece % kPieces};
  }
  if (ready_ == released_ && !Release()) return std::nullopt;
  const NeuronWindow& window = *Current().window;
  const int32_t neuron = window.part()[static_cast<size_t>(ready_++)];
  return Unit{.unit = neuron, .place = window.RowOf(neuron)};
}

bool SparseVisits::Release() {
  const Part& part = Current();
  const auto is_there = [&](int32_t i) { return !part.reading[static_cast<size_t>(part.window->part()[static_cast<size_t>(i)])]; };
  while (arrived_ < units_ && is_there(arrived_)) ++arrived_;
  if (arrived_ < units_ && arrived_ - released_ < std::max(units_ / kShares, 1)) return false;
  released_ = arrived_;
  return ready_ < released_;
}

void SparseVisits::OnComputed(int32_t units) {
  computed_ += units;
  LIME_CHECK_LE(computed_, ready_);
  if (computed_ < units_) return;
  if (by_neurons()) {
    BeginRound();
  } else {
    End();
  }
}

}  // namespace lime
