// Which of the models that devices hold a person means. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/base/status.h"
#include "proto/bulk_convert.h"

namespace lime::cli {

// 16 hexadecimal digits.
std::string DigestText(uint64_t model);

// `word`: a model's name, or its digest or at least 8 of its first digits. NotFound, with what there is, where no device holds it;
// InvalidArgument, with the digests, where several are called so.
absl::StatusOr<uint64_t> ChooseStored(const std::string& word, const std::vector<StoreContent>& devices);

}  // namespace lime::cli
