// A model known from its config.json alone: no weights, no headers. Pure.
#pragma once

#include <string_view>

#include "planner/base/status.h"
#include "planner/plan/model_spec.h"

namespace lime {

// The geometry, packing ("quantization") and dtype ("dtype", or "torch_dtype" in older files) that `config_json` states. Hostile input:
// every error is one sentence that opens with `name`.
absl::StatusOr<ModelSpec> DescribeModel(std::string_view config_json, std::string_view name);

}  // namespace lime
