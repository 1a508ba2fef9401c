// Chooses which MLPs of a cluster are sparse, for how many of their neurons each device has memory, and
// what decides in them.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "coordinator/planning/sparse_inputs.h"
#include "planner/base/status.h"
#include "planner/plan/plan.h"
#include "planner/problem/plan_problem.h"
#include "planner/search/block_homes.h"

namespace lime {

struct SparseChoice {
  std::vector<int64_t> neuron_rows;   // PlanRequest
  std::vector<DeciderForm> deciders;  // PlanRequest
};

struct SparseSearch {
  const ModelSpec& spec;
  const SparseInputs& sparse;
  std::span<const ClusterDevice> devices;
  // The best plan without sparse MLPs, which says on which device a layer is likely to be. Null: none fits.
  const Plan* whole = nullptr;
  int64_t batch = 1;  // sequences of a step
  // A plan with these sparse MLPs, by a search of `work` of the usual work; ResourceExhausted if none fits.
  std::function<absl::StatusOr<Plan>(const SparseChoice& choice, double work)> plan;
  // The newest plan is the best one until now.
  std::function<void()> best;
  std::function<bool()> ends;
};

// The plan with the least TimeMs. Small searches find the rows of each device's layers; the last one has the
// usual work and may move layers. FailedPrecondition, in words for users, if no MLP can be sparse. Other
// errors: those of ChooseNeuronRows.
absl::StatusOr<Plan> SearchSparsePlan(const SparseSearch& search);

// Blocks that each device has in a plan: a search that begins with plans for these homes keeps its stages.
BlockHomes HomesLike(const Plan& plan);

}  // namespace lime
