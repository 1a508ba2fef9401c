#include "coordinator/logic/replanner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/base/check.h"

namespace lime {
namespace {

double Times(double a, double b) {
  return std::max(a / b, b / a);
}

}  // namespace

bool Replanner::IsAnother(const RateKey& key, double planned, double now) const {
  return Times(planned, now) > (key.kind == RateKey::Kind::kLink ? options_.times : options_.speed_times);
}

std::optional<ClusterRates> Replanner::OnRates(const ClusterRates& measured, absl::Time now, const RateAges& ages) {
  LIME_CHECK(!searching());
  bool lasts = false;
  double most = 0;
  for (const auto& [key, planned] : planned_) {
    const auto found = measured.find(key);
    if (found == measured.end()) {
      if (const auto seen = others_.find(key); seen != others_.end() && now - seen->second.last > options_.forgotten) others_.erase(seen);
      continue;
    }
    if (!IsAnother(key, planned, found->second)) {
      others_.erase(key);
      continue;
    }
    const auto age = ages.find(key);
    const absl::Time at = age == ages.end() ? now : now - age->second;
    Seen& seen = others_.try_emplace(key, Seen{at, at}).first->second;
    seen.last = std::max(seen.last, at);
    if (seen.last - seen.first < options_.lasting) continue;
    lasts = true;
    if (Times(planned, found->second) <= most) continue;
    most = Times(planned, found->second);
    why_ = DescribeRates(key, planned, found->second);
  }
  const bool grown = kv_known_ > 0 && static_cast<double>(kv_pages_) > options_.kv_times * static_cast<double>(kv_known_);
  if ((!lasts && !grown) || now < not_before_) return std::nullopt;
  if (!lasts) why_ = absl::StrCat("KV has grown from ", kv_known_, " to ", kv_pages_, " pages of each layer");
  kv_before_ = std::exchange(kv_known_, kv_pages_);
  searching_ = planned_;
  for (const auto& [key, rate] : measured) (*searching_)[key] = rate;
  return searching_;
}

void Replanner::OnKv(int64_t pages) {
  kv_pages_ = pages;
  if (kv_known_ == 0) kv_known_ = pages;
}

bool Replanner::OnFound(const std::optional<Found>& found, double steps_left, absl::Time now) {
  LIME_CHECK(searching());
  const ClusterRates with = *std::exchange(searching_, std::nullopt);
  Rest(now);
  for (auto& [key, rate] : planned_) rate = with.at(key);
  if (!found || !std::isfinite(found->ms_per_step) || found->ms_per_step >= (1 - options_.least_gain) * found->current_ms) return false;
  return (found->current_ms - found->ms_per_step) * steps_left > options_.margin * found->pause_ms;
}

void Replanner::OnStale(absl::Time now) {
  LIME_CHECK(searching());
  searching_.reset();
  kv_known_ = kv_before_;
  not_before_ = now + options_.rest;
}

void Replanner::Rest(absl::Time now) {
  not_before_ = now + rest_;
  rest_ = std::min(2 * rest_, options_.most_rest);
  others_.clear();
}

void Replanner::OnPlan(ClusterRates planned, absl::Time now) {
  planned_ = std::move(planned);
  kv_pages_ = kv_known_ = 0;
  searching_.reset();
  rest_ = options_.rest;
  Rest(now);
}

}  // namespace lime
