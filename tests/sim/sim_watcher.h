// Whether another plan is better by now, in simulated time: what PlanWatcher does with a thread,
// around the same Replanner. Rates are simulated, and the plans that are found are any.
#pragma once

#include <functional>
#include <optional>

#include "coordinator/logic/cluster_rates.h"
#include "coordinator/logic/order_writer.h"
#include "coordinator/logic/replanner.h"
#include "planner/base/status.h"
#include "planner/plan/plan.h"
#include "tests/sim/sim_plans.h"
#include "tests/sim/sim_world.h"

namespace lime {

class SimWatcher {
 public:
  using Search = std::function<absl::StatusOr<SimPlan>()>;
  // REQUIRES: `world` outlives this, and this all that happens in it
  SimWatcher(SimWorld& world, const Plan& plan, Search search);

  // Something that the plan runs on is faster or slower from now on. It is looked at for a while.
  void ChangeRate();
  // The plan to change to, once for each that was found.
  std::optional<SimPlan> Next(const OrderWriter::Remaining& remaining);
  // This one is in use, of whatever cause.
  void OnPlan(const Plan& plan);

 private:
  struct Candidate {
    SimPlan plan;
    double current_ms = 0, ms_per_step = 0, pause_ms = 0;
    int64_t most_pages = 0;
    bool in_prompt = false;
  };
  ClusterRates Planned(const Plan& plan) const;
  void Look();
  void EndSearch();

  SimWorld& world_;
  const Search search_;
  Plan plan_;
  int plans_ = 0;          // before it
  ClusterRates rates_;     // as they are, where they are not 1
  ClusterRates searched_;  // of the last search
  Replanner replanner_;
  OrderWriter::Remaining remaining_;  // when it was asked last
  std::optional<Candidate> found_;
  int looks_ = 0;  // to go
};

}  // namespace lime
