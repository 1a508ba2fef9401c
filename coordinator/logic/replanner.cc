#include "coordinator/logic/replanner.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "planner/base/check.h"

namespace lime {
namespace {

constexpr double kBytesPerMbit = 125'000;

double Times(double a, double b) {
  return std::max(a / b, b / a);
}

}  // namespace

bool Replanner::IsAnother(double planned, double now) const {
  return Times(planned, now) > options_.times;
}

std::optional<Replanner::Links> Replanner::OnLinks(const Links& measured, absl::Time now) {
  LIME_CHECK(!searching());
  bool lasts = false;
  double most = 0;
  for (const auto& [link, planned] : planned_) {
    const auto found = measured.find(link);
    if (found == measured.end() || !IsAnother(planned, found->second)) {
      since_.erase(link);
      continue;
    }
    const absl::Time since = since_.try_emplace(link, now).first->second;
    if (now - since < options_.lasting) continue;
    lasts = true;
    if (Times(planned, found->second) <= most) continue;
    most = Times(planned, found->second);
    why_ = absl::StrFormat("link %s -> %s: %.3g -> %.3g Mbit/s", link.first, link.second, planned / kBytesPerMbit,
                           found->second / kBytesPerMbit);
  }
  if (!lasts || now < not_before_) return std::nullopt;
  searching_ = planned_;
  for (const auto& [link, rate] : measured) (*searching_)[link] = rate;
  return searching_;
}

bool Replanner::OnFound(const std::optional<Found>& found, double steps_left, absl::Time now) {
  LIME_CHECK(searching());
  const Links with = *std::exchange(searching_, std::nullopt);
  not_before_ = now + options_.rest;
  since_.clear();
  for (auto& [link, rate] : planned_) rate = with.at(link);
  if (!found || !std::isfinite(found->ms_per_step) || found->ms_per_step >= (1 - options_.least_gain) * found->current_ms) return false;
  return (found->current_ms - found->ms_per_step) * steps_left > options_.margin * found->pause_ms;
}

void Replanner::OnPlan(Links planned, absl::Time now) {
  planned_ = std::move(planned);
  searching_.reset();
  since_.clear();
  not_before_ = now + options_.rest;
}

}  // namespace lime
