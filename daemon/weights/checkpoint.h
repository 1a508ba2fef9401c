// A checkpoint in the form of Hugging Face: a folder with config.json and one or several
// safetensors files.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "daemon/formats/block_store_manifest.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"

namespace lime {

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

// Immutable after Open; any thread.
class Checkpoint {
 public:
  // Reads and checks config.json and the header of every weight file. `dir` is a block store, or
  // holds one of:
  // - `model.safetensors`
  // - `model.safetensors.index.json` and its shards
  // - all shards model-0000N-of-0000M.safetensors
  // An unfinished block store is refused. A missing shard, or a tensor that the index names and no
  // shard has, is an error of BuildModelSpec, and only if the model needs the tensor.
  static absl::StatusOr<Checkpoint> Open(const std::string& dir);
  // Like Open, and also accepts a pushed store, in which some blocks are holes (held_blocks.h).
  // Call CheckHolds before reading blocks of it.
  static absl::StatusOr<Checkpoint> OpenPart(const std::string& dir);
  // FailedPrecondition if some of `blocks` are not here. The error names the missing ones.
  absl::Status CheckHolds(std::span<const BlockId> blocks) const;

  const std::string& dir() const { return dir_; }
  const std::string& config_json() const { return config_json_; }
  const std::vector<CheckpointFile>& files() const { return files_; }
  std::vector<std::string> FilePaths() const;
  Bytes FileBytes() const;  // of all files together
  const TensorIndex& index() const { return index_; }

  // The whole tensor.  REQUIRES: `name` is in index().
  const TensorLocation& location(std::string_view name) const;
  // The rows of `tensor` in the checkpoint's tensor.  REQUIRES: its name is in index().
  TensorLocation location(const TensorSpec& tensor) const;

  // True if `lime prepare` made this folder.
  bool is_block_store() const { return !store_extents_.empty(); }

  // Where a block lies in a block store, with its checksum; null in any other folder.
  const BlockExtent* StoreExtent(BlockId id) const;

  // XXH3-64 of bytes [offset, offset + bytes) of files()[file], if the block store lists exactly
  // this range. A store lists every tensor that IsPinned(), and for every part of CutBlock(block)
  // its rows of each matrix.
  std::optional<uint64_t> RangeHash(int32_t file, int64_t offset, Bytes bytes) const;
  // All listed ranges that overlap these bytes, with their checksums, by offset.
  std::vector<BlockExtent> RangesOver(int32_t file, int64_t offset, Bytes bytes) const;

  // Compares the bytes of a TensorSpec's rows in memory with every checksum that the block store has for
  // them. OK if it has none. DataLoss names file and offset.
  absl::Status CheckTensor(const TensorLocation& at, const std::byte* data) const;

  // For each row of the table at `at`, whose rows have `row_bytes` bytes: the low half of its
  // XXH3-64. Empty if no block store lists them.
  std::span<const uint32_t> RowHashes(const TensorLocation& at, Bytes row_bytes) const;

  // Builds the spec from config.json and the headers, and checks them against each other.
  absl::StatusOr<ModelSpec> BuildModelSpec() const;

  // Tensors that `spec` (of this checkpoint) does not use, although the result may depend on them:
  // biases, norms and others in the layers in use. config.json does not mention them. Tables of
  // rotary embeddings, further layers and other modules are not included.
  std::vector<std::string> IgnoredTensors(const ModelSpec& spec) const;

 private:
  // Adds the tensors of one file. A tensor that an earlier file has too is an error, unless `named`
  // (tensor -> name of its file) says that it is in this one. Then the index agrees with
  // transformers, which takes the last one.
  absl::Status AddFile(const std::string& path, const std::map<std::string, std::string>& named = {});
  absl::Status AddShards(const std::string& index_path);
  absl::Status MissingShard(const std::string& shard, const std::string& tensor) const;
  // Explains why a needed tensor is not in index_, if more is known than `status` says.
  absl::Status ExplainMissing(const absl::Status& status) const;
  absl::Status AddPushed();
  absl::Status PlaceBlocks(const StoreManifest& manifest);
  // Checks that the manifest's blocks hold all tensors that the model's blocks need.
  absl::Status CheckManifest(const ModelSpec& spec) const;

  std::string dir_, config_path_, config_json_;
  std::vector<CheckpointFile> files_;
  TensorIndex index_;
  std::map<std::string, TensorLocation, std::less<>> locations_;
  // Tensors of unknown dtype, which are not in index_, and the dtype's spelling.
  std::map<std::string, std::string> unknown_dtypes_;
  std::string shard_index_;  // path of the index; empty: there is none
  // Tensors that the index names and no shard has, with the shard.
  std::map<std::string, std::string> not_in_shards_;
  std::vector<std::pair<BlockId, BlockExtent>> store_extents_;  // of a block store
  // Blocks of a pushed store. None: all blocks are here.
  std::optional<std::vector<BlockId>> held_;
  std::vector<BlockExtent> store_ranges_;  // with checksums, by file, offset and length
  // By file, offset and bytes of a row.
  std::map<std::tuple<int32_t, int64_t, Bytes>, std::vector<uint32_t>> store_rows_;
};

// The spec of the model in `dir`, for callers that need nothing else of it.
absl::StatusOr<ModelSpec> LoadModelSpec(const std::string& dir);

}  // namespace lime
