// Loads weights block by block for everything that computes, by one of two loaders.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/loader.h"
#include "daemon/weights/loader_choice.h"
#include "planner/base/status.h"
#include "planner/plan/model/block_parts.h"
#include "planner/plan/model/model_spec.h"

namespace lime {

// One tensor in memory. `data` is aligned to its element and lives as long as its block's storage.
struct LoadedTensor {
  TensorRole role = TensorRole::kNorm;
  TensorPart part = TensorPart::kWeight;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  Bytes bytes = 0;
};

struct LoadedBlock {
  BlockId id;
  std::vector<LoadedTensor> tensors;  // in the order of BlockSpec
  // The mapping or buffer that the blocks of one LoadBlocks call share. Pages of a buffer are
  // returned to the system when no block has their tensor any more.
  std::shared_ptr<const void> storage;
};

// Thread: LoadBlocks from any thread, one load at a time; the rest is immutable. Blocks may outlive
// the store.
class WeightStore {
 public:
  struct Options {
    LoaderKind loader = LoaderKind::kAuto;
    ReadLoaderOptions read;
    // Bytes that will be loaded, for the choice of the loader. 0: the whole model.
    Bytes weight_bytes = 0;
    Bytes available_memory = 0;  // 0: ask the system
    // How often the run will read all weights, for the choice of the loader.
    int64_t passes = 1;
  };

  // Opens the files and chooses the loader. REQUIRES: `checkpoint` and `spec` outlive the store;
  // `spec` was built from `checkpoint`.
  static absl::StatusOr<std::unique_ptr<WeightStore>> Open(const Checkpoint& checkpoint, const ModelSpec& spec, const Options& options);

  // The chosen loader, and why.
  const LoaderChoice& choice() const { return choice_; }
  // For people, such as "read (O_DIRECT through io_uring, 4 in flight): only 0 % of ...".
  std::string Describe() const;
  // The bytes that the disk has delivered so far while LoadBlocks waited for it.
  SteadyReads steady() const { return loader_->steady(); }

  // Loads `ids` into memory; neighbours in a file are one sequential read. A tensor that several
  // blocks use (a tied output) is in memory once, also across calls, as long as one of its blocks
  // lives.
  absl::StatusOr<std::vector<LoadedBlock>> LoadBlocks(std::span<const BlockId> ids, const LoadOptions& options = {});
  // All blocks of the model, in execution order.
  absl::StatusOr<std::vector<LoadedBlock>> LoadAll(const LoadOptions& options = {});

 private:
  struct Shared {
    std::weak_ptr<const void> storage;
    const std::byte* data = nullptr;
  };

  WeightStore(const Checkpoint& checkpoint, const ModelSpec& spec, LoaderChoice choice, std::unique_ptr<Loader> loader)
      : checkpoint_(checkpoint), spec_(spec), choice_(std::move(choice)), loader_(std::move(loader)) {}

  absl::StatusOr<LoadedTensors> LoadChecked(const std::vector<WantedTensor>& wanted, const LoadOptions& options);

  const Checkpoint& checkpoint_;
  const ModelSpec& spec_;
  const LoaderChoice choice_;
  absl::Mutex mutex_;
  const std::unique_ptr<Loader> loader_;
  // Tensors that more than one block uses, as long as a block with them lives.
  std::map<std::string, Shared, std::less<>> shared_ ABSL_GUARDED_BY(mutex_);
};

// The small tensors of a streamed block stay in memory: norms, biases, learned positions (IsPinned). A
// sparse block keeps others, too.

// Reads these tensors of one block into memory of their own, each aligned to 64 bytes; `data` of all
// other tensors is null. Compares checksums if the checkpoint has them: kDataLoss names the file.
absl::StatusOr<LoadedBlock> LoadPinned(const Checkpoint& checkpoint, const BlockSpec& block,
                                       const std::function<bool(const TensorSpec&)>& stays = IsPinned);

// Memory that LoadPinned needs for the block.
Bytes PinnedMemory(const BlockSpec& block, const std::function<bool(const TensorSpec&)>& stays = IsPinned);

}  // namespace lime
