// A model known from its config.json alone, without weights or headers. Pure.
#pragma once

#include <string_view>

#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"

namespace lime {

// Reads geometry, packing ("quantization") and dtype ("dtype", or "torch_dtype" in older files; if
// neither is stated, that of the family, if its published files state none). The input is
// untrusted. Every error is one sentence that begins with `name`.
absl::StatusOr<ModelSpec> DescribeModel(std::string_view config_json, std::string_view name);

}  // namespace lime
