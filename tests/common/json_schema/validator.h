// A validator of JSON values that shares nothing with the compiler of schemas: it looks at the
// parsed value. For schemas of RandomSchema.
#pragma once

#include "nlohmann/json.hpp"

namespace lime::json_schema {

// Objects have no properties without a name unless additionalProperties allows them. `root`: for
// references.
bool IsValid(const nlohmann::ordered_json& value, const nlohmann::ordered_json& schema, const nlohmann::ordered_json& root);

}  // namespace lime::json_schema
