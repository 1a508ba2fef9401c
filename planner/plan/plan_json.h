// Instances and plans as JSON, the fields of `lime solve`. Unknown fields are ignored; a wrong one is named in one sentence.
#pragma once

#include <string>

#include "nlohmann/json.hpp"
#include "planner/base/status.h"
#include "planner/plan/instance.h"
#include "planner/plan/stage_plan.h"

namespace lime {

class JsonList;

// What they return is valid (Instance::Validate, StagePlan::Validate). A plan's streamed blocks may come in any order.
absl::StatusOr<Instance> InstanceFromJson(const nlohmann::json& object);
absl::StatusOr<StagePlan> StagePlanFromJson(const nlohmann::json& object, const Instance& instance);

// The fields of one stage (planner/base/json_list.h).
void List(JsonList& f, Stage& stage);

// What a plan says of how it serves several sequences: `optimize` answers it where it was asked to choose.
struct PlanBatch {
  int32_t microbatches = 0;
  int32_t batch = 0;  // 0: not said
};
// REQUIRES: `object` is one that StagePlanFromJson takes
absl::StatusOr<PlanBatch> PlanBatchFromJson(const nlohmann::json& object);

nlohmann::ordered_json ToJson(const StagePlan& plan, const PlanBatch& batch = {});

}  // namespace lime
