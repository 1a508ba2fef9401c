#include "daemon/logic/route_recorder.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace lime {

RouteRecorder::RouteRecorder(const Options& options)
    : visits_(static_cast<size_t>(options.visits)), units_(static_cast<size_t>(options.choices)) {}

void RouteRecorder::Add(int64_t step, int32_t microbatch, int32_t layer, int32_t rows, std::span<const int32_t> units) {
  if (units.empty()) return;
  const bool has_room = num_visits_ < visits_.size() && units.size() <= units_.size() - num_units_;
  if (lost_ > 0 || !has_room) {
    ++lost_;
    return;
  }
  visits_[num_visits_++] = {
      .step = step, .microbatch = microbatch, .layer = layer, .rows = rows, .units = static_cast<int32_t>(units.size())};
  std::ranges::copy(units, units_.begin() + static_cast<std::ptrdiff_t>(num_units_));
  num_units_ += units.size();
}

absl::StatusOr<RouteLog> RouteRecorder::ToLog(const RouteShape& shape) const {
  LIME_RETURN_IF_ERROR(CheckRouteShape(shape));
  std::vector<std::pair<const Visit*, std::span<const int32_t>>> order;
  order.reserve(num_visits_);
  size_t begin = 0;
  for (const Visit& visit : std::span(visits_).first(num_visits_)) {
    order.emplace_back(&visit, std::span(units_).subspan(begin, static_cast<size_t>(visit.units)));
    begin += static_cast<size_t>(visit.units);
  }
  const auto step_of = [](const auto& one) { return std::tuple(one.first->step, one.first->microbatch); };
  std::ranges::stable_sort(order, {}, step_of);
  RouteLog log(shape);
  for (size_t i = 0; i < order.size(); ++i) {
    const bool begins = i == 0 || step_of(order[i - 1]) != step_of(order[i]);
    LIME_RETURN_IF_ERROR(log.Add(log.num_steps() - (begins ? 0 : 1), order[i].first->layer, order[i].first->rows, order[i].second));
  }
  return log;
}

}  // namespace lime
