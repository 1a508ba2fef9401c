// A checkpoint of any size that takes no room: its headers are there, and its weights are a hole in the file.
#pragma once

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "planner/plan/described_model.h"

namespace lime {

// Writes the model of `config_json` into `dir`.
inline void MakeSparseModel(const std::string& config_json, const std::string& dir) {
  const absl::StatusOr<ModelSpec> spec = DescribeModel(config_json, dir);
  ASSERT_TRUE(spec.ok()) << spec.status();
  std::filesystem::create_directories(dir);
  std::ofstream(dir + "/config.json") << config_json;
  nlohmann::ordered_json header;
  Bytes offset = 0;
  for (const BlockSpec& block : spec->blocks) {
    for (const TensorSpec& tensor : block.tensors) {
      if (header.contains(tensor.name)) continue;
      header[tensor.name] = {{"dtype", "BF16"}, {"shape", tensor.info.shape}, {"data_offsets", {offset, offset + tensor.info.bytes}}};
      offset += tensor.info.bytes;
    }
  }
  std::string text = header.dump();
  text.resize(static_cast<size_t>(RoundUp(static_cast<Bytes>(text.size()), 8)), ' ');
  std::string length(8, '\0');
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  const std::string path = dir + "/model.safetensors";
  std::ofstream(path, std::ios::binary) << length << text;
  std::filesystem::resize_file(path, 8 + text.size() + static_cast<size_t>(offset));
}

}  // namespace lime
