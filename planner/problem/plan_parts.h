// Cuts the blocks of a model into the parts of a plan.
#pragma once

#include <vector>

#include "planner/plan/model/model_spec.h"
#include "planner/plan/plan.h"
#include "planner/problem/plan_problem.h"

namespace lime {

// The parts of all blocks but the embedding, in execution order, with their bytes, pages and states.
// No times, and nothing streams.
//
// With PlanRequest::unit_places, a block with experts becomes the parts of its other matrices, and
// one part with all experts, which is on demand. With PlanRequest::neuron_rows, an MLP block becomes
// the parts of its decider, and one sparse part with its other matrices.
std::vector<PlanPart> MakeParts(const ModelSpec& spec, const PlanRequest& request);

// SparseMemory and PredictorMemory of a device with all layers.  REQUIRES: MakePlanProblem accepts neuron_rows
Bytes SparseMemory(const ModelSpec& spec, const PlanRequest& request);
// Of it, what is not of one part (PlanRequest::counts_beside_neurons): places for pieces.
Bytes SharedSparseMemory(const ModelSpec& spec, const PlanRequest& request);

// What decides in the layer if its MLP is sparse. CopiedDirections: of the largest copy of all sparse MLPs; -1:
// there is none.
DeciderForm FormOf(const PlanRequest& request, int32_t layer);
int64_t CopiedDirections(const PlanRequest& request);

}  // namespace lime
