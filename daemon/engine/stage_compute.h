// Computes one part of one micro-batch on the backend: what a Compute of a Program means.
//
// Thread: the compute thread, one call at a time.   Owner: StageEngine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/activation.h"
#include "daemon/engine/stage_parts.h"
#include "daemon/logic/head_partial.h"
#include "planner/base/status.h"
#include "planner/plan/plan.h"
#include "planner/program_runner.h"

namespace lime {

class StageCompute {
 public:
  struct Owner {
    // Where rows of a part lie in the step: StageWeights::Rows, under the owner's lock.
    std::function<RowsInMemory(int part, int i, int64_t step)> rows_of;
    // Attends to what of a KV part is on the disk in the step.
    std::function<absl::Status(int part, int64_t step, const MicroBatch& batch)> attend;
    // Where the plan evicts KV: all rows of a micro-batch of the step under way.
    std::function<MicroBatch(int32_t microbatch)> whole_batch;
  };

  // REQUIRES: `parts` are open, and outlive this.
  StageCompute(const StageParts& parts, Owner owner);

  // `input`: what the visit begins with, of PayloadInto its stage; empty where it goes on, or begins with the embedding. InvalidArgument
  // where this is not of the batch's size.
  absl::Status Run(const ProgramRunner::StartCompute& start, const MicroBatch& batch, std::span<const std::byte> input);
  // From now on rows of the embedding are read.  Any thread, while Run is not called
  void ReadRowsWith(RowReader* rows) { rows_ = rows; }

  // The hidden states that the visit ends with.
  std::span<const std::byte> Hidden() const { return parts_.visit != nullptr ? parts_.visit->Hidden() : parts_.backend->Hidden(); }

  // What the last part of the plan has sampled, in the order of the batch's rows.
  const std::vector<SampledToken>& sampled() const { return sampled_; }
  // After a part of the head that is its stage's last and not the plan's: what the next stage is handed; empty for a batch without rows.
  // `memory` serves the next one.
  std::vector<std::byte> TakeHeadPartial(std::vector<std::byte> memory) {
    memory.clear();
    return std::exchange(head_partial_, std::move(memory));
  }

 private:
  absl::Status RunSliced(const ProgramRunner::StartCompute& start, const MicroBatch& batch, std::span<const std::byte> input);
  absl::Status Embed(const MicroBatch& batch);
  absl::Status EmbedBegun(const MicroBatch& batch);
  void ForBackend(MicroBatch& batch) const;
  absl::Status Begin(const MicroBatch& batch);
  absl::Status TakeInput(const ProgramRunner::StartCompute& start, const MicroBatch& batch, std::span<const std::byte> input);
  absl::StatusOr<std::span<const std::byte>> TakeLogits(int64_t ids, const MicroBatch& batch, std::span<const std::byte> input);
  absl::Status ComputePart(int part, int64_t step);
  absl::Status Sample(const MicroBatch& batch);
  absl::Status TellLogits(int64_t ids, const MicroBatch& batch);
  absl::Status FindLogitsUsed(const MicroBatch& batch);
  size_t vocab() const { return static_cast<size_t>(parts_.spec.config.vocab_size); }

  const StageParts& parts_;
  const Plan& plan_;
  TokenSampler* const sampler_;  // where this device has a part of the head
  const Owner owner_;
  RowReader* rows_;  // null: the embedding is resident, or elsewhere
  std::vector<SampledToken> sampled_;
  std::vector<std::byte> head_partial_;
  HeadPartialEncoder head_encoder_;
  HeadPartial partial_;        // that the visit begins with
  std::vector<int64_t> used_;  // by row that asks for logits, how many of the largest its token depends on
  std::vector<int32_t> tokens_;
  MicroBatch begun_;
};

}  // namespace lime
