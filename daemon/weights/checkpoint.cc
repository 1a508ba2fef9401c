#include "daemon/weights/checkpoint.h"

#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/input/model_file.h"
#include "daemon/formats/held_blocks.h"
#include "daemon/formats/safetensors.h"
#include "daemon/machine/files.h"
#include "daemon/weights/model_folder.h"
#include "planner/base/check.h"
#include "planner/base/json_text.h"

namespace lime {
namespace {

constexpr size_t kMaxShards = 10'000;
constexpr Bytes kMaxIndexBytes = 128 * kMiB;  // a model with experts may have some hundred thousand tensors
constexpr int kNamedBlocks = 4;               // in one sentence

std::string Join(const std::string& dir, std::string_view file) {
  return (std::filesystem::path(dir) / file).string();
}

// Tensor name -> shard name, from a model.safetensors.index.json.
absl::StatusOr<std::map<std::string, std::string>> ParseShardIndex(std::string_view text, const std::string& path) {
  LIME_ASSIGN_OR_RETURN(const nlohmann::json json, ParsePythonJsonObject(text, path, kMaxIndexBytes));
  if (!json.contains("weight_map") || !json["weight_map"].is_object()) {
    return Invalid(path, ": lacks the object \"weight_map\" from tensor names to shards");
  }
  std::map<std::string, std::string> shards;
  for (const auto& [tensor, shard] : json["weight_map"].items()) {
    if (!shard.is_string()) {
      return Invalid(path, ": weight_map gives tensor \"", absl::CEscape(tensor), "\" a value of type ", shard.type_name(),
                     " instead of a file name");
    }
    shards.emplace(tensor, shard.get<std::string>());
  }
  if (shards.empty()) return Invalid(path, ": weight_map is empty; download the file again");
  return shards;
}

std::tuple<int32_t, int64_t, Bytes> Place(const BlockExtent& extent) {
  return {extent.file, extent.offset, extent.bytes};
}

}  // namespace

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& dir) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(dir, ignored)) return NoModelFolder(dir);
  if (FileExists(Join(dir, kHeldBlocksName)) && !FileExists(Join(dir, kStoreManifestName))) {
    return absl::FailedPreconditionError(
        absl::StrCat(dir, ": holds blocks that were pushed for a cluster's plan, not a whole model; give the model's own folder"));
  }
  Checkpoint checkpoint;
  checkpoint.dir_ = dir;
  const bool is_store = FileExists(Join(dir, kStoreManifestName));
  // The error says that the store is not finished.
  if (!is_store && FileExists(Join(dir, kStoreJournalName))) return ReadStoreManifest(dir).status();
  checkpoint.config_path_ = Join(dir, "config.json");
  LIME_ASSIGN_OR_RETURN(checkpoint.config_json_, ReadTextFile(checkpoint.config_path_, kMaxJsonBytes));
  const std::string single = Join(dir, "model.safetensors"), sharded = Join(dir, "model.safetensors.index.json");
  LIME_ASSIGN_OR_RETURN(const bool has_single, FindModelFile(single));
  LIME_ASSIGN_OR_RETURN(const bool has_index, has_single ? false : FindModelFile(sharded));
  if (has_single) {
    LIME_RETURN_IF_ERROR(checkpoint.AddFile(single));
  } else if (has_index) {
    LIME_RETURN_IF_ERROR(checkpoint.AddShards(sharded));
  } else {
    LIME_ASSIGN_OR_RETURN(const std::vector<std::string> shards, FindNumberedShards(dir));
    for (const std::string& shard : shards) LIME_RETURN_IF_ERROR(checkpoint.AddFile(Join(dir, shard)));
  }
  if (!is_store) return checkpoint;
  LIME_ASSIGN_OR_RETURN(const StoreManifest manifest, ReadStoreManifest(dir));
  LIME_RETURN_IF_ERROR(checkpoint.PlaceBlocks(manifest));
  return checkpoint;
}

absl::StatusOr<Checkpoint> Checkpoint::OpenPart(const std::string& dir) {
  if (!FileExists(Join(dir, kHeldBlocksName)) || FileExists(Join(dir, kStoreManifestName))) return Open(dir);
  Checkpoint checkpoint;
  checkpoint.dir_ = dir;
  checkpoint.config_path_ = Join(dir, "config.json");
  LIME_ASSIGN_OR_RETURN(checkpoint.config_json_, ReadTextFile(checkpoint.config_path_, kMaxJsonBytes));
  LIME_RETURN_IF_ERROR(checkpoint.AddPushed());
  return checkpoint;
}

absl::Status Checkpoint::AddPushed() {
  LIME_ASSIGN_OR_RETURN(PushedManifest pushed, ReadPushedManifest(dir_));
  for (const StoredFile& file : pushed.manifest.files) LIME_RETURN_IF_ERROR(AddFile(Join(dir_, file.name)));
  held_ = std::move(pushed.held.held);
  return PlaceBlocks(pushed.manifest);
}

absl::Status Checkpoint::CheckHolds(std::span<const BlockId> blocks) const {
  if (!held_) return absl::OkStatus();
  std::vector<std::string> missing;
  for (const BlockId id : blocks) {
    if (std::ranges::find(*held_, id) == held_->end()) missing.push_back(BlockName(id));
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(dir_, ": lacks ", missing.size(), " of ", blocks.size(),
                                                    " blocks that the plan needs here (", SomeOf(missing, kNamedBlocks),
                                                    "); send them with `lime push`"));
}

absl::Status Checkpoint::AddFile(const std::string& path, const std::map<std::string, std::string>& named) {
  LIME_ASSIGN_OR_RETURN(SafetensorsHeader header, ReadSafetensorsHeader(path));
  const int32_t file = static_cast<int32_t>(files_.size());
  files_.push_back({path, header.file_bytes});
  for (SafetensorsTensor& tensor : header.tensors) {
    if (tensor.name.starts_with(kStorePadPrefix)) continue;
    if (!tensor.unknown_dtype.empty()) {
      unknown_dtypes_.emplace(std::move(tensor.name), std::move(tensor.unknown_dtype));
      continue;
    }
    const TensorLocation here{file, tensor.offset, tensor.info.bytes};
    const auto [at, added] = locations_.emplace(tensor.name, here);
    if (!added) {
      const auto shard = named.find(tensor.name);
      if (shard == named.end() || Join(dir_, shard->second) != path) {
        return Invalid(path, ": tensor \"", absl::CEscape(tensor.name), "\" is also in ", files_[at->second.file].path);
      }
      at->second = here;
    }
    index_.insert_or_assign(std::move(tensor.name), std::move(tensor.info));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::AddShards(const std::string& index_path) {
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(index_path, kMaxIndexBytes));
  LIME_ASSIGN_OR_RETURN(const auto weight_map, ParseShardIndex(text, index_path));
  std::map<std::string, std::string> first_tensor;  // shard -> one of its tensors
  for (const auto& [tensor, shard] : weight_map) {
    // A shard lies beside its index. A path that leads elsewhere is refused.
    if (!IsPlainFileName(shard))
      return Invalid(index_path, ": weight_map names the shard \"", absl::CEscape(shard),
                     "\", which is not a plain file name in the same folder");
    first_tensor.emplace(shard, tensor);
  }
  if (first_tensor.size() > kMaxShards) {
    return Invalid(index_path, ": names ", first_tensor.size(), " shards, the limit is ", kMaxShards);
  }
  for (const auto& [shard, tensor] : first_tensor) {
    const std::string path = Join(dir_, shard);
    LIME_ASSIGN_OR_RETURN(const bool is_here, FindModelFile(path));
    if (is_here) LIME_RETURN_IF_ERROR(AddFile(path, weight_map));
  }
  shard_index_ = index_path;
  for (const auto& [tensor, shard] : weight_map) {
    if (!locations_.contains(tensor)) not_in_shards_.emplace(tensor, shard);
  }
  if (files_.empty()) return MissingShard(first_tensor.begin()->first, first_tensor.begin()->second);
  return absl::OkStatus();
}

absl::Status Checkpoint::MissingShard(const std::string& shard, const std::string& tensor) const {
  return absl::NotFoundError(absl::StrCat(Join(dir_, shard), ": the shard is missing, but ", shard_index_, " says that it holds tensor \"",
                                          absl::CEscape(tensor), "\"; download the folder again"));
}

absl::Status Checkpoint::ExplainMissing(const absl::Status& status) const {
  const std::string tensor = MissingTensor(status);
  if (const auto unknown = unknown_dtypes_.find(tensor); unknown != unknown_dtypes_.end()) {
    return absl::UnimplementedError(absl::StrCat(dir_, ": tensor ", absl::CEscape(tensor), " is ", absl::CEscape(unknown->second),
                                                 "; BF16, F16, F32, MLX affine groups, mxfp4 and FP8 with scales are supported"));
  }
  const auto named = not_in_shards_.find(tensor);
  if (named == not_in_shards_.end()) return status;
  if (!FileExists(Join(dir_, named->second))) return MissingShard(named->second, tensor);
  return Invalid(shard_index_, ": says that ", named->second, " holds tensor \"", absl::CEscape(tensor),
                 "\", but no shard holds it; download the folder again");
}

std::vector<std::string> Checkpoint::FilePaths() const {
  std::vector<std::string> paths;
  for (const CheckpointFile& file : files_) paths.push_back(file.path);
  return paths;
}

Bytes Checkpoint::FileBytes() const {
  return std::accumulate(files_.begin(), files_.end(), Bytes{0}, [](Bytes sum, const CheckpointFile& file) { return sum + file.bytes; });
}

const TensorLocation& Checkpoint::location(std::string_view name) const {
  const auto found = locations_.find(name);
  LIME_CHECK(found != locations_.end()) << "tensor " << name << " is not in " << dir_;
  return found->second;
}

TensorLocation Checkpoint::location(const TensorSpec& tensor) const {
  const TensorLocation& whole = location(tensor.name);
  return {whole.file, whole.offset + tensor.offset, tensor.info.bytes};
}

// Compares the size of every weight file. Checksums are compared later, when the bytes are read.
absl::Status Checkpoint::PlaceBlocks(const StoreManifest& manifest) {
  for (const StoredFile& stored : manifest.files) {
    if (stored.blocks.empty()) continue;
    const std::string path = Join(dir_, stored.name);
    const auto file = std::ranges::find(files_, path, &CheckpointFile::path);
    if (file == files_.end()) {
      return Invalid(path, ": holds blocks according to ", kStoreManifestName,
                     ", but it is not a weight file of the folder; prepare the model again");
    }
    if (file->bytes != stored.bytes) {
      return absl::DataLossError(absl::StrCat(path, ": has ", file->bytes, " bytes, but ", kStoreManifestName, " says ", stored.bytes,
                                              "; run `lime prepare` again to write a new file"));
    }
    const auto index = static_cast<int32_t>(file - files_.begin());
    for (const StoredBlock& block : stored.blocks) store_extents_.push_back({block.id, {index, block.offset, block.bytes, block.xxh3}});
    for (const StoredRange& range : stored.ranges) store_ranges_.push_back({index, range.offset, range.bytes, range.xxh3});
    for (const StoredRows& table : stored.rows) store_rows_[{index, table.offset, table.row_bytes}] = table.xxh3;
  }
  std::ranges::sort(store_ranges_, {}, Place);
  return absl::OkStatus();
}

std::optional<uint64_t> Checkpoint::RangeHash(int32_t file, int64_t offset, Bytes bytes) const {
  const auto found = std::ranges::lower_bound(store_ranges_, std::tuple(file, offset, bytes), {}, Place);
  if (found == store_ranges_.end() || Place(*found) != std::tuple(file, offset, bytes)) return std::nullopt;
  return found->xxh3;
}

std::vector<BlockExtent> Checkpoint::RangesOver(int32_t file, int64_t offset, Bytes bytes) const {
  std::vector<BlockExtent> over;
  for (auto range = std::ranges::lower_bound(store_ranges_, file, {}, &BlockExtent::file);
       range != store_ranges_.end() && range->file == file && range->offset < offset + bytes; ++range) {
    if (range->offset + range->bytes > offset) over.push_back(*range);
  }
  return over;
}

std::span<const uint32_t> Checkpoint::RowHashes(const TensorLocation& at, Bytes row_bytes) const {
  const auto found = store_rows_.find({at.file, at.offset, row_bytes});
  if (found == store_rows_.end() || static_cast<Bytes>(found->second.size()) * row_bytes != at.bytes) return {};
  return found->second;
}

absl::Status Checkpoint::CheckTensor(const TensorLocation& at, const std::byte* data) const {
  const auto differs = [&](int64_t offset, Bytes bytes) {
    return absl::DataLossError(absl::StrCat(files_[at.file].path, ": ", bytes, " bytes at offset ", offset,
                                            " differ from their checksum; remove the file and run `lime prepare` again"));
  };
  Bytes checked = 0;
  for (auto range = std::ranges::lower_bound(store_ranges_, std::tuple(at.file, at.offset, Bytes{0}), {}, Place);
       range != store_ranges_.end() && range->file == at.file && range->offset + range->bytes <= at.offset + at.bytes; ++range) {
    if (XXH3_64bits(data + (range->offset - at.offset), static_cast<size_t>(range->bytes)) != range->xxh3)
      return differs(range->offset, range->bytes);
    checked += range->bytes;
  }
  if (checked >= at.bytes) return absl::OkStatus();
  const auto table = store_rows_.lower_bound({at.file, at.offset, Bytes{0}});
  if (table == store_rows_.end() || std::get<0>(table->first) != at.file || std::get<1>(table->first) != at.offset) return absl::OkStatus();
  const Bytes row_bytes = std::get<2>(table->first);
  if (static_cast<Bytes>(table->second.size()) * row_bytes != at.bytes) return absl::OkStatus();
  for (const uint32_t expected : table->second) {
    if (static_cast<uint32_t>(XXH3_64bits(data, static_cast<size_t>(row_bytes))) != expected)
      return differs(at.offset + row_bytes * (&expected - table->second.data()), row_bytes);
    data += row_bytes;
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::CheckManifest(const ModelSpec& spec) const {
  for (const BlockSpec& block : spec.blocks) {
    const BlockExtent* extent = StoreExtent(block.id);
    for (const TensorSpec& tensor : block.tensors) {
      const TensorLocation at = location(tensor);
      const bool inside = extent != nullptr && at.file == extent->file && at.offset >= extent->offset &&
                          at.offset + at.bytes <= extent->offset + extent->bytes;
      if (inside) continue;
      return Invalid(Join(dir_, kStoreManifestName), ": block ", BlockName(block.id), " does not hold tensor \"",
                     absl::CEscape(tensor.name), "\"; prepare the model again");
    }
  }
  return absl::OkStatus();
}

const BlockExtent* Checkpoint::StoreExtent(BlockId id) const {
  const auto found = std::ranges::find(store_extents_, id, &std::pair<BlockId, BlockExtent>::first);
  return found == store_extents_.end() ? nullptr : &found->second;
}

absl::StatusOr<ModelSpec> Checkpoint::BuildModelSpec() const {
  LIME_ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(config_json_, config_path_));
  absl::StatusOr<ModelSpec> spec = ModelSpec::Build(config, index_, dir_);
  if (!spec.ok()) return ExplainMissing(spec.status());
  if (is_block_store()) LIME_RETURN_IF_ERROR(CheckManifest(*spec));
  return spec;
}

std::vector<std::string> Checkpoint::IgnoredTensors(const ModelSpec& spec) const {
  std::set<std::string_view> used;
  for (const BlockSpec& block : spec.blocks) {
    for (const TensorSpec& tensor : block.tensors) used.insert(tensor.name);
  }
  std::vector<std::string> ignored;
  for (const auto& [name, info] : index_) {
    if (!used.contains(name) && BelongsToModel(name, spec)) ignored.push_back(name);
  }
  for (const auto& [name, dtype] : unknown_dtypes_) {
    if (BelongsToModel(name, spec)) ignored.push_back(name);
  }
  return ignored;
}

absl::StatusOr<ModelSpec> LoadModelSpec(const std::string& dir) {
  LIME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(dir));
  return checkpoint.BuildModelSpec();
}

}  // namespace lime
