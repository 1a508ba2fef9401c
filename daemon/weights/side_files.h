// The small files beside a model's weights that a copy of it needs: tokenizer, chat template, generation settings. Whatever else lies there
// (notes, expected results) is its owner's and stays where it is.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

inline constexpr Bytes kMaxSideFileBytes = 128 * kMiB;  // the largest tokenizer.json known has 34 MB

// Their names, sorted; config.json and an index of shards, which a copy has of its own, are not among them. One that is no file is an error
// (common/model_file.h): the copy would lack it without a word.
absl::StatusOr<std::vector<std::string>> SideFiles(const std::string& dir);

// Whether a file of this name is one of them.
bool IsSideFile(std::string_view name);

}  // namespace lime
