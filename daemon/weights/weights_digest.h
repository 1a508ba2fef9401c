// Whether two folders hold the same weights: compared by their values, so that a checkpoint, a
// block store and blocks that were pushed agree where they hold the same, whatever their files are
// called and however they are laid out.
//
// Of a tensor up to 64 KiB all bytes are read, of a larger one 16 KiB at four places, which its
// block, role and shape fix: some 45 MB of a model of 70 billion parameters, past the page cache. A
// training run changes values everywhere, so it is told apart; a single changed value is not,
// unless both sides have checksums of whole blocks, which are compared as well.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "absl/synchronization/mutex.h"
#include "daemon/weights/checkpoint.h"
#include "planner/base/status.h"
#include "planner/plan/model_spec.h"
#include "planner/plan/weights_digest.h"

namespace lime {

// ---- Which model a folder holds, whatever its name and however its tensors are spread over files

// Over config.json, name, dtype and shape of all tensors, and 16 places of each, from its first bytes to its last, since fine-tunings share
// all the rest. Never 0.
absl::StatusOr<uint64_t> DigestTensors(const Checkpoint& checkpoint);

// The same of the model that a block store was made from, as its manifest says; of another folder, DigestTensors.
absl::StatusOr<uint64_t> ModelDigest(const Checkpoint& checkpoint);

// ---- Whether the weights are the same

// Samples that were taken before, so that a device that installs one plan after another reads each
// of them once. A file that was written since has other ones. Any thread.
class SampleMemory {
 public:
  // Nothing where the block was never sampled, or its files have changed.
  std::optional<uint64_t> Find(const std::string& key) const;
  void Keep(const std::string& key, uint64_t sample);

 private:
  mutable absl::Mutex mutex_;
  std::map<std::string, uint64_t> samples_ ABSL_GUARDED_BY(mutex_);
};

// Of `blocks`, all of which the checkpoint holds, in their order. `model`: name for people.
// `memory` may be null. Reads on all cores.
absl::StatusOr<WeightsDigest> DigestWeights(const Checkpoint& checkpoint, const ModelSpec& spec, std::span<const BlockId> blocks,
                                            std::string model, SampleMemory* memory = nullptr);
// Of the whole model.
absl::StatusOr<WeightsDigest> DigestWeights(const Checkpoint& checkpoint, const ModelSpec& spec, std::string model);

// Of a digest of the whole model, one number by which a plan says what it belongs to; never 0.
uint64_t WeightsXxh3(const WeightsDigest& digest);

// Of what config.json says of the computation: whatever changes a logit and is no tensor.
uint64_t ConfigXxh3(const ModelConfig& config);

// FailedPrecondition, naming the folder, the other model and the first block that differs, where
// the blocks of `expected` have other values here. REQUIRES: the checkpoint holds them.
absl::Status CheckWeights(const Checkpoint& checkpoint, const ModelSpec& spec, const WeightsDigest& expected, SampleMemory* memory);

}  // namespace lime
