// A Hugging Face folder: config.json and the tensors of one or several safetensors files.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/model_spec.h"

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
  // Reads config.json and every header, and checks them. `dir` holds `model.safetensors`, or `model.safetensors.index.json` and its shards.
  static absl::StatusOr<Checkpoint> Open(const std::string& dir);

  const std::string& dir() const { return dir_; }
  const std::string& config_path() const { return config_path_; }
  const std::string& config_json() const { return config_json_; }
  const std::vector<CheckpointFile>& files() const { return files_; }
  const TensorIndex& index() const { return index_; }

  // REQUIRES: `name` is in index().
  const TensorLocation& location(std::string_view name) const;

  // config.json and headers put together and checked against each other.
  absl::StatusOr<ModelSpec> BuildModelSpec() const;

 private:
  absl::Status AddFile(const std::string& path);
  absl::Status AddShards(const std::string& index_path);

  std::string dir_, config_path_, config_json_;
  std::vector<CheckpointFile> files_;
  TensorIndex index_;
  std::map<std::string, TensorLocation, std::less<>> locations_;
};

// The spec of the model in `dir`, for those who want nothing else of it.
absl::StatusOr<ModelSpec> LoadModelSpec(const std::string& dir);

}  // namespace lime
