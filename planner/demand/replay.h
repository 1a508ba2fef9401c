// Replays recorded routes: what a policy would have had in memory.
//
// A replay does what the cache of a device does (daemon/logic/demand/demand_cache.h), with the same
// code (layer_places.h) and without read-ahead. So its hits are those to expect.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/base/status.h"
#include "planner/demand/hit_curve.h"
#include "planner/demand/layer_places.h"
#include "planner/demand/route_log.h"
#include "planner/demand/unit_policy.h"

namespace lime {

struct LayerHits {
  int64_t hits = 0;
  int64_t misses = 0;

  int64_t uses() const { return hits + misses; }
  double share() const { return uses() == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(uses()); }  // of hits
  friend bool operator==(const LayerHits&, const LayerHits&) = default;
};

struct ReplayOptions {
  int32_t ring_places = 2;             // LayerPlaces::Options
  int64_t warm_up = 0;                 // steps from the first on that are replayed, but not counted
  int32_t most_rows = kMostRouteRows;  // visits with more rows are replayed, but not counted
};

// Hits by layer of the model. `places`: of each layer; more than the units count as all units.
// InvalidArgument if the log visits a layer without places, or for another number of layers.
absl::StatusOr<std::vector<LayerHits>> Replay(const RouteLog& log, UnitPolicy policy, std::span<const int32_t> places,
                                              const ReplayOptions& options = {});

// All layers together.
LayerHits SumOf(std::span<const LayerHits> layers);

// The numbers of places that a curve is made from, from 1 to all units: up to kCurvePoints, closer
// together where they are few.
inline constexpr int32_t kCurvePoints = 32;
std::vector<int32_t> CurvePlaces(int32_t units);

// A curve for each layer of the model, from replays with each of CurvePlaces.
std::vector<HitCurve> HitCurvesOf(const RouteLog& log, UnitPolicy policy, const ReplayOptions& options = {});

// The policy with the most hits for these places; the first of kUnitPolicies among equals. Errors as
// of Replay.
struct PolicyChoice {
  UnitPolicy policy = UnitPolicy::kLru;
  std::vector<LayerHits> layers;  // with this policy
};
absl::StatusOr<PolicyChoice> BestPolicy(const RouteLog& log, std::span<const int32_t> places, const ReplayOptions& options = {});

}  // namespace lime
