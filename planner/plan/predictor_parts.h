// Predictors of neurons in a plan (Plan::predictor): layers whose MLP computes, for each row, only the
// neurons that the predictor of the layer names. Results then follow from the checkpoint and the
// predictor, and not from the plan: whether such an MLP is sparse, resident or streams changes no bit.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"
#include "planner/plan/plan.h"

namespace lime {

inline constexpr int32_t kMostPlanPredictorRank = 4096;

// 16 hexadecimal digits.
bool IsPredictorHash(std::string_view hash);

// The largest rank on the device, or of all parts; 0: no layer has a predictor.
int64_t LargestPredictorRank(const Plan& plan, int32_t device);
int64_t LargestPredictorRank(std::span<const PlanPart> parts);
// Memory of the predictors of these parts, or of those on the device.
Bytes PredictorMemory(const ModelSpec& spec, const Plan& plan, std::span<const int> parts);
Bytes PredictorMemory(const ModelSpec& spec, const Plan& plan, int32_t device);

// Checks of Validate() for the part `p`.  Returns InvalidArgument.
absl::Status CheckPredictor(const Plan& plan, int p, const std::string& name);

}  // namespace lime
