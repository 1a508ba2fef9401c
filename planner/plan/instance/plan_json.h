// Instances and plans as JSON, with the fields of `lime solve`. Unknown fields are ignored. The
// error names the first wrong field.
#pragma once

#include "nlohmann/json.hpp"
#include "planner/base/status.h"
#include "planner/plan/instance/instance.h"
#include "planner/plan/instance/stage_plan.h"

namespace lime {

class JsonList;

// Results are valid (Instance::Validate, StagePlan::Validate). Streamed blocks may be in any order.
absl::StatusOr<Instance> InstanceFromJson(const nlohmann::json& object);
absl::StatusOr<StagePlan> StagePlanFromJson(const nlohmann::json& object, const Instance& instance);

// The fields of one stage (planner/base/json_list.h).
void List(JsonList& f, Stage& stage);

// The micro-batches and batch of a plan. `optimize` reports them if it was asked to choose them.
struct PlanBatch {
  int32_t microbatches = 0;
  int32_t batch = 0;  // 0: not given
};
// REQUIRES: StagePlanFromJson accepts `object`
absl::StatusOr<PlanBatch> PlanBatchFromJson(const nlohmann::json& object);

nlohmann::ordered_json ToJson(const StagePlan& plan, const PlanBatch& batch = {});

}  // namespace lime
