// Sparse parts of a simulated stage: the neurons and pieces that it reads and computes. Bursts are cut
// into reads that end in any order; some are repeated, as NeuronReader repeats a read with a wrong
// record; some fail.
#include <algorithm>
#include <utility>

#include "planner/plan/sparse_parts.h"
#include "tests/sim/sim_stage.h"

namespace lime {

// As StageEngine::AskNeurons. Rows of the part that are not read stand for zeros, which add nothing, so
// they count as if they were here.
void SimStage::AskNeurons(int32_t part, int32_t microbatch) {
  const PlanPart& what = plan_.parts[static_cast<size_t>(part)];
  const MicroBatch& batch = logic_->inbox().batch(microbatch);
  if (!ComputesNeurons(plan_, std::ssize(batch.rows))) {
    units_left_ = std::ssize(SparsePieces(spec_.block(what.block), what));
    logic_->OnPiecesChosen(part, microbatch, static_cast<int32_t>(units_left_), LastMasks(part), world_.clock.now_ms(), actions_);
    return CopyNeurons(part);
  }
  std::vector<int32_t> neurons;
  const absl::Status decided = [&] {
    if (batch.rows.empty()) return absl::OkStatus();
    LIME_ASSIGN_OR_RETURN(const std::span<const int32_t> active, backend_.DecideNeurons(what.block));
    neurons.assign(active.begin(), active.end());
    backend_.AddWeights(HashModel::WeightsOf(what.block, what.rows));
    if (!neurons.empty()) return absl::OkStatus();
    LIME_RETURN_IF_ERROR(backend_.ComputeNeurons(what.block, {}));
    return backend_.EndBlock();
  }();
  if (!decided.ok()) return world_.Violation(device().name, ": ", decided.message());
  units_left_ = std::ssize(neurons);
  logic_->OnUnitsChosen(part, microbatch, neurons, world_.clock.now_ms(), actions_);
}

// Stands for StageCompute::LastMasks: random masks that memory has rows for, or none.
SparseVisits::LastMasks SimStage::LastMasks(int32_t part) {
  const PlanPart& what = plan_.parts[static_cast<size_t>(part)];
  ages_.assign(static_cast<size_t>(NeuronsOf(plan_, part)), MaskWindow::kNever);
  const int32_t masks = world_.random.Below(std::min(what.window_masks, 4) + 1);
  if (masks == 0) return {.ages = ages_};
  for (int32_t held = world_.random.Below(logic_->NumPlaces(part) + 1); held > 0; --held)
    ages_[static_cast<size_t>(world_.random.Below(static_cast<int>(ages_.size())))] = world_.random.Below(masks);
  return {.ages = ages_, .masks = masks};
}

// As StageCompute::CopyNeurons, but at once: no visit reads these rows before the pieces have come.
void SimStage::CopyNeurons(int32_t part) {
  for (const auto& [neuron, row] : logic_->neuron_copies()) {
    if (row < 0 || row >= plan_.parts[static_cast<size_t>(part)].places)
      return world_.Violation(device().name, ": a neuron is copied into row ", row);
    Place& place = unit_places_[{part, row}];
    if (place.reading || place.computing) return world_.Violation(device().name, ": row ", row, " is copied into while it is in use");
    place.unit = neuron, place.content = HashModel::Neuron(plan_.parts[static_cast<size_t>(part)].block, neuron);
    ++world_.neurons.copied;
  }
}

// ---- Reads

void SimStage::Carry(const StageLogic::StartNeuronReads& start) {
  const PlanPart& part = plan_.parts[static_cast<size_t>(start.part)];
  std::vector<NeuronWindow::Load> loads(start.loads.begin(), start.loads.end());
  for (const NeuronWindow::Load& load : loads) {
    if (load.row < 0 || load.row >= part.places) return world_.Violation(device().name, ": a neuron is read into row ", load.row);
    Place& place = unit_places_[{start.part, load.row}];
    if (place.reading || place.computing) return world_.Violation(device().name, ": row ", load.row, " is read into while it is in use");
    place.unit = load.neuron, place.reading = true;
  }
  world_.neurons.read += std::ssize(loads);
  for (size_t i = loads.size(); i > 1; --i) std::swap(loads[i - 1], loads[static_cast<size_t>(world_.random.Below(static_cast<int>(i)))]);
  for (auto next = loads.begin(); next != loads.end();) {
    const auto end = next + std::min<int64_t>(1 + world_.random.Below(6), loads.end() - next);
    ReadNeurons(start.part, {next, end}, /*again=*/false);
    next = end;
  }
}

void SimStage::ReadNeurons(int32_t part, std::vector<NeuronWindow::Load> loads, bool again) {
  const PlanPart& what = plan_.parts[static_cast<size_t>(part)];
  const Bytes bytes = std::ssize(loads) * what.unit_bytes;
  disk_.Transfer(bytes, [this, alive = std::weak_ptr(alive_), part, loads = std::move(loads), again](bool good) mutable {
    if (alive.expired()) return;
    const bool wrong = !good && world_.random.Chance(50);  // a record, rather than the whole read
    if (!again && (wrong || world_.random.Chance(2))) {
      ++world_.neurons.repeated;
      return ReadNeurons(part, std::move(loads), /*again=*/true);
    }
    std::vector<int32_t> neurons;
    for (const auto& [neuron, row] : loads) {
      Place& place = unit_places_[{part, row}];
      place.reading = false;
      const int32_t came = world_.Plants(PlantedBug::kWrongNeuron, 5) ? neuron + 1 : neuron;
      if (!world_.Plants(PlantedBug::kStaleNeuron, 5))
        place.content = HashModel::Neuron(plan_.parts[static_cast<size_t>(part)].block, came);
      neurons.push_back(neuron);
    }
    if (world_.Plants(PlantedBug::kForgottenNeuron, 5)) return;
    logic_->OnNeuronsRead(neurons, good ? absl::OkStatus() : absl::DataLossError("a read failed"), world_.clock.now_ms(), actions_);
    CarryOut();
  });
}

void SimStage::Carry(const StageLogic::StartPieceRead& start) {
  const PlanPart& part = plan_.parts[static_cast<size_t>(start.part)];
  if (start.place < 0 || start.place >= SparseVisits::kPieces)
    return world_.Violation(device().name, ": a piece is read into place ", start.place);
  Place& place = piece_places_[static_cast<size_t>(start.place)];
  if (place.reading || place.computing)
    return world_.Violation(device().name, ": place ", start.place, " for pieces is read into while it is in use");
  place.unit = start.piece, place.reading = true;
  ++world_.neurons.pieces;
  const std::vector<BlockPart> pieces = SparsePieces(spec_.block(part.block), part);
  disk_.Transfer(pieces[static_cast<size_t>(start.piece)].bytes, [this, alive = std::weak_ptr(alive_), start](bool good) {
    if (alive.expired()) return;
    Place& read = piece_places_[static_cast<size_t>(start.place)];
    read.reading = false;
    if (world_.Plants(PlantedBug::kWrongPiece, 5)) read.unit = start.piece == 0 ? 1 : start.piece - 1;
    logic_->OnPieceRead(start.piece, good ? absl::OkStatus() : absl::DataLossError("a read failed"), world_.clock.now_ms(), actions_);
    CarryOut();
  });
}

// ---- Computing

void SimStage::ComputeSparse(const StageLogic::StartUnits& start) {
  const int32_t part = start.what.part;
  const bool by_neurons = ComputesNeurons(plan_, std::ssize(logic_->inbox().batch(start.what.microbatch).rows));
  const std::vector<UnitInPlace> units(start.units.begin(), start.units.end());
  const auto place_of = [this, part, by_neurons](const UnitInPlace& unit) -> Place& {
    return by_neurons ? unit_places_[{part, unit.place}] : piece_places_[static_cast<size_t>(unit.place)];
  };
  for (const UnitInPlace& unit : units) {
    Place& place = place_of(unit);
    if (place.reading) return world_.Violation(device().name, ": computes with place ", unit.place, ", which is not read");
    place.computing = true;
  }
  After(world_.Between(0.02, 0.1) * (1 + static_cast<double>(units.size()) / 32), [this, part, by_neurons, units, place_of] {
    if (dead_) return;
    absl::Status status = by_neurons ? ComputeNeurons(part, units) : ComputePieces(part, units);
    for (const UnitInPlace& unit : units) place_of(unit).computing = false;
    units_left_ -= std::ssize(units);
    if (status.ok() && units_left_ == 0) status = backend_.EndBlock();
    if (!status.ok()) return world_.Violation(device().name, ": ", status.message());
    logic_->OnComputed({}, world_.clock.now_ms(), actions_);
    CarryOut();
  });
}

absl::Status SimStage::ComputeNeurons(int32_t part, const std::vector<UnitInPlace>& units) {
  std::vector<NeuronInMemory> neurons;
  for (const auto& [neuron, row] : units) {
    const Place& place = unit_places_[{part, row}];
    if (place.unit != neuron) return absl::InternalError(absl::StrCat("row ", row, " has neuron ", place.unit, ", not ", neuron));
    neurons.push_back({.neuron = neuron, .down = reinterpret_cast<const std::byte*>(&place.content)});
  }
  world_.neurons.computed += std::ssize(neurons);
  return backend_.ComputeNeurons(plan_.parts[static_cast<size_t>(part)].block, neurons);
}

absl::Status SimStage::ComputePieces(int32_t part, const std::vector<UnitInPlace>& units) {
  const PlanPart& what = plan_.parts[static_cast<size_t>(part)];
  const std::vector<BlockPart> pieces = SparsePieces(spec_.block(what.block), what);
  for (const auto& [piece, place] : units) {
    if (piece_places_[static_cast<size_t>(place)].unit != piece)
      return absl::InternalError(
          absl::StrCat("place ", place, " has piece ", piece_places_[static_cast<size_t>(place)].unit, ", not ", piece));
    backend_.AddWeights(HashModel::WeightsOf(what.block, pieces[static_cast<size_t>(piece)].rows));
  }
  return absl::OkStatus();
}

}  // namespace lime
