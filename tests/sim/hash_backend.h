// A Backend that hashes (tests/sim/hash_model.h): blocks are begun, get their weights part by part
// and are ended; K and V of a position are 8 bytes of its page. It is an error if attention misses
// a position or sees it twice, or if a state does not get the rows of its sequence in order.
//
// Owner: SimStage. Weights come by AddWeights instead of as tensors, so BindBlock and ComputeRows
// do nothing. A neuron in memory is 8 bytes, where NeuronInMemory::down points: HashModel::Neuron.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "planner/plan/micro_batch.h"
#include "planner/plan/model/model_spec.h"
#include "tests/sim/hash_model.h"

namespace lime {

class HashBackend final : public Backend {
 public:
  struct Shape {
    int32_t sequences = 1;
    int64_t pages = 0;  // largest number
    Bytes page_bytes = 0;
    int32_t snapshots = 0;  // of the states of each slot
  };
  // REQUIRES: `spec` outlives this.
  HashBackend(const ModelSpec& spec, const Shape& shape);

  // ---- A block

  // The hidden states with which a visit begins, unless it begins with the embedding.
  void SetHidden(std::vector<uint64_t> hidden) { hidden_ = std::move(hidden); }
  const std::vector<uint64_t>& hidden() const { return hidden_; }
  // An attention block also stores K and V of the batch's rows, or adds the rows to the states.
  absl::Status BeginBlock(BlockId block);
  // Experts may come in any order, and others than the chosen ones, too.
  void AddWeights(const HashModel::Weights& weights);
  absl::Status EndBlock();

  // Page of a position of a slot; -1: none is shown.
  int32_t PageOf(int32_t sequence, int32_t layer, int64_t position) const;
  // The data stored for a position there.
  static uint64_t KvAt(const std::byte* page, Bytes page_bytes, int64_t in_page);
  void SetKv(int32_t page, int64_t in_page, uint64_t kv);
  uint64_t KvAt(int32_t page, int64_t in_page) { return KvAt(KvPage(page), shape_.page_bytes, in_page); }
  // All states lose their rows, but not the number of them.
  void ForgetStates();
  // The pages of a slot, by layer of the model.
  std::vector<std::vector<int32_t>>& shown(int32_t sequence) { return shown_[static_cast<size_t>(sequence)]; }

  // ---- Backend

  std::string numerics_id() const override { return "hash"; }
  std::string description() const override { return "hash"; }
  absl::Status BindBlock(const BlockSpec&, BlockWeights) override { return absl::OkStatus(); }
  void SetPages(int32_t sequence, int64_t layer, std::span<const int32_t> pages) override;
  std::span<std::byte> State(int32_t sequence, int64_t layer) override;
  std::span<std::byte> Snapshot(int32_t sequence, int32_t snapshot, int64_t layer) override;
  std::byte* KvPage(int32_t page) override { return memory_.data() + page * shape_.page_bytes; }
  std::shared_ptr<const std::byte> ShareKv() override { return {std::shared_ptr<void>(), memory_.data()}; }
  absl::Status ResizeKv(int64_t) override { return absl::OkStatus(); }
  absl::Status Begin(const MicroBatch& batch) override;
  absl::Status Compute(BlockId block) override { return block.kind == BlockKind::kEmbedding ? Embed() : absl::OkStatus(); }
  absl::Status ComputeRows(BlockId, const RowsInMemory&) override { return absl::OkStatus(); }
  std::span<const int32_t> ChosenUnits(BlockId) const override { return chosen_; }
  absl::StatusOr<std::span<const int32_t>> DecideNeurons(BlockId block) override;
  absl::Status ComputeNeurons(BlockId block, std::span<const NeuronInMemory> neurons) override;
  absl::Status AttendToPieces(int64_t layer, int64_t begin, int64_t end, std::span<const std::byte* const> places) override;
  absl::StatusOr<std::span<const float>> Queries(int64_t layer) override;
  int64_t RecordFloats() const override { return 2; }
  absl::Status AttendFor(std::span<const int32_t> positions, std::span<const float> queries, std::span<const std::byte* const> pieces,
                         std::span<float> records) override;
  absl::Status ContinueFromRecords(int64_t layer, std::span<const int32_t> covered, std::span<const float> records) override;
  absl::StatusOr<UnitInputs> InputsOfUnits(BlockId block) override;
  absl::StatusOr<Bytes> UnitResultBytes(BlockId block, int32_t unit) override;
  absl::Status TakeUnitResult(BlockId block, int32_t unit, std::span<const std::byte> result) override;
  absl::Status UseUnitResults(BlockId block, std::span<const int32_t> units) override;
  absl::Status ComputeUnitsFor(BlockId block, std::span<const std::byte> inputs, std::span<const UnitForRows> units,
                               std::span<float> results) override;
  absl::Status EmbedRows(const RowsInMemory&) override { return Embed(); }
  std::span<std::byte> Hidden() override { return std::as_writable_bytes(std::span(hidden_)); }
  std::span<float> Logits() override { return {}; }
  Bytes ActivationBytes() const override { return 0; }
  Bytes KvBytes() const override { return std::ssize(memory_); }
  size_t GuessUnits(BlockId block, BlockId next, std::span<const RowsInMemory> router, std::span<int32_t> units) override;

 private:
  // Of one sequence in a layer.
  struct LayerState {
    int64_t positions = 0;
    uint64_t value = 0;
  };

  absl::Status Embed();
  absl::Status StoreKv();
  void ChooseExperts();
  void ChooseNeurons(int64_t neurons);
  absl::Status EndNeurons();
  absl::Status AddToStates();
  LayerState& StateOf(int32_t sequence, int64_t layer) { return states_[static_cast<size_t>(sequence)][static_cast<size_t>(layer)]; }
  LayerState& SnapshotOf(int32_t sequence, int32_t snapshot, int64_t layer) {
    return snapshots_[static_cast<size_t>(sequence * shape_.snapshots + snapshot)][static_cast<size_t>(layer)];
  }
  uint64_t OfPiece(const std::byte* piece, int64_t first) const;

  const ModelSpec& spec_;
  const Shape shape_;
  std::vector<std::byte> memory_;
  std::vector<std::vector<std::vector<int32_t>>> shown_;  // [slot][layer]
  std::vector<std::vector<LayerState>> states_;           // [slot][layer]
  std::vector<std::vector<LayerState>> snapshots_;        // [slot * Shape::snapshots + snapshot][layer]
  MicroBatch batch_;
  std::vector<uint64_t> hidden_, attended_;  // by row
  std::vector<int64_t> seen_;                // by row: positions that attention has seen in the block
  BlockId block_;
  std::vector<uint64_t> weights_;                    // by row: of the block so far
  std::vector<std::vector<int32_t>> chosen_of_row_;  // by row: experts
  std::vector<int32_t> chosen_;                      // by any row, ascending
  // Of an MLP with ReLU: by row, the active neurons; those of any row, ascending; and how many of them
  // are computed, if they are computed alone.
  std::vector<std::vector<int32_t>> active_of_row_;
  std::vector<int32_t> active_;
  std::optional<size_t> computed_neurons_;
  std::vector<float> queries_;
  // For units of other devices: by row, its input; by row, the units of all rows; by unit, the sum
  // of its weights as it came, until it is used.
  std::vector<std::byte> unit_inputs_;
  std::vector<int32_t> units_of_rows_;
  std::map<int32_t, uint64_t> unit_results_;
};

}  // namespace lime
