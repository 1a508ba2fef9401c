// A Hugging Face folder: config.json and the tensors of one or several safetensors files.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/model_spec.h"

namespace lime {

struct StoreManifest;

struct CheckpointFile {
  std::string path;
  Bytes bytes = 0;
};

// Where the bytes of a tensor lie.
struct TensorLocation {
  int32_t file = 0;  // index into Checkpoint::files()
  int64_t offset = 0;
  Bytes bytes = 0;
};

// A range of a file that holds tensors of a block.
struct BlockExtent {
  int32_t file = 0;  // index into Checkpoint::files()
  int64_t offset = 0;
  Bytes bytes = 0;
  std::optional<uint64_t> xxh3;  // of exactly these bytes, where they are known

  friend bool operator==(const BlockExtent&, const BlockExtent&) = default;
};

// Immutable after Open; any thread.
class Checkpoint {
 public:
  // Reads config.json and every header, and checks them. `dir` holds `model.safetensors`, or `model.safetensors.index.json` and its shards,
  // or a whole set of model-0000N-of-0000M.safetensors, or is a block store; one that is not finished is refused. What an index names and
  // no shard has, or a shard that is missing, is an error of BuildModelSpec, where the model needs it.
  static absl::StatusOr<Checkpoint> Open(const std::string& dir);
  // The same, and also takes a store that was pushed, in which some blocks are holes (held_blocks.h). Whoever reads blocks of it asks
  // CheckHolds for them first.
  static absl::StatusOr<Checkpoint> OpenPart(const std::string& dir);
  // FailedPrecondition, naming what is missing, where not all of `blocks` are here.
  absl::Status CheckHolds(std::span<const BlockId> blocks) const;

  const std::string& dir() const { return dir_; }
  const std::string& config_json() const { return config_json_; }
  const std::vector<CheckpointFile>& files() const { return files_; }
  const TensorIndex& index() const { return index_; }

  // REQUIRES: `name` is in index().
  const TensorLocation& location(std::string_view name) const;

  // Whether `lime prepare` made this folder.
  bool is_block_store() const { return !store_extents_.empty(); }

  // Where a block lies in a block store, with its checksum; null in any other folder.
  const BlockExtent* StoreExtent(BlockId id) const;

  // XXH3-64 of bytes [offset, offset + bytes) of files()[file], where the block store says it: for every tensor that IsKept(), and for the
  // rows of every part of a matrix in every piece of CutBlock(block).
  std::optional<uint64_t> RangeHash(int32_t file, int64_t offset, Bytes bytes) const;
  // All such ranges that have some of these bytes, with their checksums, by offset.
  std::vector<BlockExtent> RangesOver(int32_t file, int64_t offset, Bytes bytes) const;

  // Compares the bytes of a tensor, all of them in memory, with every checksum that the block store says of them. OK where it says none.
  // DataLoss names file and offset.
  absl::Status CheckTensor(const TensorLocation& at, const std::byte* data) const;

  // By row of the table at `at`, which has rows of `row_bytes`: the low half of XXH3-64. Empty where no block store says them.
  std::span<const uint32_t> RowHashes(const TensorLocation& at, Bytes row_bytes) const;

  // config.json and headers put together and checked against each other.
  absl::StatusOr<ModelSpec> BuildModelSpec() const;

  // Tensors beside those of `spec`, which is of this checkpoint, on which the result may depend although config.json says nothing of them:
  // biases, norms and whatever else lies in the layers that are used. Not those of rotary tables, further layers and other modules.
  std::vector<std::string> IgnoredTensors(const ModelSpec& spec) const;

 private:
  // A tensor that an earlier file has, too, is an error unless `named` (tensor -> name of its file) says that it is here: then the index
  // and transformers, which takes the last, agree.
  absl::Status AddFile(const std::string& path, const std::map<std::string, std::string>& named = {});
  absl::Status AddShards(const std::string& index_path);
  absl::Status AddNumberedShards(const std::vector<std::string>& names);
  absl::Status MissingShard(const std::string& shard, const std::string& tensor) const;
  // Why a tensor that is needed is not in index_, where more is known than that.
  absl::Status ExplainMissing(const absl::Status& status) const;
  absl::Status AddManifest();
  absl::Status AddPushed();
  absl::Status PlaceBlocks(const StoreManifest& manifest);
  // That the manifest's blocks hold what the model's blocks need.
  absl::Status CheckManifest(const ModelSpec& spec) const;

  std::string dir_, config_path_, config_json_;
  std::vector<CheckpointFile> files_;
  TensorIndex index_;
  std::map<std::string, TensorLocation, std::less<>> locations_;
  std::map<std::string, std::string> unknown_dtypes_;           // of tensors that are not in index_, as they are spelled
  std::string shard_index_;                                     // path; empty: none
  std::map<std::string, std::string> not_in_shards_;            // tensors that it names and no shard has, with the shard
  std::vector<std::pair<BlockId, BlockExtent>> store_extents_;  // of a block store
  std::optional<std::vector<BlockId>> held_;                    // of a pushed store; none: everything is here
  std::vector<BlockExtent> store_ranges_;                       // with checksums, by file, offset and length
  std::map<std::tuple<int32_t, int64_t, Bytes>, std::vector<uint32_t>> store_rows_;  // by file, offset and bytes of a row
};

// The spec of the model in `dir`, for those who want nothing else of it.
absl::StatusOr<ModelSpec> LoadModelSpec(const std::string& dir);

}  // namespace lime
