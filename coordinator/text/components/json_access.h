// Typed access to JSON fields of hostile files. A wrong type or a missing field is a Status, never
// an exception.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "nlohmann/json.hpp"
#include "planner/base/json_text.h"
#include "planner/base/status.h"

namespace lime {

using TokenizerJson = nlohmann::json;

// The field, or null if `object` is no object or lacks it. The reference lives as long as `object`.
const TokenizerJson& Field(const TokenizerJson& object, std::string_view key);

// A field that is absent or null gives `fallback`.
absl::StatusOr<bool> BoolField(const TokenizerJson& object, std::string_view key, bool fallback);
absl::StatusOr<int64_t> IntField(const TokenizerJson& object, std::string_view key, int64_t fallback);
absl::StatusOr<std::string> StringField(const TokenizerJson& object, std::string_view key, std::string_view fallback);

// The field must exist.
absl::StatusOr<int64_t> RequiredInt(const TokenizerJson& object, std::string_view key);
absl::StatusOr<std::string> RequiredString(const TokenizerJson& object, std::string_view key);

// The "type" of a component; "" for null.
absl::StatusOr<std::string> ComponentType(const TokenizerJson& component);

}  // namespace lime
