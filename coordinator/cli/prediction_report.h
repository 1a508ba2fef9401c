// The prediction beside what a generation took, as an answer has it.
#pragma once

#include "nlohmann/json.hpp"
#include "planner/plan/prediction.h"

namespace lime::cli {

// {"predicted_ms", "measured_ms", "error", "cause", "why"}: error = predicted / measured - 1, null where too little was measured to tell;
// why is null unless they differ.
nlohmann::json ToJson(const PredictionReport& report);

}  // namespace lime::cli
