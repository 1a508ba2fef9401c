// Carries out a Compute instruction of a Program: computes one part for one micro-batch on the
// backend.
//
// Thread: the compute thread, one call at a time.   Owner: StageEngine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/activation.h"
#include "daemon/engine/stage_parts.h"
#include "daemon/logic/head_partial.h"
#include "daemon/logic/stage_logic.h"
#include "planner/base/status.h"
#include "planner/plan/plan.h"
#include "planner/program/program_runner.h"

namespace lime {

class StageCompute {
 public:
  struct Owner {
    // Returns where rows of a part lie in a step: StageWeights::Rows, under the owner's lock.
    std::function<RowsInMemory(int part, int i, int64_t step)> rows_of;
    // Attends to the positions of a KV part that are on the disk or with the host in a step.
    std::function<absl::Status(int part, int64_t step, const MicroBatch& batch)> attend;
    // Computes with the results of the host of a part.
    std::function<absl::Status(int part)> use_results;
    // For parts.visit: all rows of a micro-batch of the current step.
    std::function<MicroBatch(int32_t microbatch)> whole_batch;
    // Returns rows of a later part if they stay in memory in this step, under the owner's lock.
    std::function<std::optional<RowsInMemory>(int part, int i, int64_t step)> resident_rows_of;
    // Takes the units that a later part will probably choose, the likeliest first. They may be read
    // ahead, by the host of the part if it has one.
    std::function<void(int part, std::span<const int32_t> units)> guessed;
  };

  // REQUIRES: `parts` are open and outlive this object.
  StageCompute(const StageParts& parts, Owner owner);

  // `input`: the payload with which the visit begins (PayloadInto its stage). Empty if the visit
  // goes on, or begins with the embedding. InvalidArgument if its size does not match the batch.
  absl::Status Run(const ProgramRunner::StartCompute& start, const MicroBatch& batch, std::span<const std::byte> input);
  // Computes units of a part on demand that are in memory, for the rows of the current visit. Before
  // the first of them, guesses the units of the stage's next block on demand, if that reads ahead.
  absl::Status RunUnits(int part, int64_t step, std::span<const UnitInPlace> units, const MicroBatch& batch);
  // The units of the part that the current micro-batch has chosen, ascending. Valid until the next
  // Run. Empty for a micro-batch without rows.  REQUIRES: the parts of the block before it have been
  // computed
  std::span<const int32_t> ChosenUnits(int part, const MicroBatch& batch);
  // The active neurons of a sparse part, ascending, for a micro-batch that computes them alone; of a
  // certified one those that are not proven to be zero. Valid until the next Run. Without any, the block is
  // computed.  REQUIRES: ComputesNeurons; the parts of the block before it, or the proofs, have been computed
  absl::StatusOr<std::span<const int32_t>> DecideNeurons(int part, const MicroBatch& batch);
  // The masks that the last rows of sequences that decode next had, for a micro-batch that computes the
  // part from pieces: as many as the part's window takes, with at most `rows` neurons. Valid until the
  // next call.  REQUIRES: the parts of the block before it, or the proofs, have been computed
  absl::StatusOr<SparseVisits::LastMasks> LastMasks(int part, const MicroBatch& batch, int64_t rows);
  // The neurons to copy from the pieces that are computed next (StageLogic::neuron_copies).
  void CopyNeurons(std::span<const NeuronWindow::Load> copies) { copies_ = copies; }
  // From now on reads the rows of the embedding with `rows`.  Thread: any, while Run is not called
  void ReadRowsWith(RowReader* rows) { rows_ = rows; }

  // The hidden states at the end of the visit.
  std::span<const std::byte> Hidden() const { return parts_.visit != nullptr ? parts_.visit->Hidden() : parts_.backend->Hidden(); }

  // The tokens that the plan's last part has sampled, in the order of the batch's rows.
  const std::vector<SampledToken>& sampled() const { return sampled_; }
  // After a part of the head that ends its stage but not the plan: the payload for the next stage.
  // Empty for a batch without rows. `memory` is used for the payload after that.
  std::vector<std::byte> ReleaseHeadPartial(std::vector<std::byte> memory) {
    memory.clear();
    return std::exchange(head_partial_, std::move(memory));
  }

 private:
  absl::Status RunSliced(const ProgramRunner::StartCompute& start, const MicroBatch& batch, std::span<const std::byte> input);
  absl::Status Embed(const MicroBatch& batch);
  absl::Status EmbedBegun(const MicroBatch& batch);
  void ForBackend(MicroBatch& batch) const;
  absl::Status Begin(const MicroBatch& batch);
  absl::Status ReadInput(const ProgramRunner::StartCompute& start, const MicroBatch& batch, std::span<const std::byte> input);
  absl::StatusOr<std::span<const std::byte>> ReadLogits(int64_t ids, const MicroBatch& batch, std::span<const std::byte> input);
  absl::Status ComputePart(int part, int64_t step, const MicroBatch& batch);
  absl::Status Prove(int part, const MicroBatch& batch);
  absl::Status FindLastMasks(int part, const MicroBatch& batch, int32_t most, int64_t rows);
  void FindNextParts();
  void GuessUnits(int part, int64_t step, const MicroBatch& batch);
  bool FindRouter(int part, int64_t step);
  int32_t UnitOf(int part, int32_t expert) const;
  absl::Status RunSparse(int part, std::span<const UnitInPlace> units, const MicroBatch& batch);
  absl::Status Sample(const MicroBatch& batch);
  absl::Status EncodeLogits(int64_t ids, const MicroBatch& batch);
  absl::Status FindLogitsUsed(const MicroBatch& batch);
  size_t vocab() const { return static_cast<size_t>(parts_.spec.config.vocab_size); }

  const StageParts& parts_;
  const Plan& plan_;
  TokenSampler* const sampler_;  // set if this device has a part of the head
  const Owner owner_;
  RowReader* rows_;  // null: the embedding is resident, or on another device
  std::vector<SampledToken> sampled_;
  std::vector<std::byte> head_partial_;
  HeadPartialEncoder head_encoder_;
  HeadPartial partial_;  // with which the visit begins
  // By row that wants logits: on how many of the largest logits its token depends.
  std::vector<int64_t> used_;
  std::vector<int32_t> chosen_;  // units of a part on demand
  std::vector<NeuronInMemory> neurons_;
  // Rows of a micro-batch whose sequences decode next, by their distance from the last row of their
  // sequence; and by neuron of a part: how many masks before the last one has it.
  std::vector<std::pair<int32_t, int32_t>> last_rows_;
  std::vector<int32_t> ages_;
  std::vector<int64_t> held_;                   // entry i: neurons of the last i + 1 masks together
  std::span<const int32_t> unproven_;           // neurons of the certified part that is computed
  std::span<const NeuronWindow::Load> copies_;  // from the pieces of the current part
  // By part on demand without a host: the next one of its stage, if that or a part of its block on a
  // host reads ahead; else -1.
  std::vector<int> next_part_;
  bool may_guess_ = false;  // units have been chosen, and none of them is computed
  std::vector<RowsInMemory> router_;
  std::array<int32_t, kMaxAheadPlaces> guessed_;  // experts, the likeliest first
  std::vector<int32_t> guessed_units_;            // of one part
  std::vector<int32_t> tokens_;
  MicroBatch begun_;
};

}  // namespace lime
