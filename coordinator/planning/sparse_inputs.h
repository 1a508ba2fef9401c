// What the plan of a cluster may be sparse with: what the caller asks for, what is known of the model, and
// what each device has.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/planning/calibrations.h"
#include "planner/neuron_places.h"
#include "planner/plan/plan.h"
#include "planner/plan/sparse_parts.h"
#include "planner/problem/plan_problem.h"

namespace lime {

struct SparseInputs {
  SparsityWish sparsity = SparsityWish::kOff;
  DeciderWish decider = DeciderWish::kAuto;
  std::optional<int64_t> neuron_rows;        // of each layer; nullopt: those that make the plan fastest
  int32_t window_masks = kUsualWindowMasks;  // PlanRequest::window_masks
  SparseModel model;                         // in the folder of this machine
  std::map<std::string, NeuronFiles> held;   // by device; one that is not named has the files of this machine
  int64_t all_prompt_tokens = 0;             // the work: tokens of all prompts; 0: of one
  int64_t new_tokens = 0;                    // the work: decode steps; 0: as many as the context leaves beside a prompt

  // Whether the plan has sparse MLPs even if it is slower.
  bool asks() const {
    return sparsity == SparsityWish::kExact || (sparsity == SparsityWish::kPredicted && neuron_rows && !model.neurons.empty());
  }
  // Whether a plan with sparse MLPs is compared with one without.
  bool compares() const {
    return (sparsity == SparsityWish::kAuto || sparsity == SparsityWish::kPredicted) && !model.neurons.empty() &&
           model.calibration != nullptr;
  }
};

// Whether the device can compute the MLP of the layer from bundles: it has them, the rate of its disk is
// known, and its kernels are LIME's.
bool MayBeSparse(const SparseInputs& sparse, const ClusterDevice& device, int32_t layer);
// Whether it can also decide with the copy of the decider that the model has there. False where the order of
// its sums is unknown, unless `asked`: then the device refuses what it cannot do.
bool MayProve(const SparseInputs& sparse, const ClusterDevice& device, int32_t layer, bool asked);

// FailedPrecondition names a device that lacks the predictor of the model.
// REQUIRES: there is a predictor
absl::Status CheckHavePredictor(const SparseInputs& sparse, const std::vector<ClusterDevice>& devices);

// Sets what follows from the predictor, if there is one, and from the calibration.
void UseCalibration(const SparseInputs& sparse, PlanRequest& request);

// Of all prompts and steps.
double WholeWorkMs(const SparseInputs& sparse, const Plan& plan);

}  // namespace lime
