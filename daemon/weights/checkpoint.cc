#include "daemon/weights/checkpoint.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/weights/files.h"
#include "daemon/weights/safetensors.h"
#include "planner/base/check.h"

namespace lime {
namespace {

constexpr Bytes kMaxConfigBytes = 16 * kMiB;
constexpr Bytes kMaxIndexBytes = 256 * kMiB;
constexpr size_t kMaxShards = 10'000;

std::string Join(const std::string& dir, std::string_view file) {
  return (std::filesystem::path(dir) / file).string();
}

// Tensor name -> shard name, from a model.safetensors.index.json.
absl::StatusOr<std::map<std::string, std::string>> ParseShardIndex(std::string_view text, const std::string& path) {
  const nlohmann::json json = nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return absl::InvalidArgumentError(absl::StrCat(path, ": is not valid JSON in UTF-8"));
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": lacks the object \"weight_map\" from tensor names to shards"));
  }
  std::map<std::string, std::string> shards;
  for (const auto& [tensor, shard] : json["weight_map"].items()) {
    if (!shard.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": weight_map gives tensor \"", absl::CEscape(tensor), "\" no file name but ", shard.type_name()));
    }
    shards.emplace(tensor, shard.get<std::string>());
  }
  return shards;
}

// A shard lies beside its index: a path that leads elsewhere is refused.
absl::Status CheckShardName(const std::string& shard, const std::string& path) {
  const bool plain = !shard.empty() && shard.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos && shard[0] != '.';
  if (plain) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": weight_map names the shard \"", absl::CEscape(shard), "\", which is not a plain file name in the same folder"));
}

}  // namespace

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& dir) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(dir, ignored)) {
    return absl::NotFoundError(absl::StrCat(dir, ": is no folder; give the folder that holds config.json and model.safetensors"));
  }
  Checkpoint checkpoint;
  checkpoint.dir_ = dir;
  checkpoint.config_path_ = Join(dir, "config.json");
  LIME_ASSIGN_OR_RETURN(checkpoint.config_json_, ReadTextFile(checkpoint.config_path_, kMaxConfigBytes));
  const std::string single = Join(dir, "model.safetensors"), sharded = Join(dir, "model.safetensors.index.json");
  if (FileExists(single)) {
    LIME_RETURN_IF_ERROR(checkpoint.AddFile(single));
  } else if (FileExists(sharded)) {
    LIME_RETURN_IF_ERROR(checkpoint.AddShards(sharded));
  } else {
    return absl::NotFoundError(
        absl::StrCat(dir, ": holds neither model.safetensors nor model.safetensors.index.json",
                     FileExists(Join(dir, "pytorch_model.bin")) ? "; convert pytorch_model.bin to safetensors" : ""));
  }
  return checkpoint;
}

absl::Status Checkpoint::AddFile(const std::string& path) {
  LIME_ASSIGN_OR_RETURN(SafetensorsHeader header, ReadSafetensorsHeader(path));
  const int32_t file = static_cast<int32_t>(files_.size());
  files_.push_back({path, header.file_bytes});
  for (SafetensorsTensor& tensor : header.tensors) {
    const auto [at, added] = locations_.emplace(tensor.name, TensorLocation{file, tensor.offset, tensor.info.bytes});
    if (!added) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor \"", absl::CEscape(tensor.name), "\" is also in ", files_[at->second.file].path));
    }
    index_.emplace(std::move(tensor.name), std::move(tensor.info));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::AddShards(const std::string& index_path) {
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(index_path, kMaxIndexBytes));
  LIME_ASSIGN_OR_RETURN(const auto weight_map, ParseShardIndex(text, index_path));
  std::map<std::string, std::string> first_tensor;  // shard -> a tensor it should hold
  for (const auto& [tensor, shard] : weight_map) {
    LIME_RETURN_IF_ERROR(CheckShardName(shard, index_path));
    first_tensor.emplace(shard, tensor);
  }
  if (first_tensor.size() > kMaxShards) {
    return absl::InvalidArgumentError(
        absl::StrCat(index_path, ": names ", first_tensor.size(), " shards, at most ", kMaxShards, " are read"));
  }
  for (const auto& [shard, tensor] : first_tensor) {
    const std::string path = Join(dir_, shard);
    if (!FileExists(path)) {
      return absl::NotFoundError(absl::StrCat(path, ": the shard is missing, which ", index_path, " says holds tensor \"",
                                              absl::CEscape(tensor), "\"; download the folder again"));
    }
    LIME_RETURN_IF_ERROR(AddFile(path));
  }
  for (const auto& [tensor, shard] : weight_map) {
    const auto found = locations_.find(tensor);
    if (found == locations_.end() || files_[found->second.file].path != Join(dir_, shard)) {
      return absl::InvalidArgumentError(absl::StrCat(index_path, ": says ", shard, " holds tensor \"", absl::CEscape(tensor),
                                                     "\", which is ",
                                                     found == locations_.end() ? "in no shard" : "in " + files_[found->second.file].path));
    }
  }
  return absl::OkStatus();
}

const TensorLocation& Checkpoint::location(std::string_view name) const {
  const auto found = locations_.find(name);
  LIME_CHECK(found != locations_.end()) << "tensor " << name << " is not in " << dir_;
  return found->second;
}

absl::StatusOr<ModelSpec> Checkpoint::BuildModelSpec() const {
  LIME_ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(config_json_, config_path_));
  return ModelSpec::Build(config, index_, dir_);
}

absl::StatusOr<ModelSpec> LoadModelSpec(const std::string& dir) {
  LIME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(dir));
  return checkpoint.BuildModelSpec();
}

}  // namespace lime
