// The search for a cluster's plan, as `lime plan` and `lime run --cluster` both do it: a problem, the best plan with the links that it
// uses.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/cli/plan_inputs.h"
#include "coordinator/cli/plan_report.h"
#include "planner/batches.h"

namespace lime::cli {

// Of a plan that is asked for, and of one that a run waits for.
inline constexpr double kPlanWorkMs = 5000, kRunPlanWorkMs = 3000;

class ClusterPlanning {
 public:
  struct Options {
    Strategy strategy = Strategy::kLime;
    uint64_t seed = 1;
    // Work of each search: as much as a core of today does in so many milliseconds, and the same on every machine.
    double work_ms = kPlanWorkMs;
    // Each search also ends after so long by the clock: while a run goes on, which needs the machine.
    bool by_clock = false;
    // Of all searches and their explanation together. Nothing: the work is the only bound, and the same words give the same plan.
    std::optional<double> time_limit_ms = std::nullopt;
    double max_ttft_ms = 0;                        // 0: no bound
    const std::atomic<bool>* cancelled = nullptr;  // once it is set the search comes to its end, and what it answers is worth nothing
    std::function<void(const std::string& what)> at = nullptr;  // told what it looks for, since it may take minutes
  };
  ClusterPlanning(const Options& options, PlanInputs inputs);

  // Once. With PlanRequest::kv_tokens a plan whose KV grows where that is faster at first, else one with all its KV in memory; where no
  // memory has room for that, one whose KV goes on to disks, or by the strategies that stream nothing one that evicts it.
  // ResourceExhausted, in one sentence that says what would make it fit, where no plan fits; DeadlineExceeded where none was found in time.
  absl::StatusOr<Plan> Run();

  const PlanInputs& inputs() const { return inputs_; }
  // Why each device has what it has.  REQUIRES: `plan` is Run's
  std::vector<DeviceExplanation> Explain(const Plan& plan) const;

 private:
  bool Cancelled() const { return options_.cancelled != nullptr && options_.cancelled->load(std::memory_order_relaxed); }
  // Of the time limit, what is left for searches; infinite where there is none.
  double LeftMs() const;
  bool Ends() const { return Cancelled() || LeftMs() <= 0; }
  void At(const std::string& what) const {
    if (options_.at) options_.at(what);
  }
  // The baselines have neither disks for KV nor hosts, and where it goes there a bound on the first token is not known to hold.
  bool MayLeave() const { return options_.strategy == Strategy::kLime && options_.max_ttft_ms == 0; }
  bool MayEvict() const {
    return (options_.strategy == Strategy::kPp || options_.strategy == Strategy::kEdgeShard) && options_.max_ttft_ms == 0;
  }
  bool MaySpill() const { return !inputs_.kv.no_spill && MayLeave(); }
  bool MayLend() const { return !inputs_.kv.no_lending && inputs_.devices.size() > 1 && MayLeave(); }
  absl::StatusOr<Plan> SearchAll();
  absl::StatusOr<PlanProblem> MakeProblem() const;
  absl::StatusOr<Plan> Search();
  absl::StatusOr<Plan> SearchToGrow(const BatchedPlan& whole);
  absl::StatusOr<Plan> SearchToSpill();
  absl::StatusOr<Plan> SearchToEvict();
  absl::StatusOr<Plan> SearchKeeping(int64_t kept_positions, int32_t batch);
  absl::StatusOr<Plan> Grow(const Plan& plan) const;
  SearchOptions SearchFor() const;
  double LevelWork() const;
  absl::StatusOr<Plan> Settle(PlanProblem& problem, BatchedPlan& best) const;
  absl::StatusOr<double> BoundMs() const;
  PlanChoice Choice(const PlanProblem& problem, const BatchedPlan& best) const;
  Instance ChosenInstance() const;
  ExplainOptions HowToExplain() const;
  absl::Status Infeasible() const;

  const Options options_;
  const double begin_ms_;
  PlanInputs inputs_;
  bool only_away_ = false;  // no memory has room for all KV beside the weights
  PlanProblem problem_;
  BatchedPlan best_;
};

}  // namespace lime::cli
