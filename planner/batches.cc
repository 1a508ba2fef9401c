#include "planner/batches.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "planner/baselines/baselines.h"
#include "planner/evaluation/lower_bound.h"

namespace lime {
namespace {

bool Asks(const Instance& instance) {
  return instance.sequences > 0 && !instance.net.tx_ms_by_batch.empty() &&
         std::all_of(instance.devices.begin(), instance.devices.end(), [](const auto& device) { return !device.comp_ms_by_batch.empty(); });
}

bool KnowsTimes(const Instance& instance, int32_t batch) {
  return std::all_of(instance.devices.begin(), instance.devices.end(),
                     [&](const auto& device) { return device.comp_ms_by_batch.contains(batch); });
}

}  // namespace

absl::StatusOr<std::vector<BatchedInstance>> BatchChoices(const Instance& instance) {
  if (!Asks(instance)) return std::vector<BatchedInstance>{{instance, 0}};
  std::vector<BatchedInstance> choices;
  for (const auto& [batch, tx_ms] : instance.net.tx_ms_by_batch) {
    if (!KnowsTimes(instance, batch)) continue;
    BatchedInstance choice = {instance, batch};
    choice.instance.microbatches = (instance.sequences + batch - 1) / batch;
    choice.instance.net.tx_ms = tx_ms;
    for (Instance::Device& device : choice.instance.devices) device.comp_ms = device.comp_ms_by_batch.at(batch);
    LIME_RETURN_IF_ERROR(choice.instance.Validate());
    choices.push_back(std::move(choice));
  }
  if (!choices.empty()) return choices;
  return Invalid("instance: no batch size is in \"tx_ms_by_batch\" and in \"comp_ms_by_batch\" of every device, but \"sequences\" = ",
                 instance.sequences, " must be served");
}

namespace {

// Reloading may be faster if the pool need not hold the streamed blocks of all micro-batches of a
// stage.
void OfferReloading(const std::vector<BatchedInstance>& choices, BatchedPlan& best) {
  for (const BatchedInstance& choice : choices) {
    if (choice.instance.microbatches == 1) continue;
    FoundPlan other = PlanPipelineOffload(choice.instance);
    if (!other.feasible || (best.found.feasible && other.ms_per_step >= best.found.ms_per_step)) continue;
    best = {choice.instance.microbatches, choice.batch, std::move(other), best.lower_bound_ms};
  }
}

}  // namespace

SearchOptions Part(const SearchOptions& options, double share) {
  SearchOptions part = options;
  part.time_limit_ms *= share;
  part.max_work *= share;
  if (options.elapsed_ms) {
    part.elapsed_ms = [elapsed_ms = options.elapsed_ms, begin_ms = options.elapsed_ms()] { return elapsed_ms() - begin_ms; };
  }
  return part;
}

// Uses a third of the time to rank the choices, the rest for the best.
absl::StatusOr<BatchedPlan> PlanBatches(Strategy strategy, const Instance& instance, const SearchOptions& options) {
  LIME_ASSIGN_OR_RETURN(std::vector<BatchedInstance> choices, BatchChoices(instance));
  double lower_bound_ms = std::numeric_limits<double>::infinity();
  for (const BatchedInstance& choice : choices) lower_bound_ms = std::min(lower_bound_ms, LowerBoundMs(choice.instance));
  if (strategy == Strategy::kPpOffload) choices.resize(1);
  if (strategy == Strategy::kPpOffloadBatched) {
    const auto all = std::ranges::find(choices, 1, [](const BatchedInstance& choice) { return choice.instance.microbatches; });
    choices = {all != choices.end() ? *all : choices.back()};
  }
  SearchOptions bounded = options;
  bounded.good_enough_ms = lower_bound_ms;
  const double rank_share = choices.size() > 1 ? 1.0 / 3 / static_cast<double>(choices.size()) : 1;
  BatchedPlan best;
  const BatchedInstance* chosen = nullptr;
  for (const BatchedInstance& choice : choices) {
    FoundPlan found = PlanBy(strategy, choice.instance, Part(bounded, rank_share));
    if (chosen != nullptr && !(found.feasible && (!best.found.feasible || found.ms_per_step < best.found.ms_per_step))) continue;
    chosen = &choice;
    best = {choice.instance.microbatches, choice.batch, std::move(found), lower_bound_ms};
  }
  if (strategy != Strategy::kLime) return best;
  if (choices.size() > 1 && best.found.feasible && !best.found.optimal) {
    SearchOptions rest = Part(bounded, 2.0 / 3);
    rest.seeds.push_back(best.found.plan);
    best.found = SearchPlan(chosen->instance, rest);
  }
  if (options.may_reload && !options.first_token) OfferReloading(choices, best);
  return best;
}

absl::StatusOr<Instance> WithBatch(const Instance& instance, int32_t microbatches, int32_t batch) {
  if (!Asks(instance)) return instance;
  LIME_ASSIGN_OR_RETURN(const std::vector<BatchedInstance> choices, BatchChoices(instance));
  for (const BatchedInstance& choice : choices) {
    if (choice.batch == batch && choice.instance.microbatches == microbatches) return choice.instance;
  }
  return Invalid("plan: ", microbatches, " micro-batches of ", batch, " are not a choice that the instance gives for its ",
                 instance.sequences, " sequences");
}

}  // namespace lime
