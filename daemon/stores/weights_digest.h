// Tells whether two folders hold the same weights. It compares values, so a checkpoint, a block
// store and pushed blocks agree if they hold the same, however their files are named and laid out.
//
// It reads all bytes of a tensor up to 64 KiB, and 16 KiB at each of four places of a larger one,
// past the page cache. Block, role and shape determine the places. A model of 70 billion parameters
// takes some 45 MB. Training changes values everywhere, so the samples detect it. They do not
// detect a single changed value. Checksums of whole blocks detect it; they are compared if both
// sides have them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "absl/synchronization/mutex.h"
#include "daemon/weights/checkpoint.h"
#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"
#include "planner/plan/model/weights_digest.h"

namespace lime {

// ---- Which model a folder holds, whatever its name and its split into files

// Hash of config.json, of name, dtype and shape of all tensors, and of 16 places in each tensor,
// from its first to its last bytes. The places are needed because fine-tuned models share all the
// rest. Never 0.
absl::StatusOr<uint64_t> DigestTensors(const Checkpoint& checkpoint);

// For a block store: DigestTensors of the model that the store was made from, as its manifest says.
// For any other folder: DigestTensors.
absl::StatusOr<uint64_t> ModelDigest(const Checkpoint& checkpoint);

// ---- Whether the weights are the same

// Remembers samples, so that a device that installs several plans samples each block once. Writing
// to a file invalidates its samples. Thread: any.
class SampleMemory {
 public:
  // Returns nothing if the block was never sampled, or if its files have changed.
  std::optional<uint64_t> Find(const std::string& key) const;
  void Remember(const std::string& key, uint64_t sample);

 private:
  mutable absl::Mutex mutex_;
  std::map<std::string, uint64_t> samples_ ABSL_GUARDED_BY(mutex_);
};

// Digest of `blocks`, in their order. `model` is a name for people; `memory` may be null. Reads on
// all cores. REQUIRES: the checkpoint holds all of them.
absl::StatusOr<WeightsDigest> DigestWeights(const Checkpoint& checkpoint, const ModelSpec& spec, std::span<const BlockId> blocks,
                                            std::string model, SampleMemory* memory = nullptr);
// Digest of the whole model.
absl::StatusOr<WeightsDigest> DigestWeights(const Checkpoint& checkpoint, const ModelSpec& spec, std::string model);

// Hashes a digest of the whole model into one number, by which a plan names its weights. Never 0.
uint64_t WeightsXxh3(const WeightsDigest& digest);

// Hash of every setting in config.json that can change a logit and is no tensor.
uint64_t ConfigXxh3(const ModelConfig& config);

// FailedPrecondition if the blocks of `expected` have other values here. It names the folder, the
// other model and the first block that differs. REQUIRES: the checkpoint holds the blocks.
absl::Status CheckWeights(const Checkpoint& checkpoint, const ModelSpec& spec, const WeightsDigest& expected, SampleMemory* memory);

}  // namespace lime
