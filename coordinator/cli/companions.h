// Lists of token ids as a call gives them, and the sequences of --batch-with, which share the steps of a call and are not part of its
// answer: no bit of that may change with them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace lime::cli {

// Ids like "1,2,3", each below `vocab`; `where` begins the sentence about what is wrong, which is a wrong call.
absl::StatusOr<std::vector<int32_t>> ParseIds(std::string_view list, int64_t vocab, std::string_view where);

// One such list a line, `most` lines at most; none without a `path`.
absl::StatusOr<std::vector<std::vector<int32_t>>> ReadCompanions(const std::string& path, int64_t vocab, size_t most);

}  // namespace lime::cli
