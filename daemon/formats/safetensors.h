// The safetensors format: 8 bytes of header length, a JSON header, then the tensors without gaps.
//
// Headers are hostile input. Sizes are bounded before they are used. An error is one sentence that
// names the file, the tensor and the offsets.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"

namespace lime {

// The bound of the reference implementation, so LIME reads every header that this implementation
// reads.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr int64_t kSafetensorsLengthBytes = 8;

struct SafetensorsTensor {
  std::string name;
  TensorInfo info;
  int64_t offset = 0;  // from the beginning of the file
  // The dtype as the header spells it, if LIME does not know it. Then `info` has only bytes and
  // shape.
  std::string unknown_dtype = {};
};

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  // in file order
  std::map<std::string, std::string> metadata;
  int64_t data_begin = 0;  // file offset of the first tensor byte
  int64_t file_bytes = 0;
};

// Length of the JSON header, from the file's first bytes.
absl::StatusOr<int64_t> ParseSafetensorsLength(std::span<const std::byte> prefix, int64_t file_bytes, std::string_view name);

// Pure: parses and checks the JSON header of a file of `file_bytes` bytes. `name` (the file's path)
// opens every error.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view header_json, int64_t file_bytes, std::string_view name);

// Reads and parses the header of `path`.
absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const std::string& path);

}  // namespace lime
