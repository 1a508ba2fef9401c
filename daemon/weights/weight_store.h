// Everything that computes gets its weights here, block by block, however they come into memory.
#pragma once

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
#include "planner/plan/block_pieces.h"
#include "planner/plan/model_spec.h"

namespace lime {

// One tensor in memory. `data` is aligned to its element, and lives as long as its block's storage.
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
  // Mapping or buffer, which the blocks of one LoadBlocks call share. Of a buffer, pages whose tensors no block has any more are given
  // back.
  std::shared_ptr<const void> storage;
};

// Thread: LoadBlocks from any thread, one load at a time; the rest is immutable. Blocks outlive the store.
class WeightStore {
 public:
  struct Options {
    LoaderKind loader = LoaderKind::kAuto;
    ReadLoaderOptions read;
    Bytes weight_bytes = 0;      // that will be loaded, for the choice; 0: all of the model
    Bytes available_memory = 0;  // 0: ask the system
    int64_t passes = 1;          // times the run will read all weights, for the choice
  };

  // Opens the files and chooses the loader. REQUIRES: `checkpoint` and `spec` outlive the store, and `spec` was built from `checkpoint`.
  static absl::StatusOr<std::unique_ptr<WeightStore>> Open(const Checkpoint& checkpoint, const ModelSpec& spec, const Options& options);

  // Which loader, and why.
  const LoaderChoice& choice() const { return choice_; }
  // "read (O_DIRECT through io_uring, 4 in flight): only 0 % of ..."; for people.
  std::string Describe() const;
  // What LoadBlocks has read from the disk so far, where it was the disk that took the time.
  SteadyReads steady() const { return loader_->steady(); }

  // Brings `ids` into memory, neighbours in one sequential read. Tensors that several blocks name (a tied output) are one memory, also
  // across calls as long as one of the blocks lives.
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
  // Tensors that more than one block names, while somebody holds them.
  std::map<std::string, Shared, std::less<>> shared_ ABSL_GUARDED_BY(mutex_);
};

// The small tensors of blocks that stream stay in memory: norms, biases, learned positions.

// Reads the kept tensors (IsKept) of one block into memory of their own, each on 64 bytes; `data` of all others is null. Compares
// checksums where the checkpoint knows them: kDataLoss then names file and tensor.
absl::StatusOr<LoadedBlock> LoadKept(const Checkpoint& checkpoint, const BlockSpec& block);

// Memory that LoadKept takes for the block.
Bytes KeptMemory(const BlockSpec& block);

}  // namespace lime
