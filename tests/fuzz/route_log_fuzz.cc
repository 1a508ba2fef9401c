// Any bytes as a log of routes: an error in one sentence, or a log that is written back the same,
// and whose replay and cache count every unit once and have the same hits.
#include <algorithm>
#include <memory>
#include <string_view>
#include <vector>

#include "daemon/logic/demand/demand_cache.h"
#include "planner/base/check.h"
#include "planner/demand/replay.h"
#include "planner/demand/route_log.h"

namespace {

using namespace lime;

// Reads and computes the visit of a layer to its end.
void Finish(int32_t layer, DemandCache& cache) {
  while (cache.IsUnderWay(layer)) {
    if (const auto ready = cache.NextReady(layer)) {
      cache.OnComputed(layer, ready->unit);
      continue;
    }
    const auto read = cache.NextRead();
    LIME_CHECK(read.has_value()) << "a visit does not go on";
    LIME_CHECK(cache.OnRead(read->number, absl::OkStatus()).ok());
  }
}

void CheckReplay(const RouteLog& log, UnitPolicy policy, int32_t places) {
  const RouteShape& shape = log.shape();
  const std::vector<int32_t> all(static_cast<size_t>(shape.layers), std::min(places, shape.units));
  const auto hits = Replay(log, policy, all);
  LIME_CHECK(hits.ok()) << hits.status().message();
  LIME_CHECK_EQ(SumOf(*hits).uses(), log.num_choices());
  const auto cache = DemandCache::Create({.units = shape.units, .places = all, .ring_places = std::min(2, shape.units), .policy = policy});
  LIME_CHECK(cache.ok()) << cache.status().message();
  for (const RouteLog::Visit& visit : log.visits()) {
    LIME_CHECK((*cache)->Begin(visit.layer, log.units_of(visit), visit.rows).ok());
    Finish(visit.layer, **cache);
  }
  for (int32_t layer = 0; layer < shape.layers; ++layer)
    LIME_CHECK_EQ((*cache)->counts(layer).hits, (*hits)[static_cast<size_t>(layer)].hits) << "layer " << layer;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<RouteLog> log = ParseRouteLog(bytes, "fuzz");
  if (!log.ok()) {
    LIME_CHECK(!log.status().message().empty());
    LIME_CHECK(log.status().message().find('\n') == absl::string_view::npos) << log.status().message();
    return 0;
  }
  LIME_CHECK(EncodeRouteLog(*log) == bytes) << "written back otherwise";
  const RouteShape& shape = log->shape();
  if (shape.layers * int64_t{shape.units} > 4096 || log->num_choices() > 4096) return 0;  // for the sake of speed
  for (const UnitPolicy policy : kUnitPolicies) CheckReplay(*log, policy, 1 + static_cast<int32_t>(size % 7));
  for (const HitCurve& curve : HitCurvesOf(*log, UnitPolicy::kLru)) LIME_CHECK(curve.At(0) == 0 && curve.At(shape.units) <= 1);
  return 0;
}
