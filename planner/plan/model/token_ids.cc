#include "planner/plan/model/token_ids.h"

#include "planner/base/strings.h"

namespace lime {
namespace {

using nlohmann::json;

// A number beyond 64 bits is also out of bounds.
bool IsId(const json& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>() < static_cast<uint64_t>(kMaxVocab);
  return value.is_number_integer() && value.get<int64_t>() >= -1 && value.get<int64_t>() < kMaxVocab;
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> ParseTokenIds(const json& object, const std::string& key, std::string_view name) {
  std::vector<int32_t> ids;
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return ids;
  for (const json& id : found->is_array() ? *found : json::array({*found})) {
    if (!IsId(id)) return Invalid(Text(name), ": field \"", key, "\" is not a token id or a list of them");
    if (id != -1) ids.push_back(id.get<int32_t>());
  }
  return ids;
}

}  // namespace lime
