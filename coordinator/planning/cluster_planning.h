// The search for a cluster's plan, for `lime plan` and `lime run --cluster`. It states the problem
// and finds the best plan with the links that this plan uses.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/planning/plan_inputs.h"
#include "planner/batches.h"
#include "planner/plan_explanation.h"

namespace lime {

// For `lime plan`, and for a run that waits for its plan.
inline constexpr double kPlanWorkMs = 5000, kRunPlanWorkMs = 3000;

class ClusterPlanning {
 public:
  struct Options {
    Strategy strategy = Strategy::kLime;
    uint64_t seed = 1;
    // Work of each search: the amount that a current core does in this time. It is the same on
    // every machine.
    double work_ms = kPlanWorkMs;
    // Each search also ends after this time by the clock. For searches during a run, because the
    // run needs the machine.
    bool by_clock = false;
    // Time of all searches and their explanation. nullopt: only the work bounds them, and equal
    // flags give equal plans.
    std::optional<double> time_limit_ms = std::nullopt;
    double max_ttft_ms = 0;                        // 0: no bound
    const std::atomic<bool>* cancelled = nullptr;  // ends the search; its result is then useless
    // Receives the current work of the search, which may take minutes.
    std::function<void(const std::string& what)> at = nullptr;
  };
  ClusterPlanning(const Options& options, PlanInputs inputs);

  // Call once. A plan with experts on demand reserves all KV (planner/unit_places.h), and divides
  // the experts of every layer over devices if that is faster. Sets PlanRequest::unit_places and
  // unit_shares.
  //
  // With PlanRequest::kv_tokens: a plan whose KV grows if it is faster at first, else
  // one with all KV in memory. If memory has no room for all KV: a plan that spills KV to disks or
  // lends it to hosts; a strategy that streams nothing gets a plan that keeps less.
  // Errors: ResourceExhausted if no plan fits, in a sentence that says what would make it fit;
  // DeadlineExceeded if none was found in time.
  absl::StatusOr<Plan> Run();

  const PlanInputs& inputs() const { return inputs_; }
  // Why SparsityWish::kAuto or kPredicted has chosen the plan of Run; empty if nothing was compared.
  const std::string& sparsity_why() const { return sparsity_why_; }
  // Why each device has its role.  REQUIRES: `plan` comes from Run
  std::vector<DeviceExplanation> Explain(const Plan& plan) const;

 private:
  bool Cancelled() const { return options_.cancelled != nullptr && options_.cancelled->load(std::memory_order_relaxed); }
  // The part of the time limit that is left for searches; infinite without a limit.
  double LeftMs() const;
  bool Ends() const { return Cancelled() || LeftMs() <= 0; }
  void At(const std::string& what) const {
    if (options_.at) options_.at(what);
  }
  // Whether KV may leave a device's memory. Baselines use no disks or hosts for KV. A bound on the
  // first token cannot be checked if KV leaves memory.
  bool MayLeave() const { return options_.strategy == Strategy::kLime && options_.max_ttft_ms == 0; }
  bool MayRetainLess() const {
    const ModelConfig& config = inputs_.spec.config;
    const bool has_state = inputs_.spec.NumKvLayers() < config.num_layers();
    const bool passes_more = config.stream_cols() != config.hidden_size;  // SlicedVisit passes rows of the residual stream alone
    return RetainsLessKv(options_.strategy) && options_.max_ttft_ms == 0 && !has_state && !passes_more;
  }
  bool MaySpill() const { return !inputs_.kv.no_spill && MayLeave(); }
  bool MayDivide() const;
  bool MayUseHosts() const { return inputs_.kv.MayTravel() && inputs_.devices.size() > 1 && MayLeave(); }
  absl::StatusOr<Plan> SearchAll();
  // nullopt: `whole` is better, or nothing may be sparse.
  std::optional<absl::StatusOr<Plan>> SearchFasterSparse(const absl::StatusOr<Plan>& whole);
  absl::StatusOr<Plan> SearchSparse(const absl::StatusOr<Plan>& whole);
  Bytes SparseActivations() const;
  BlockHomes Homes() const;
  absl::StatusOr<PlanProblem> MakeProblem() const;
  absl::StatusOr<Plan> Search();
  absl::StatusOr<Plan> SearchOnDemand();
  absl::StatusOr<Plan> SearchDivided(const Plan& plan);
  absl::StatusOr<Plan> SearchToGrow(const BatchedPlan& whole);
  absl::StatusOr<Plan> SearchToSpill();
  absl::StatusOr<Plan> SearchRetained();
  absl::StatusOr<Plan> Grow(const Plan& plan) const;
  SearchOptions SearchFor() const;
  double LevelWork() const;
  absl::StatusOr<Plan> Settle(PlanProblem& problem, BatchedPlan& best) const;
  absl::StatusOr<double> BoundMs() const;
  PlanChoice Choice(const PlanProblem& problem, const BatchedPlan& best) const;
  ExplainOptions HowToExplain() const;
  bool MayFit() const;
  absl::Status Infeasible() const;

  const Options options_;
  const double begin_ms_;
  PlanInputs inputs_;
  bool only_away_ = false;  // memory has no room for all KV beside the weights
  double work_share_ = 1;   // of a usual search
  BlockHomes begins_at_;    // searches also start from the stages of a plan with these homes, and from `seeds_`
  std::vector<StagePlan> seeds_;
  std::string sparsity_why_;
  PlanProblem problem_;
  BatchedPlan best_;
};

}  // namespace lime
