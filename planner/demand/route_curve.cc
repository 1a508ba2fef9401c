#include "planner/demand/route_curve.h"

#include <algorithm>
#include <utility>

#include "planner/base/check.h"
#include "planner/demand/hit_curve.h"
#include "planner/demand/replay.h"

namespace lime {
namespace {

constexpr int32_t kCountedRows = 1;

// The last steps, as many as have up to `most` choices; at least one.
RouteLog NewestSteps(const RouteLog& log, int64_t most) {
  int64_t first = log.num_steps(), choices = 0;
  while (first > 0) {
    for (const RouteLog::Visit& visit : log.visits_of(first - 1)) choices += visit.end - visit.begin;
    if (choices > most && first < log.num_steps()) break;
    --first;
  }
  RouteLog newest(log.shape());
  for (int64_t step = first; step < log.num_steps(); ++step) {
    for (const RouteLog::Visit& visit : log.visits_of(step)) {
      const absl::Status added = newest.Add(step - first, visit.layer, visit.rows, log.units_of(visit));
      LIME_CHECK(added.ok()) << added.message();  // it was in a log
    }
  }
  return newest;
}

// Counted choices, by layer.
std::vector<int64_t> UsesOf(const RouteLog& log) {
  std::vector<int64_t> uses(static_cast<size_t>(log.shape().layers));
  for (const RouteLog::Visit& visit : log.visits()) {
    if (visit.rows <= kCountedRows) uses[static_cast<size_t>(visit.layer)] += visit.end - visit.begin;
  }
  return uses;
}

// The mean of the layers' curves, by places from 1.
std::vector<double> MeanHits(const RouteLog& log, UnitPolicy policy, const std::vector<int64_t>& uses, int64_t all_uses) {
  const std::vector<HitCurve> curves = HitCurvesOf(log, policy, {.most_rows = kCountedRows});
  std::vector<double> hits(static_cast<size_t>(log.shape().units));
  for (size_t i = 0; i < hits.size(); ++i) {
    double sum = 0;
    for (size_t layer = 0; layer < curves.size(); ++layer)
      sum += static_cast<double>(uses[layer]) * curves[layer].At(static_cast<int64_t>(i) + 1);
    hits[i] = std::clamp(sum / static_cast<double>(all_uses), i > 0 ? hits[i - 1] : 0.0, 1.0);
  }
  return hits;
}

}  // namespace

absl::StatusOr<RouteCurve> CurveOfRoutes(const RouteLog& log, std::string_view name, int64_t most_choices) {
  const RouteLog newest = NewestSteps(log, most_choices);
  const std::vector<int64_t> uses = UsesOf(newest);
  int64_t all_uses = 0;
  for (const int64_t of_layer : uses) all_uses += of_layer;
  if (all_uses == 0)
    return Invalid(std::string(name), ": no step has one row, so it says nothing about decode steps; record a run of one prompt");
  RouteCurve curve;
  for (const UnitPolicy policy : kUnitPolicies) {
    const std::vector<double> hits = MeanHits(newest, policy, uses, all_uses);
    if (curve.hits.empty()) curve = {.hits = hits, .policies = std::vector<UnitPolicy>(hits.size(), policy)};
    for (size_t i = 0; i < hits.size(); ++i) {
      if (hits[i] > curve.hits[i]) curve.hits[i] = hits[i], curve.policies[i] = policy;
    }
  }
  return curve;
}

}  // namespace lime
