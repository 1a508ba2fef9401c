#include "planner/unit_places.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "planner/base/check.h"
#include "planner/base/strings.h"
#include "planner/demand/layer_places.h"
#include "planner/plan/instance/stage_plan.h"
#include "planner/plan/plan_blocks.h"
#include "planner/plan/sparse_parts.h"
#include "planner/problem/unit_shares.h"

namespace lime {
namespace {

constexpr int64_t kCloseEnough = 16;  // a difference of one place in so many does not matter

// The most places of the plan's parts for which the margins of its devices have room.
int64_t PlacesWithRoom(const Plan& plan) {
  std::vector<Bytes> one(plan.devices.size(), 0);  // of one more place in every layer
  int64_t places = 0;
  for (const Stage& stage : plan.stages) {
    for (int p = stage.lo; p < stage.hi; ++p) {
      if (!plan.parts[p].has_experts_on_demand()) continue;
      one[stage.device] += plan.parts[p].unit_bytes;
      places = std::max(places, plan.parts[p].places);
    }
  }
  int64_t more = kMaxUnits;
  for (int d = 0; d < plan.NumDevices(); ++d) {
    const PlanDevice& device = plan.devices[d];
    if (one[d] > 0) more = std::min(more, std::max<Bytes>(0, device.memory.margin - device.least_margin) / one[d]);
  }
  return places + more;
}

// The best number of places until now, between the nearest ones that are known to be worse.
class Bracket {
 public:
  // `fewest` is the best one yet; `too_many` and more are not of interest.
  Bracket(int64_t fewest, int64_t too_many) : low_(fewest), best_(fewest), high_(too_many) {}

  int64_t best() const { return best_; }
  // Whether all numbers that are left are close to the best one.
  bool closed() const { return std::max(best_ - low_, high_ - best_) <= std::max<int64_t>(1, best_ / kCloseEnough); }

  // `room`: for which there is room in the best plan. Without more room, halves the larger side.
  int64_t Next(int64_t room) const {
    room = std::min(room, high_ - 1);
    if (room > best_) return room;
    return high_ - best_ >= best_ - low_ ? (best_ + high_) / 2 : (low_ + best_) / 2;
  }

  void Note(int64_t places, bool better) {
    if (better) {
      (places > best_ ? low_ : high_) = best_;
      best_ = places;
    } else {
      (places > best_ ? high_ : low_) = places;
    }
  }

 private:
  int64_t low_, best_, high_;
};

// Adds up over parts. The share of hits is that of all chosen units. A layer has the units and
// places of all its parts.
struct UseSum {
  UnitUse use;
  double chosen = 0, hits = 0;
  std::map<int32_t, std::pair<int64_t, int64_t>> of_layer;  // units, places

  void Add(const Plan& plan, const PlanDevice& device, const PlanPart& part) {
    const double bytes = DemandBytes(part) * plan.microbatches;
    auto& [units, places] = of_layer[part.block.layer];
    units += std::ssize(UnitsIn(part.rows)), places += part.places;
    use.units = std::max(use.units, units), use.places = std::max(use.places, places);
    use.bytes += bytes;
    if (bytes > 0) use.read_ms += bytes / 1e6 / device.disk_mb_per_ms + bytes / static_cast<double>(part.unit_bytes) * device.disk_lat_ms;
    chosen += part.chosen_units, hits += part.chosen_units * part.hit_share;
    use.hit_share = chosen > 0 ? hits / chosen : 0;
  }
};

void AddUse(const Plan& plan, int32_t device, UseSum& sum) {
  for (const int p : PartsOn(plan, device)) {
    if (plan.parts[p].has_experts_on_demand()) sum.Add(plan, plan.devices[device], plan.parts[p]);
  }
}

}  // namespace

bool MayGainFromDemand(const ModelSpec& spec, const Plan& whole) {
  const auto streams = [](const PlanPart& part) { return part.streamed && part.block.kind == BlockKind::kExperts; };
  return spec.config.experts && std::ranges::any_of(whole.parts, streams);
}

absl::StatusOr<Plan> ChooseUnitPlaces(const ModelSpec& spec, const UnitPlacesSearch& search) {
  LIME_CHECK(spec.config.experts.has_value());
  const ExpertsConfig& experts = *spec.config.experts;
  Bracket bracket(experts.per_token, experts.count + 1);
  absl::StatusOr<Plan> first = search.plan(experts.per_token);
  int plans = 1;
  if (absl::IsResourceExhausted(first.status()) && experts.per_token > kRingPlaces) {
    bracket = Bracket(kRingPlaces, experts.per_token);
    first = search.plan(kRingPlaces), ++plans;
  }
  LIME_ASSIGN_OR_RETURN(Plan best, std::move(first));
  search.best();
  for (; plans < search.most_plans && !bracket.closed() && !search.ends(); ++plans) {
    const int64_t places = bracket.Next(PlacesWithRoom(best));
    absl::StatusOr<Plan> plan = search.plan(places);
    if (!plan.ok() && !absl::IsResourceExhausted(plan.status())) return plan;
    const bool better = plan.ok() && TimeMs(*plan) < TimeMs(best);
    bracket.Note(places, better);
    if (!better) continue;
    best = *std::move(plan);
    search.best();
  }
  return best;
}

absl::StatusOr<std::vector<UnitShare>> SharesLike(const ModelSpec& spec, const Plan& plan, const DividedSearch& search) {
  Bytes unit_bytes = 0, small = 0;
  int64_t layers = 0;
  std::vector<Bytes> places(plan.devices.size(), 0);
  for (const Stage& stage : plan.stages) {
    for (int p = stage.lo; p < stage.hi; ++p) {
      if (!plan.parts[p].on_demand()) continue;
      ++layers, unit_bytes = std::max(unit_bytes, plan.parts[p].unit_bytes);
      small += PinnedBytes(spec.block(plan.parts[p].block));
      places[static_cast<size_t>(stage.device)] += MemoryOf(plan.parts[p]);
    }
  }
  if (layers == 0) return absl::ResourceExhaustedError("no experts are on demand");
  std::vector<UnitHolder> holders(plan.devices.size());
  for (int32_t d = 0; d < plan.NumDevices(); ++d) {
    const auto at = static_cast<size_t>(d);
    const PlanDevice& device = plan.devices[at];
    const PlanMemory& memory = device.memory;
    const bool used = std::ranges::find(plan.stages, d, &Stage::device) != plan.stages.end();
    const Bytes free =
        used ? memory.margin - device.least_margin + memory.ring - NeedsOf(plan)[at].ring : device.budget - search.idle_bytes[at];
    const Bytes bytes = static_cast<Bytes>(search.of_memory * static_cast<double>(places[at] + free - search.message_bytes - small));
    holders[at] = {.mb_per_ms = device.disk_mb_per_ms, .place_bytes = std::max<Bytes>(0, bytes)};
    // A device without a stage only helps if it has memory for what one row may choose.
    if (!used && bytes < layers * unit_bytes * spec.config.experts->per_token) holders[at].mb_per_ms = 0;
  }
  return BalancedShares(holders, *spec.config.experts, layers, unit_bytes, search.hits);
}

std::string UnitUse::Text(double tokens_per_step, std::optional<double> measured) const {
  if (units == 0) return "";
  const std::string beside = measured ? absl::StrFormat(", %.0f %% measured", *measured * 100) : "";
  return absl::StrFormat("experts: %d of %d kept, %.0f %% expected in memory%s, %s read a token", places, units, hit_share * 100, beside,
                         FormatBytes(static_cast<Bytes>(bytes / tokens_per_step)));
}

UnitUse UnitUseOf(const Plan& plan, int32_t device) {
  UseSum sum;
  AddUse(plan, device, sum);
  return sum.use;
}

UnitUse UnitUseOf(const Plan& plan) {
  UseSum sum;
  for (int32_t d = 0; d < plan.NumDevices(); ++d) AddUse(plan, d, sum);
  return sum.use;
}

double TimeMs(const Plan& plan) {
  const int reads = StaysTogether(plan, plan.microbatches) ? 1 : plan.microbatches;
  double ms = plan.predicted.ms_per_step;
  for (int32_t d = 0; d < plan.NumDevices(); ++d) {
    double bytes = UnitUseOf(plan, d).bytes;
    const double neurons_ms = NeuronUseOf(plan, d).read_ms;
    for (const Stage& stage : plan.stages) {
      for (int p = stage.lo; stage.device == d && p < stage.hi; ++p)
        bytes += plan.parts[p].streamed ? static_cast<double>(plan.parts[p].bytes) * reads : 0;
    }
    const double others_ms = bytes > 0 ? bytes / 1e6 / plan.devices[d].disk_mb_per_ms : 0;
    ms = std::max(ms, others_ms + neurons_ms);
  }
  return ms;
}

}  // namespace lime
