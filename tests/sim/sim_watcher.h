// PlanWatcher in simulated time, without a thread: asks the same Replanner whether to change the
// plan. Rates are simulated, and a search finds a random plan.
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
  // REQUIRES: `world` outlives this; this outlives all events of the world
  SimWatcher(SimWorld& world, const Plan& plan, Search search);

  // Changes the rate of a device or link of the plan. From now on the watcher looks at the rates
  // for a while.
  void ChangeRate();
  // The plan to change to. Returns each plan once.
  std::optional<SimPlan> Next(const OrderWriter::Remaining& remaining);
  // This plan is in use now, for any reason.
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
  ClusterRates rates_;     // the present rates that are not 1
  ClusterRates searched_;  // of the last search
  Replanner replanner_;
  OrderWriter::Remaining remaining_;  // of the last call of Next
  std::optional<Candidate> found_;
  int looks_ = 0;  // to go
};

}  // namespace lime
