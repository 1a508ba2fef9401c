#include "planner/strategies.h"

#include <algorithm>

#include "planner/baselines/baselines.h"

namespace lime {
namespace {

FoundPlan PaperPlan(const Instance& instance, const SearchOptions& options, double share) {
  SearchBudget budget(std::min(options.max_work, options.time_limit_ms * SearchBudget::kWorkPerMs) * share, options.time_limit_ms,
                      options.elapsed_ms);
  return PlanLimePaper(instance, budget);
}

// The search, which also starts from the plans of the other strategies.
FoundPlan LimePlan(const Instance& instance, SearchOptions options) {
  if (CannotFit(instance)) return SearchPlan(instance, options);  // returns the reason
  for (const FoundPlan& other :
       {PaperPlan(instance, options, 0.1), PlanPipeline(instance), PlanPipelineOffload(instance), PlanEdgeShard(instance)}) {
    if (!other.plan.stages.empty()) options.seeds.push_back(other.plan);
  }
  return SearchPlan(instance, options);
}

}  // namespace

FoundPlan PlanBy(Strategy strategy, const Instance& instance, const SearchOptions& options) {
  switch (strategy) {
    case Strategy::kLime:
      return LimePlan(instance, options);
    case Strategy::kLimePaper:
      return PaperPlan(instance, options, 1);
    case Strategy::kPp:
      return PlanPipeline(instance);
    case Strategy::kPpOffload:
    case Strategy::kPpOffloadBatched:
      return PlanPipelineOffload(instance);
    case Strategy::kEdgeShard:
      return PlanEdgeShard(instance);
  }
  return {};
}

}  // namespace lime
