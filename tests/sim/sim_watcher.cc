#include "tests/sim/sim_watcher.h"

#include <iterator>
#include <limits>
#include <utility>

#include "planner/plan/plan_residency.h"

namespace lime {
namespace {

constexpr int kLooks = 40;  // after a change

// A thousandth of the times that real clusters take.
Replanner::Options When() {
  return {.lasting = absl::Milliseconds(3),
          .forgotten = absl::Milliseconds(60),
          .rest = absl::Milliseconds(12),
          .most_rest = absl::Milliseconds(200)};
}

}  // namespace

SimWatcher::SimWatcher(SimWorld& world, const Plan& plan, Search search)
    : world_(world), search_(std::move(search)), plan_(plan), replanner_(When(), Planned(plan)) {}

// Computing and disks of the devices with a stage, and the links between stages.
ClusterRates SimWatcher::Planned(const Plan& plan) const {
  ClusterRates planned;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const std::string& name = plan.devices[static_cast<size_t>(plan.stages[s].device)].name;
    const std::string& next = plan.devices[static_cast<size_t>(plan.stages[(s + 1) % plan.stages.size()].device)].name;
    planned[ComputeKey(name)] = planned[DiskKey(name)] = 1;
    if (next != name) planned[LinkKey(name, next)] = 1;
  }
  for (auto& [key, rate] : planned) {
    if (const auto found = searched_.find(key); found != searched_.end()) rate = found->second;
  }
  return planned;
}

void SimWatcher::ChangeRate() {
  const ClusterRates planned = Planned(plan_);
  const auto changed = std::next(planned.begin(), world_.random.Below(static_cast<int>(planned.size())));
  rates_[changed->first] = changed->second * (world_.random.Below(2) == 0 ? world_.Between(0.1, 0.8) : world_.Between(1.4, 8));
  if (std::exchange(looks_, kLooks) == 0) Look();
}

void SimWatcher::Look() {
  if (--looks_ > 0) world_.clock.After(world_.Between(0.5, 3), [this] { Look(); });
  if (replanner_.searching()) return;
  ClusterRates measured;
  for (const auto& [key, planned] : Planned(plan_)) {
    const auto found = rates_.find(key);
    if (world_.random.Below(5) > 0) measured[key] = (found == rates_.end() ? 1 : found->second) * world_.Between(0.95, 1.05);
  }
  if (GrowsKv(plan_)) replanner_.OnKv(remaining_.pages);
  const std::optional<ClusterRates> rates = replanner_.OnRates(measured, world_.clock.now());
  if (!rates) return;
  searched_ = *rates;
  world_.Say("looks for another plan: ", replanner_.why());
  world_.clock.After(world_.Between(0.1, 15), [this, plan = plans_] {
    if (plan == plans_) EndSearch();
  });
}

void SimWatcher::EndSearch() {
  absl::StatusOr<SimPlan> plan = search_();
  if (!plan.ok()) return (void)replanner_.OnFound(std::nullopt, 0, world_.clock.now());
  found_ = {.plan = *std::move(plan),
            .current_ms = 10,
            .ms_per_step = world_.Between(0.1, 11),
            .pause_ms = world_.Between(0, 10),
            .most_pages = world_.random.Below(4) == 0 ? remaining_.pages : std::numeric_limits<int64_t>::max(),
            .in_prompt = world_.random.Below(4) > 0};
}

std::optional<SimPlan> SimWatcher::Next(const OrderWriter::Remaining& remaining) {
  remaining_ = remaining;
  if (!found_ || (!remaining.decodes && !found_->in_prompt)) return std::nullopt;
  Candidate found = *std::exchange(found_, std::nullopt);
  if (remaining.pages + plan_.sequences > found.most_pages) {
    replanner_.OnStale(world_.clock.now());
    return std::nullopt;
  }
  const Replanner::Found what{.current_ms = found.current_ms, .ms_per_step = found.ms_per_step, .pause_ms = found.pause_ms};
  if (!replanner_.OnFound(what, static_cast<double>(remaining.steps), world_.clock.now())) return std::nullopt;
  return std::move(found.plan);
}

void SimWatcher::OnPlan(const Plan& plan) {
  plan_ = plan;
  ++plans_;
  found_.reset();
  replanner_.OnPlan(Planned(plan), world_.clock.now());
}

}  // namespace lime
