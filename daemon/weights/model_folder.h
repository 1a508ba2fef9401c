// What lies in a folder that is to be a model, by the names of its files and tensors alone.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/model_spec.h"

namespace lime {

// NotFound for a path that is no folder: says what is read, and where such folders come from.
absl::Status NoModelFolder(const std::string& path);

// The shards model-00001-of-0000N.safetensors to model-0000N-of-0000N.safetensors of a folder that
// has no index. NotFound, naming what is there and what is missing, where they are not all there.
absl::StatusOr<std::vector<std::string>> FindNumberedShards(const std::string& folder);

// Whether a tensor of this name lies in a layer that the model uses, or at its embedding, final
// norm or head: then the result may depend on it. Tables of rotary embeddings do not count, nor does
// a head beside a tied embedding.
bool BelongsToModel(std::string_view tensor, const ModelSpec& spec);

// Tables of rotary embeddings, which are computed.
bool IsRotaryTable(std::string_view tensor);

// The small files beside a model's weights that a copy of it needs: tokenizer, chat template, generation settings. Whatever else lies there
// (notes, expected results) is its owner's and stays where it is.

inline constexpr Bytes kMaxSideFileBytes = 128 * kMiB;  // the largest tokenizer.json known has 34 MB

// Their names, sorted; config.json and an index of shards, which a copy has of its own, are not among them. One that is no file is an error
// (common/model_file.h): the copy would lack it without a word.
absl::StatusOr<std::vector<std::string>> SideFiles(const std::string& dir);

// Whether a file of this name is one of them.
bool IsSideFile(std::string_view name);

// "a, b, c and 2 more", of which at most `most` are named.
std::string SomeOf(const std::vector<std::string>& names, size_t most = 3);

}  // namespace lime
