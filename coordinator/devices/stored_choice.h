// Finds the model that a user names among the models that devices hold. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/base/status.h"
#include "proto/convert/bulk_convert.h"

namespace lime::cli {

// 16 hexadecimal digits.
std::string DigestText(uint64_t model);

// `word`: the name of a model, its digest, or at least the first 8 digits of it. NotFound, with all
// models, if no device holds it; InvalidArgument, with the digests, if several models match.
absl::StatusOr<uint64_t> ChooseStored(const std::string& word, const std::vector<StoreContent>& devices);

}  // namespace lime::cli
