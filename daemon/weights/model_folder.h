// Tells the kind of a model's folder from the names of its files and tensors alone.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"

namespace lime {

// NotFound for a path that is no folder. The message says what LIME reads, and where such folders
// come from.
absl::Status NoModelFolder(const std::string& path);

// The shards model-00001-of-0000N.safetensors to model-0000N-of-0000N.safetensors of a folder
// without an index. NotFound if some are missing; it names the shards found and the missing ones.
absl::StatusOr<std::vector<std::string>> FindNumberedShards(const std::string& folder);

// True if a tensor of this name lies in a layer that the model uses, or at its embedding, final
// norm or head. Then the result may depend on it. False for tables of rotary embeddings, for the
// weight of a head when the embedding is tied, and for scales of inputs and of KV that config.json
// announces (ModelConfig::has_input_scales).
bool BelongsToModel(std::string_view tensor, const ModelSpec& spec);

// True for tables of rotary embeddings. LIME computes them instead of reading them.
bool IsRotaryTable(std::string_view tensor);

// Side files: the small files that a copy of a model needs beside its weights, such as tokenizer,
// chat template and generation settings. Other files in the folder (notes, expected results) are
// not copied.

inline constexpr Bytes kMaxSideFileBytes = 128 * kMiB;  // largest known tokenizer.json: 34 MB

// The names of the side files in `dir`, sorted. config.json and an index of shards are not
// included, since a copy writes its own. A side file that is no regular file is an error
// (common/input/model_file.h), because the copy would lack it.
absl::StatusOr<std::vector<std::string>> SideFiles(const std::string& dir);

// True if a file of this name is a side file.
bool IsSideFile(std::string_view name);

// "a, b, c and 2 more": names at most `most` of them.
std::string SomeOf(const std::vector<std::string>& names, size_t most = 3);

}  // namespace lime
