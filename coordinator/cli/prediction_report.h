// The prediction beside what a generation took, and why the two part.
#pragma once

#include "coordinator/cli/generate.h"
#include "coordinator/cli/model_session.h"
#include "nlohmann/json.hpp"
#include "planner/plan/prediction.h"

namespace lime::cli {

// Of the steps that only decoded. Where nothing that was counted explains the difference, and there is no budget to keep, reads memory for
// a moment to see whether it is slower than it was.
PredictionReport ComparePrediction(ModelSession& session, const GenerateSummary& summary);

// {"predicted_ms", "measured_ms", "error", "cause", "why"}: error = predicted / measured - 1, null where too little was measured to tell;
// why is null unless they differ.
nlohmann::json ToJson(const PredictionReport& report);

}  // namespace lime::cli
