#include "tests/sim/hash_backend.h"

#include <algorithm>
#include <cstring>

#include "planner/plan/plan.h"
#include "tests/sim/hash_model.h"

namespace lime {

HashBackend::HashBackend(const ModelSpec& spec, const Shape& shape)
    : spec_(spec),
      shape_(shape),
      memory_(static_cast<size_t>(shape.pages * shape.page_bytes)),
      shown_(static_cast<size_t>(shape.sequences), std::vector<std::vector<int32_t>>(static_cast<size_t>(spec.config.num_layers()))),
      states_(static_cast<size_t>(shape.sequences), std::vector<LayerState>(static_cast<size_t>(spec.config.num_layers()))),
      snapshots_(static_cast<size_t>(shape.sequences * shape.snapshots), states_.front()) {}

// ---- KV

void HashBackend::SetPages(int32_t sequence, int64_t layer, std::span<const int32_t> pages) {
  shown_[static_cast<size_t>(sequence)][static_cast<size_t>(layer)].assign(pages.begin(), pages.end());
}

int32_t HashBackend::PageOf(int32_t sequence, int32_t layer, int64_t position) const {
  const std::vector<int32_t>& pages = shown_[static_cast<size_t>(sequence)][static_cast<size_t>(layer)];
  const size_t at = static_cast<size_t>(position / kPageTokens);
  return at < pages.size() ? pages[at] : -1;
}

uint64_t HashBackend::KvAt(const std::byte* page, Bytes page_bytes, int64_t in_page) {
  uint64_t kv = 0;
  std::memcpy(&kv, page + in_page * (page_bytes / kPageTokens), sizeof kv);
  return kv;
}

void HashBackend::SetKv(int32_t page, int64_t in_page, uint64_t kv) {
  std::memcpy(KvPage(page) + in_page * (shape_.page_bytes / kPageTokens), &kv, sizeof kv);
}

uint64_t HashBackend::OfPiece(const std::byte* piece, int64_t first) const {
  uint64_t sum = 0;
  for (int64_t p = 0; p < kKvPiece; ++p)
    sum += HashModel::Attended(KvAt(piece + p / kPageTokens * shape_.page_bytes, shape_.page_bytes, p % kPageTokens), first + p);
  return sum;
}

// ---- States

std::span<std::byte> HashBackend::State(int32_t sequence, int64_t layer) {
  if (spec_.config.layer(layer).has_kv()) return {};
  return std::as_writable_bytes(std::span(&StateOf(sequence, layer), 1));
}

std::span<std::byte> HashBackend::Snapshot(int32_t sequence, int32_t snapshot, int64_t layer) {
  if (spec_.config.layer(layer).has_kv()) return {};
  return std::as_writable_bytes(std::span(&SnapshotOf(sequence, snapshot, layer), 1));
}

void HashBackend::ForgetStates() {
  for (std::vector<LayerState>& layers : states_) {
    for (LayerState& state : layers) state.value = 0;
  }
}

// ---- Blocks

absl::Status HashBackend::Begin(const MicroBatch& batch) {
  batch_ = batch;
  return absl::OkStatus();
}

absl::Status HashBackend::Embed() {
  hidden_.clear();
  for (const BatchRow& row : batch_.rows) {
    if (row.token < 0) return absl::InternalError("a row begins without its token");
    hidden_.push_back(HashModel::Embed(row.token, row.position));
  }
  return absl::OkStatus();
}

absl::Status HashBackend::BeginBlock(BlockId block) {
  block_ = block;
  weights_.assign(batch_.rows.size(), 0);
  attended_.assign(batch_.rows.size(), 0), seen_.assign(batch_.rows.size(), 0);
  if (hidden_.size() != batch_.rows.size()) return absl::InternalError("hidden states of another batch");
  ChooseNeurons(HashModel::NeuronsOf(spec_.config, block));
  if (HasKv(block.kind)) return StoreKv();
  if (block.kind == BlockKind::kExperts) ChooseExperts();
  return HasState(block.kind) ? AddToStates() : absl::OkStatus();
}

absl::Status HashBackend::StoreKv() {
  for (size_t r = 0; r < batch_.rows.size(); ++r) {
    const BatchRow& row = batch_.rows[r];
    const int32_t page = PageOf(row.sequence, block_.layer, row.position);
    if (page < 0) return absl::InternalError(absl::StrCat("no page for position ", row.position, " of slot ", row.sequence));
    SetKv(page, row.position % kPageTokens, HashModel::Kv(hidden_[r], block_.layer));
  }
  return absl::OkStatus();
}

void HashBackend::ChooseExperts() {
  chosen_of_row_.clear(), chosen_.clear();
  for (const uint64_t hidden : hidden_) {
    chosen_of_row_.push_back(HashModel::Chosen(hidden, block_.layer, *spec_.config.experts));
    chosen_.insert(chosen_.end(), chosen_of_row_.back().begin(), chosen_of_row_.back().end());
  }
  std::ranges::sort(chosen_);
  chosen_.erase(std::unique(chosen_.begin(), chosen_.end()), chosen_.end());
}

// ---- Neurons

void HashBackend::ChooseNeurons(int64_t neurons) {
  active_of_row_.clear(), active_.clear(), computed_neurons_.reset();
  if (neurons == 0) return;
  for (const uint64_t hidden : hidden_) {
    active_of_row_.push_back(HashModel::Active(hidden, block_.layer, neurons));
    active_.insert(active_.end(), active_of_row_.back().begin(), active_of_row_.back().end());
  }
  std::ranges::sort(active_);
  active_.erase(std::unique(active_.begin(), active_.end()), active_.end());
}

absl::StatusOr<std::span<const int32_t>> HashBackend::DecideNeurons(BlockId block) {
  if (!(block == block_) || computed_neurons_) return absl::InternalError("neurons of another block are decided, or again");
  return std::span<const int32_t>(active_);
}

absl::Status HashBackend::ComputeNeurons(BlockId block, std::span<const NeuronInMemory> neurons) {
  if (!(block == block_)) return absl::InternalError("neurons of another block are computed");
  size_t computed = computed_neurons_.value_or(0);
  for (const NeuronInMemory& neuron : neurons) {
    if (computed == active_.size() || active_[computed] != neuron.neuron)
      return absl::InternalError(absl::StrCat("neuron ", neuron.neuron, " is computed, which is not the next one"));
    uint64_t content = 0;
    std::memcpy(&content, neuron.down, sizeof content);
    for (size_t r = 0; r < weights_.size(); ++r) {
      if (std::ranges::binary_search(active_of_row_[r], neuron.neuron)) weights_[r] += content;
    }
    ++computed;
  }
  computed_neurons_ = computed;
  return absl::OkStatus();
}

// What was computed from whole matrices has all neurons.
absl::Status HashBackend::EndNeurons() {
  if (computed_neurons_ && *computed_neurons_ != active_.size())
    return absl::InternalError(absl::StrCat("a block ends with ", *computed_neurons_, " of its ", active_.size(), " active neurons"));
  if (computed_neurons_) return absl::OkStatus();
  for (size_t r = 0; r < active_of_row_.size(); ++r) {
    for (const int32_t neuron : active_of_row_[r]) weights_[r] += HashModel::Neuron(block_, neuron);
  }
  return absl::OkStatus();
}

// ---- Experts

// The lower half of the experts, which is chosen more often, in an order that depends on the rows;
// some guesses begin with an expert of the upper half.
size_t HashBackend::GuessUnits(BlockId /*block*/, BlockId next, std::span<const RowsInMemory> /*router*/, std::span<int32_t> units) {
  if (std::ssize(hidden_) > kMostGuessRows) return 0;
  uint64_t seed = static_cast<uint64_t>(next.layer);
  for (const uint64_t hidden : hidden_) seed = HashModel::Mix(hidden, seed);
  const auto count = static_cast<uint64_t>(spec_.config.experts->count), often = (count + 1) / 2;
  size_t guessed = 0;
  if (seed % 4 == 0 && often < count) units[guessed++] = static_cast<int32_t>(often + seed / 4 % (count - often));
  for (uint64_t i = 0; i < often && guessed < units.size(); ++i) units[guessed++] = static_cast<int32_t>((seed / 8 + i) % often);
  return guessed;
}

void HashBackend::AddWeights(const HashModel::Weights& weights) {
  for (size_t r = 0; r < weights_.size(); ++r) {
    weights_[r] += weights.shared;
    for (const auto& [expert, value] : weights.expert)
      if (std::ranges::binary_search(chosen_of_row_[r], expert)) weights_[r] += value;
  }
}

absl::Status HashBackend::AddToStates() {
  for (size_t r = 0; r < batch_.rows.size(); ++r) {
    const BatchRow& row = batch_.rows[r];
    LayerState& state = StateOf(row.sequence, block_.layer);
    if (row.position == 0) state = {};
    if (state.positions != row.position) {
      return absl::InternalError(absl::StrCat("the state of sequence slot ", row.sequence, " in layer ", block_.layer, " has ",
                                              state.positions, " positions, the row is at ", row.position));
    }
    state.value = HashModel::State(state.value, hidden_[r], block_.layer);
    attended_[r] = state.value, ++state.positions;
    if (row.snapshot >= 0) SnapshotOf(row.sequence, row.snapshot, block_.layer) = state;
  }
  return absl::OkStatus();
}

// Attention sees the pages that are shown; all else it has seen by now.
absl::Status HashBackend::EndBlock() {
  LIME_RETURN_IF_ERROR(EndNeurons());
  for (size_t r = 0; r < batch_.rows.size(); ++r) {
    const BatchRow& row = batch_.rows[r];
    for (int64_t p = 0; HasKv(block_.kind) && p <= row.position; ++p) {
      const int32_t page = PageOf(row.sequence, block_.layer, p);
      if (page < 0) continue;
      attended_[r] += HashModel::Attended(KvAt(page, p % kPageTokens), p);
      ++seen_[r];
    }
    if (HasKv(block_.kind) && seen_[r] != row.position + 1)
      return absl::InternalError(
          absl::StrCat("attention has seen ", seen_[r], " positions of slot ", row.sequence, ", of ", row.position + 1));
    hidden_[r] = HashModel::Block(hidden_[r], weights_[r], attended_[r]);
  }
  return absl::OkStatus();
}

// ---- Units of other devices

namespace {

// What a unit computes for a row: its weights, and a word that only this row and unit make.
struct UnitResult {
  uint64_t weights = 0, word = 0;
};

}  // namespace

absl::StatusOr<UnitInputs> HashBackend::InputsOfUnits(BlockId block) {
  if (!(block == block_)) return absl::InternalError("units of another block");
  const size_t row_bytes = static_cast<size_t>(spec_.config.hidden_size * ElementBytes(spec_.working_dtype));
  unit_inputs_.assign(hidden_.size() * row_bytes, std::byte{0});
  units_of_rows_.clear();
  for (size_t r = 0; r < hidden_.size(); ++r) {
    std::memcpy(unit_inputs_.data() + r * row_bytes, &hidden_[r], sizeof hidden_[r]);
    units_of_rows_.insert(units_of_rows_.end(), chosen_of_row_[r].begin(), chosen_of_row_[r].end());
  }
  return UnitInputs{.rows = unit_inputs_, .units = units_of_rows_};
}

absl::StatusOr<Bytes> HashBackend::UnitResultBytes(BlockId, int32_t unit) {
  const auto rows = std::ranges::count_if(chosen_of_row_, [unit](const auto& of_row) { return std::ranges::binary_search(of_row, unit); });
  return rows * spec_.config.hidden_size * static_cast<Bytes>(sizeof(float));
}

absl::Status HashBackend::TakeUnitResult(BlockId block, int32_t unit, std::span<const std::byte> result) {
  if (!(block == block_)) return absl::InternalError("a result of another block");
  const size_t row_bytes = static_cast<size_t>(spec_.config.hidden_size) * sizeof(float);
  for (size_t r = 0, at = 0; r < hidden_.size(); ++r) {
    if (!std::ranges::binary_search(chosen_of_row_[r], unit)) continue;
    UnitResult of_row;
    std::memcpy(&of_row, result.data() + at++ * row_bytes, sizeof of_row);
    if (of_row.word != HashModel::Mix(hidden_[r], static_cast<uint64_t>(unit)))
      return absl::InternalError(absl::StrCat("the result of unit ", unit, " is of another row"));
    unit_results_[unit] = of_row.weights;
  }
  return absl::OkStatus();
}

absl::Status HashBackend::UseUnitResults(BlockId, std::span<const int32_t> units) {
  for (const int32_t unit : units) {
    const auto result = unit_results_.find(unit);
    if (result == unit_results_.end()) return absl::InternalError(absl::StrCat("unit ", unit, " has no result"));
    AddWeights({.expert = {{unit, result->second}}});
    unit_results_.erase(result);
  }
  return absl::OkStatus();
}

absl::Status HashBackend::ComputeUnitsFor(BlockId block, std::span<const std::byte> inputs, std::span<const UnitForRows> units,
                                          std::span<float> results) {
  const size_t width = static_cast<size_t>(spec_.config.hidden_size),
               row_bytes = width * static_cast<size_t>(ElementBytes(spec_.working_dtype));
  size_t at = 0;
  for (const UnitForRows& unit : units) {
    std::vector<MatrixRows> rows;
    for (const RowsInMemory& matrix : unit.matrices) rows.push_back(matrix.rows);
    const int32_t id = rows.front().expert;
    const UnitResult computed{.weights = HashModel::WeightsOf(block, rows).expert.at(id)};
    for (const int32_t row : unit.rows) {
      uint64_t hidden = 0;
      std::memcpy(&hidden, inputs.data() + static_cast<size_t>(row) * row_bytes, sizeof hidden);
      const UnitResult of_row{.weights = computed.weights, .word = HashModel::Mix(hidden, static_cast<uint64_t>(id))};
      std::memcpy(&results[at++ * width], &of_row, sizeof of_row);
    }
  }
  return absl::OkStatus();
}

absl::Status HashBackend::AttendToPieces(int64_t, int64_t begin, int64_t end, std::span<const std::byte* const> places) {
  for (size_t r = 0; r < batch_.rows.size(); ++r) {
    const int32_t s = batch_.rows[r].sequence;
    for (int64_t piece = begin; piece < end; ++piece) {
      const std::byte* const place = places[static_cast<size_t>(s * (end - begin) + piece - begin)];
      if (place == nullptr) continue;
      attended_[r] += OfPiece(place, piece * kKvPiece);
      seen_[r] += kKvPiece;
    }
  }
  return absl::OkStatus();
}

// What is asked needs no query; it is there to be compared with.
absl::StatusOr<std::span<const float>> HashBackend::Queries(int64_t layer) {
  const auto width = static_cast<size_t>(spec_.config.num_heads * spec_.config.MostHeadDim());
  queries_.assign(batch_.rows.size() * width, static_cast<float>(layer));
  for (size_t r = 0; r < batch_.rows.size(); ++r) queries_[r * width] = static_cast<float>(batch_.rows[r].position);
  return std::span<const float>(queries_);
}

absl::Status HashBackend::AttendFor(std::span<const int32_t> positions, std::span<const float> queries,
                                    std::span<const std::byte* const> pieces, std::span<float> records) {
  const auto width = static_cast<size_t>(spec_.config.num_heads * spec_.config.MostHeadDim());
  uint64_t sum = 0;
  for (int64_t piece = 0; piece < std::ssize(pieces); ++piece) sum += OfPiece(pieces[static_cast<size_t>(piece)], piece * kKvPiece);
  for (size_t r = 0; r < positions.size(); ++r) {
    if (static_cast<int32_t>(queries[r * width]) != positions[r]) return absl::InternalError("positions and queries do not agree");
    std::memcpy(&records[r * 2], &sum, sizeof sum);
  }
  return absl::OkStatus();
}

absl::Status HashBackend::ContinueFromRecords(int64_t, std::span<const int32_t> covered, std::span<const float> records) {
  for (size_t r = 0; r < batch_.rows.size(); ++r) {
    const int32_t pieces = covered[static_cast<size_t>(batch_.rows[r].sequence)];
    if (pieces == 0) continue;
    uint64_t sum = 0;
    std::memcpy(&sum, &records[r * 2], sizeof sum);
    attended_[r] += sum;
    seen_[r] += pieces * kKvPiece;
  }
  return absl::OkStatus();
}

}  // namespace lime
