// Token ids in the JSON files of a model.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"
#include "planner/base/status.h"

namespace lime {

inline constexpr int64_t kMaxVocab = int64_t{1} << 24;  // every id is less

// The ids in a field that holds one, several or none (absent, null, or -1). Errors begin with
// `name`.
absl::StatusOr<std::vector<int32_t>> ParseTokenIds(const nlohmann::json& object, const std::string& key, std::string_view name);

}  // namespace lime
