#include "common/kv_takeover_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "planner/base/bytes.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_residency.h"

namespace lime {
namespace {

// A device with KV of a layer.
struct Place {
  std::string name;
  std::string owner;  // of the layer; differs from `name` on a host
  bool hosts() const { return name != owner; }
  auto operator<=>(const Place&) const = default;  // NOLINT(modernize-use-nullptr): no pointer is compared
};

bool LendsAtFirst(const Plan& plan, int32_t device, std::span<const KvSequence> sequences) {
  const absl::StatusOr<std::vector<int64_t>> away = AwayAtFirst(plan, device, sequences);
  return !away.ok() || std::ranges::any_of(*away, [](int64_t pieces) { return pieces > 0; });
}

// By layer: its owner, and the owner's host if it may have pieces. With `sequences`: if it has
// pieces when the plan begins with them.
std::map<int32_t, std::vector<Place>> PlacesIn(const Plan& plan, const std::vector<KvSequence>* sequences) {
  std::map<int32_t, std::vector<Place>> places;
  for (int32_t d = 0; d < plan.NumDevices(); ++d) {
    const PlanDevice& device = plan.devices[d];
    const bool leaves = PositionsAway(plan, device, FullLayerPages(plan)) > 0;
    const bool lends = leaves && (sequences == nullptr || LendsAtFirst(plan, d, *sequences));
    for (const int32_t layer : StateLayersOn(plan, d)) places[layer].push_back({device.name, device.name});
    for (const int32_t layer : LayersOn(plan, d)) {
      places[layer].push_back({device.name, device.name});
      for (int32_t holder = 0; lends && holder < plan.NumDevices(); ++holder) {
        if (HoldsKvOf(plan, holder, d)) places[layer].push_back({plan.devices[holder].name, device.name});
      }
    }
  }
  return places;
}

std::vector<KvLent> LentOf(const std::string& owner, const KvLentBy& lent, const std::vector<KvSequence>& sequences) {
  std::vector<KvLent> those;
  const auto found = lent.find(owner);
  if (found == lent.end()) return those;
  for (const KvLent& each : found->second) {
    if (std::ranges::find(sequences, each.sequence, &KvSequence::from) != sequences.end()) those.push_back(each);
  }
  return those;
}

}  // namespace

std::vector<KvExtent> HeldBy(const KvHolder& holder, std::span<const KvExtent> wanted) {
  std::vector<KvExtent> held;
  for (const KvExtent& extent : wanted) {
    const auto lent = std::ranges::find(holder.lent, extent.sequence, &KvLent::sequence);
    const int64_t border = lent == holder.lent.end() ? 0 : lent->pieces * kKvPiecePages;
    KvExtent part = extent;
    if (holder.hosts) {
      part.end = std::min(part.end, border);
      part.life = lent == holder.lent.end() ? 0 : lent->life;
    } else {
      part.first = std::max(part.first, border);
    }
    if (part.first < part.end) held.push_back(part);
  }
  return held;
}

KvTakeoverPlan MakeKvTakeoverPlan(const Plan& plan, int32_t device, const Plan& before, const std::vector<KvSequence>& sequences,
                                  const KvLentBy& lent, const std::map<std::string, std::string>& addresses) {
  const std::string& here = plan.devices[device].name;
  const std::map<int32_t, std::vector<Place>> had = PlacesIn(before, nullptr), has = PlacesIn(plan, &sequences);
  KvTakeoverPlan takeover{.epoch = before.epoch, .sequences = sequences};
  std::map<Place, size_t> holders;  // index in take.holders
  for (const auto& [layer, places] : had) {
    const auto next = has.find(layer);
    if (next == has.end()) continue;
    const bool reads = std::ranges::find(next->second, here, &Place::name) != next->second.end();
    const int64_t others = std::ssize(next->second) - (reads ? 1 : 0);
    for (const Place& place : places) {
      std::vector<KvLent> those = LentOf(place.owner, lent, sequences);
      if (place.hosts() && those.empty()) continue;
      if (place.name == here && others > 0) takeover.kv_readers.push_back({.layer = layer, .hosts = place.hosts(), .readers = others});
      if (!reads) continue;
      const auto [at, is_new] = holders.try_emplace(place, takeover.holders.size());
      if (is_new) {
        const auto address = addresses.find(place.name);
        takeover.holders.push_back({.name = place.name,
                                    .address = address == addresses.end() ? "" : address->second,
                                    .layers = {},
                                    .hosts = place.hosts(),
                                    .lent = std::move(those)});
      }
      takeover.holders[at->second].layers.push_back(layer);
    }
  }
  return takeover;
}

absl::StatusOr<std::vector<int64_t>> AwayAtFirst(const Plan& plan, int32_t device, std::span<const KvSequence> sequences) {
  const auto layers = std::ssize(LayersOn(plan, device));
  std::vector<int64_t> away(sequences.size(), 0);
  if (layers == 0 || WindowOf(plan).positions > 0) return away;  // no piece may leave where windows give pages back
  const int64_t reach = PositionsAway(plan, plan.devices[device], ResidencyOf(plan).layer_pages) / kKvPiece;
  int64_t pages = 0;  // of one layer, in memory
  for (const KvSequence& sequence : sequences) pages += KvPagesFor(sequence.positions);
  const int64_t room = plan.devices[device].kv_pages / layers;
  while (pages > room) {
    size_t best = away.size();
    for (size_t s = 0; s < away.size(); ++s) {
      const bool may_go = away[s] < std::min(reach, sequences[s].positions / kKvPiece);
      if (may_go && (best == away.size() || away[s] < away[best])) best = s;
    }
    if (best == away.size())
      return absl::ResourceExhaustedError(absl::StrCat("device \"", plan.devices[device].name, "\" has ", room,
                                                       " KV pages for each layer, but the KV of the running sequences needs ", pages));
    ++away[best];
    pages -= kKvPiecePages;
  }
  return away;
}

}  // namespace lime
