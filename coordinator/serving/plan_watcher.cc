#include "coordinator/serving/plan_watcher.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_residency.h"

namespace lime {
namespace {

constexpr int kNice = 10;

// Gives other work on this machine priority: this machine may be one of the devices.
void YieldToOthers() {
#ifdef __linux__
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
#endif
}

}  // namespace

PlanWatcher::PlanWatcher(Options options, const Plan& plan)
    : options_(std::move(options)), plan_(plan), replanner_(options_.when, options_.planned(plan)), thread_([this] { Watch(); }) {}

PlanWatcher::~PlanWatcher() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    cancelled_ = true;
  }
  thread_.join();
}

void PlanWatcher::Watch() {
  YieldToOthers();
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), options_.look)) return;
    }
    Look();
  }
}

void PlanWatcher::Look() {
  Plan plan;
  ClusterRates made_with;
  {
    absl::MutexLock lock(&mutex_);
    if (replanner_.searching()) return;  // the result waits for Next
    plan = plan_, made_with = made_with_;
  }
  RateAges ages;
  ClusterRates measured = options_.measure(plan, ages);
  for (const auto& [key, times] : made_with) {
    if (const auto found = measured.find(key); found != measured.end()) found->second *= times;
  }
  std::optional<ClusterRates> rates;
  OrderWriter::Remaining remaining;
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_ || plan_.epoch != plan.epoch) return;
    remaining = remaining_;
    if (GrowsKv(plan)) replanner_.OnKv(remaining.pages);
    rates = replanner_.OnRates(measured, options_.now(), ages);
    if (!rates) return;
    rates_ = *rates;
    cancelled_ = false;
  }
  absl::StatusOr<Candidate> found =
      options_.search({.current = plan, .made_with = made_with, .now = *rates, .remaining = remaining, .cancelled = cancelled_});
  absl::MutexLock lock(&mutex_);
  if (cancelled_) return;
  if (found.ok()) {
    found_ = *std::move(found);
    return;
  }
  (void)replanner_.OnFound(std::nullopt, 0, options_.now());
  options_.say(absl::StrCat(replanner_.why(), "; looked for another plan: ", found.status().message()));
}

std::optional<ClusterRun::Change> PlanWatcher::Next(const OrderWriter::Remaining& remaining) {
  absl::MutexLock lock(&mutex_);
  remaining_ = remaining;
  if (!found_ || (!remaining.decodes && !found_->in_prompt)) return std::nullopt;  // until tokens come
  Candidate found = *std::exchange(found_, std::nullopt);
  // If all layers have a window, no more pages will be needed than it takes.
  const bool has_window = WindowOf(plan_).positions > 0;
  const int64_t pages =
      std::min(remaining.pages + plan_.sequences, has_window ? FullLayerPages(plan_) : std::numeric_limits<int64_t>::max());
  if (pages > found.most_pages) {  // the search took too long
    replanner_.OnStale(options_.now());
    return std::nullopt;
  }
  const double ms = found.ms_per_step;
  const absl::Duration computing_again = found.computing_again.Of(remaining.known);
  const std::optional<absl::Duration> taking_over =
      found.taking_over ? std::optional(found.taking_over->Of(remaining.known)) : std::nullopt;
  const double pause_ms = absl::ToDoubleMilliseconds(taking_over.value_or(computing_again));
  const bool change = replanner_.OnFound(Replanner::Found{.current_ms = found.current_ms, .ms_per_step = ms, .pause_ms = pause_ms},
                                         static_cast<double>(remaining.steps), options_.now());
  if (!change) return std::nullopt;
  proposed_ = found.plan;
  return ClusterRun::Change{
      .plan = std::move(found.plan),
      .why = absl::StrFormat("%s; a step would take %.1f ms, with another plan %.1f ms", replanner_.why(), found.current_ms, ms),
      .taking_over = taking_over,
      .computing_again = computing_again,
      .going_back = found.going_back.Of(remaining.known),
      .most_pages = std::min(found.most_pages, plan_.sequences * ((remaining.known + kPageTokens - 1) / kPageTokens))};
}

void PlanWatcher::OnPlan(const Plan& plan) {
  absl::MutexLock lock(&mutex_);
  if (proposed_) proposed_->epoch = plan.epoch;
  const bool is_proposed = std::exchange(proposed_, std::nullopt) == plan;
  plan_ = plan;
  cancelled_ = true;
  found_.reset();
  made_with_.clear();
  ClusterRates planned = options_.planned(plan);
  for (auto& [key, rate] : planned) {
    const auto now = rates_.find(key);
    if (now == rates_.end()) continue;
    if (key.kind == RateKey::Kind::kLink) {
      rate = now->second;
    } else if (is_proposed) {  // other plans are made from profiles
      rate = made_with_[key] = now->second;
    }
  }
  replanner_.OnPlan(std::move(planned), options_.now());
}

}  // namespace lime
