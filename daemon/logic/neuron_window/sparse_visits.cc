#include "daemon/logic/neuron_window/sparse_visits.h"

#include <utility>

#include "planner/base/check.h"

namespace lime {

absl::StatusOr<std::unique_ptr<SparseVisits>> SparseVisits::Create(std::span<const MaskWindow::Options> parts) {
  std::unique_ptr<SparseVisits> visits(new SparseVisits);
  for (const MaskWindow::Options& window : parts) {
    Part& part = visits->parts_.emplace_back();
    LIME_ASSIGN_OR_RETURN(part.window, NeuronWindow::Create({.window = window}));
    part.reading.resize(static_cast<size_t>(window.neurons));
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

void SparseVisits::BeginPieces(int32_t part, int32_t pieces) {
  LIME_CHECK(!IsUnderWay() && pieces > 0) << "part " << part;
  part_ = part, pieces_ = units_ = pieces;
  ready_ = computed_ = next_piece_ = 0;
  piece_read_.assign(kPieces, false);
}

void SparseVisits::BeginRound() {
  Part& part = Current();
  if (!part.window->NextRound()) return End();
  for (const NeuronWindow::Load& load : part.window->loads()) part.reading[static_cast<size_t>(load.neuron)] = true;
  part.counts.loaded += std::ssize(part.window->loads());
  units_ = static_cast<int32_t>(part.window->part().size());
  ready_ = computed_ = 0;
  has_loads_ = !part.window->loads().empty();
}

void SparseVisits::End() {
  part_ = -1;
  units_ = ready_ = computed_ = 0;
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
  const Part& part = Current();
  const int32_t neuron = part.window->part()[static_cast<size_t>(ready_)];
  if (part.reading[static_cast<size_t>(neuron)]) return std::nullopt;
  ++ready_;
  return Unit{.unit = neuron, .place = part.window->RowOf(neuron)};
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
