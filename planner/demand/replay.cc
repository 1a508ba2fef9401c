#include "planner/demand/replay.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace lime {
namespace {

struct CountedVisit {
  const RouteLog::Visit* visit = nullptr;
  bool counts = false;
};

// The visits of each layer, in order.
std::vector<std::vector<CountedVisit>> VisitsByLayer(const RouteLog& log, const ReplayOptions& options) {
  std::vector<std::vector<CountedVisit>> by_layer(static_cast<size_t>(log.shape().layers));
  for (int64_t step = 0; step < log.num_steps(); ++step) {
    for (const RouteLog::Visit& visit : log.visits_of(step)) {
      const bool counts = step >= options.warm_up && visit.rows <= options.most_rows;
      by_layer[static_cast<size_t>(visit.layer)].push_back({.visit = &visit, .counts = counts});
    }
  }
  return by_layer;
}

LayerHits ReplayLayer(const RouteLog& log, std::span<const CountedVisit> visits, const LayerPlaces::Options& options) {
  LayerPlaces layer(options);
  for (int32_t place = 0; place < options.most_places; ++place) layer.AddMemory(place);
  LayerHits hits;
  for (const CountedVisit& one : visits) {
    const std::span<const int32_t> units = log.units_of(*one.visit);
    layer.Visit(units);
    if (!one.counts) continue;
    hits.misses += std::ssize(layer.misses());
    hits.hits += std::ssize(units) - std::ssize(layer.misses());
  }
  return hits;
}

}  // namespace

absl::StatusOr<std::vector<LayerHits>> Replay(const RouteLog& log, UnitPolicy policy, std::span<const int32_t> places,
                                              const ReplayOptions& options) {
  const RouteShape& shape = log.shape();
  if (std::ssize(places) != shape.layers)
    return Invalid("replay: places of ", places.size(), " layers are given, but the log has ", shape.layers, " layers");
  const std::vector<std::vector<CountedVisit>> by_layer = VisitsByLayer(log, options);
  std::vector<LayerHits> hits(by_layer.size());
  for (size_t i = 0; i < by_layer.size(); ++i) {
    if (by_layer[i].empty()) continue;
    if (places[i] < 1) return Invalid("replay: layer ", i, " has no place, but the log visits it; give it one");
    hits[i] = ReplayLayer(
        log, by_layer[i],
        {.units = shape.units, .most_places = std::min(places[i], shape.units), .ring_places = options.ring_places, .policy = policy});
  }
  return hits;
}

LayerHits SumOf(std::span<const LayerHits> layers) {
  LayerHits sum;
  for (const LayerHits& layer : layers) sum.hits += layer.hits, sum.misses += layer.misses;
  return sum;
}

std::vector<int32_t> CurvePlaces(int32_t units) {
  std::vector<int32_t> places;
  for (int64_t i = 1; i <= kCurvePoints; ++i) {
    const auto n = static_cast<int32_t>(std::max<int64_t>(1, units * i * i / (kCurvePoints * kCurvePoints)));
    if (places.empty() || n > places.back()) places.push_back(n);
  }
  return places;
}

std::vector<HitCurve> HitCurvesOf(const RouteLog& log, UnitPolicy policy, const ReplayOptions& options) {
  const int32_t units = log.shape().units;
  std::vector<HitCurve> curves;
  for (const std::vector<CountedVisit>& visits : VisitsByLayer(log, options)) {
    if (visits.empty()) curves.emplace_back();
    if (visits.empty()) continue;
    std::vector<HitPoint> points;
    int64_t uses = 0;
    for (const int32_t n : CurvePlaces(units)) {
      const LayerHits hits =
          ReplayLayer(log, visits, {.units = units, .most_places = n, .ring_places = options.ring_places, .policy = policy});
      points.push_back({.places = n, .hits = hits.hits});
      uses = hits.uses();
    }
    curves.push_back(HitCurve::Around(points, uses, units));
  }
  return curves;
}

absl::StatusOr<PolicyChoice> BestPolicy(const RouteLog& log, std::span<const int32_t> places, const ReplayOptions& options) {
  std::optional<PolicyChoice> best;
  for (const UnitPolicy policy : kUnitPolicies) {
    LIME_ASSIGN_OR_RETURN(std::vector<LayerHits> layers, Replay(log, policy, places, options));
    if (best && SumOf(layers).hits <= SumOf(best->layers).hits) continue;
    best = PolicyChoice{.policy = policy, .layers = std::move(layers)};
  }
  return *std::move(best);
}

}  // namespace lime
