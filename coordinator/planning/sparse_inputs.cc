#include "coordinator/planning/sparse_inputs.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/proven_zeros/sum_order.h"
#include "planner/plan/device/backend_names.h"
#include "planner/problem/neuron_demand.h"
#include "planner/unit_places.h"

namespace lime {
namespace {

// Null: the device has none, or the same as this machine.
const HeldBundles* BundlesOn(const SparseInputs& sparse, const ClusterDevice& device, int32_t layer) {
  const auto held = sparse.held.find(device.name);
  if (held == sparse.held.end()) return nullptr;
  const auto found = std::ranges::find(held->second.bundles, layer, &HeldBundles::layer);
  return found == held->second.bundles.end() ? nullptr : &*found;
}

}  // namespace

bool MayBeSparse(const SparseInputs& sparse, const ClusterDevice& device, int32_t layer) {
  const auto at = static_cast<size_t>(layer);
  if (at >= sparse.model.neurons.size() || sparse.model.neurons[at] == 0) return false;
  if (sparse.held.contains(device.name) && BundlesOn(sparse, device, layer) == nullptr) return false;
  return device.numerics_id != kTorchBackend && BurstCostOf(device.profile).has_value();
}

bool MayProve(const SparseInputs& sparse, const ClusterDevice& device, int32_t layer, bool asked) {
  const auto at = static_cast<size_t>(layer);
  if (at >= sparse.model.copies.size() || sparse.model.copies[at].bits == 0 || !MayBeSparse(sparse, device, layer)) return false;
  const HeldBundles* const held = BundlesOn(sparse, device, layer);
  if (held != nullptr && !(held->decider == sparse.model.copies[at])) return false;
  return kSumOrderNames.Find(device.numerics_id).has_value() || (asked && device.numerics_id.empty());
}

absl::Status CheckHavePredictor(const SparseInputs& sparse, const std::vector<ClusterDevice>& devices) {
  const std::string& hash = sparse.model.predictor->hash();
  for (const ClusterDevice& device : devices) {
    const auto held = sparse.held.find(device.name);
    if (held == sparse.held.end() || held->second.predictor == hash) continue;
    const std::string has = held->second.predictor.empty() ? "no predictor" : absl::StrCat("the predictor ", held->second.predictor);
    return absl::FailedPreconditionError(absl::StrCat("device \"", device.name, "\" has ", has, ", but --sparsity predicted is with ", hash,
                                                      "; copy ", sparse.model.predictor->path(), " into the folder of its model"));
  }
  return absl::OkStatus();
}

void UseCalibration(const SparseInputs& sparse, PlanRequest& request) {
  request.window_masks = sparse.window_masks;
  request.calibration = sparse.model.calibration;
  request.bundles_on_path = sparse.model.on_path;
  request.counts_beside_neurons = true;
  if (sparse.model.predictor == nullptr) return;
  request.predictor = sparse.model.predictor->hash();
  request.predictor_ranks = PredictorRanks(*sparse.model.predictor);
}

double WholeWorkMs(const SparseInputs& sparse, const Plan& plan) {
  const int64_t prompt = std::max<int64_t>(1, plan.prompt_tokens);
  const double prompts = std::max(1.0, static_cast<double>(sparse.all_prompt_tokens) / static_cast<double>(prompt));
  const int64_t steps = sparse.new_tokens > 0 ? sparse.new_tokens : std::max<int64_t>(0, plan.context - plan.prompt_tokens);
  return prompts * PromptMs(plan) + static_cast<double>(steps) * TimeMs(plan);
}

}  // namespace lime
