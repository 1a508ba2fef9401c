#include "planner/kv/kv_growth.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/kv/hosting/kv_transfer.h"
#include "planner/plan/hosting/kv_on_host.h"
#include "planner/plan/instance/instance.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_residency.h"

namespace lime {
namespace {

constexpr double kWorthwhile = 0.002;  // of the time; smaller gains are noise of the search

// The plan with rings of this many of a device's largest parts.
absl::StatusOr<Plan> WithRings(const Plan& plan, int parts, const KvLevelOptions& options) {
  Plan changed = plan;
  std::vector<Bytes> largest(plan.devices.size(), 0);
  for (const Stage& stage : plan.stages) {
    for (int p = stage.lo; p < stage.hi; ++p) largest[stage.device] = std::max(largest[stage.device], MovableBytes(plan.parts[p]));
  }
  for (int d = 0; d < plan.NumDevices(); ++d) {
    if (plan.devices[d].disk_mb_per_ms >= kMinDiskRate) changed.devices[d].memory.ring = parts * largest[d];
  }
  return Refit(std::move(changed), options);
}

// ---- KV on disks and hosts

struct Spilling {
  Plan plan;
  KvLevels levels;
  double mean_ms = MeanMs(levels);
};

absl::StatusOr<Spilling> Assess(Plan plan, const KvLevelOptions& options) {
  KvLevels levels = MakeKvLevels(plan, options);
  if (!levels.exhausted.empty()) return absl::ResourceExhaustedError(levels.exhausted);
  return Spilling{std::move(plan), std::move(levels)};
}

// Possible places for a device's KV that does not fit: -1 for its own disk, or other devices.
std::vector<int> PlacesFor(const Plan& plan, int device, const KvLevelOptions& options) {
  std::vector<int> places;
  if (options.disks && plan.devices[device].disk_mb_per_ms >= kMinDiskRate) places.push_back(-1);
  for (int host = 0; options.hosting != nullptr && host < plan.NumDevices(); ++host) {
    if (options.hosting->Allows(device, host)) places.push_back(host);
  }
  return places;
}

// Layers in memory if all KV is fetched: one in use, one in flight.
int64_t LeastBack(int host, const KvLevelOptions& options) {
  return host >= 0 && !options.hosting->asks ? 2 : 0;
}

absl::StatusOr<Plan> WithPlace(const Plan& plan, int device, const KvPlace& place, const KvLevelOptions& options) {
  if (options.hosting != nullptr) return Refit(WithKvAway(plan, *options.hosting, device, place), options);
  Plan changed = plan;
  changed.devices[device].max_layer_pages = place.layer_pages;
  return WithResidency(changed, ResidencyOf(changed));
}

// A device without room for a level keeps the pages of the level before. The rest goes to its disk;
// without a disk, to the host that allows the most levels.
absl::StatusOr<Spilling> SpillWhereStuck(Plan plan, const KvLevelOptions& options) {
  KvLevels grown = MakeKvLevels(plan, options);
  while (!grown.exhausted.empty()) {
    if (options.Ends()) return absl::ResourceExhaustedError(grown.exhausted);
    const int64_t pages = grown.levels.back().residency.layer_pages;
    std::optional<std::pair<Plan, KvLevels>> best;
    if (grown.stuck && plan.devices[*grown.stuck].max_layer_pages == 0 && pages >= WorkingPages(plan)) {
      for (const int host : PlacesFor(plan, *grown.stuck, options)) {
        absl::StatusOr<Plan> other =
            WithPlace(plan, *grown.stuck, {.layer_pages = pages, .host = host, .back = LeastBack(host, options)}, options);
        if (!other.ok()) continue;
        KvLevels grows = MakeKvLevels(*other, options);
        const auto rank = [](const KvLevels& levels) { return std::pair(-std::ssize(levels.levels), MeanMs(levels)); };
        if (!best || rank(grows) < rank(best->second)) best.emplace(*std::move(other), std::move(grows));
        if (host < 0) break;  // PlaceSearch improves on it
      }
    }
    if (!best) return absl::ResourceExhaustedError(grown.exhausted);
    plan = std::move(best->first), grown = std::move(best->second);
  }
  return Spilling{std::move(plan), std::move(grown)};
}

// Varies, device by device, the number of pages in memory and the place of the others, and keeps
// what is faster. It compares many plans, so each gets less work.
class PlaceSearch {
 public:
  PlaceSearch(Spilling best, const KvLevelOptions& options) : best_(std::move(best)), options_(options) {
    options_.work /= 8;
    if (absl::StatusOr<Spilling> same = Assess(best_.plan, options_); same.ok()) best_ = *std::move(same);
    for (const KvLevel& level : best_.levels.levels) {
      if (level.residency.layer_pages >= WorkingPages(best_.plan)) choices_.push_back(level.residency.layer_pages);
    }
  }

  Spilling Run() {
    for (int d = 0; d < best_.plan.NumDevices(); ++d) {
      if (best_.plan.devices[d].kv_pages == 0) continue;
      const std::vector<int> hosts = PlacesFor(best_.plan, d, options_);
      for (const int host : hosts) {
        if (host >= 0 && !MayPay(d, host)) continue;
        for (const int64_t pages : ChoicesFor(d, host)) Try(d, {.layer_pages = pages, .host = host, .back = LeastBack(host, options_)});
      }
      if (const KvPlace place = KvPlaceOf(best_.plan, d); place.host >= 0) SearchBeside(d, place);
      if (!hosts.empty()) Try(d, {});
    }
    return std::move(best_);
  }

 private:
  // For the best host: all numbers of pages, and sizes of the memory for fetched pieces.
  void SearchBeside(int device, KvPlace place) {
    for (const int64_t pages : choices_) Try(device, {.layer_pages = pages, .host = place.host, .back = place.back});
    place = KvPlaceOf(best_.plan, device);
    for (const int64_t back : {1, 2, 4, 8, 16}) {
      if (place.host >= 0) Try(device, {.layer_pages = place.layer_pages, .host = place.host, .back = back});
    }
  }

  // Not if asking alone takes half of a token's time. Not if the host streams at the end: its
  // memory is full, and KV would only make it stream more weights.
  bool MayPay(int device, int host) const {
    if (StreamsAtTheEnd(host)) return false;
    if (!options_.hosting->asks) return true;
    const double way_ms = options_.hosting->pairs[static_cast<size_t>(device)][static_cast<size_t>(host)]->decode.way_ms;
    const double asks = static_cast<double>(std::ssize(LayersOn(best_.plan, device))) * best_.plan.microbatches;
    return way_ms * asks < best_.mean_ms / 2;
  }

  bool StreamsAtTheEnd(int device) const {
    return std::ranges::any_of(best_.levels.levels.back().residency.streamed,
                               [&](int32_t p) { return best_.plan.stages[StageOf(best_.plan, p)].device == device; });
  }

  // A few choices show whether a host helps. If all its KV is fetched: what the link can carry at
  // the end (Eq. 8).
  std::vector<int64_t> ChoicesFor(int device, int host) const {
    if (host >= 0 && !options_.hosting->asks) {
      const int64_t most = PagesThatComeBack(device, host), full = FullLayerPages(best_.plan);
      std::vector<int64_t> pages;
      for (const int64_t back : {most, most * 3 / 4, most / 2}) {
        if (back > 0 && full - back >= WorkingPages(best_.plan)) pages.push_back(full - back);
      }
      return pages;
    }
    if (host < 0 || choices_.size() <= kHostChoices) return choices_;
    std::vector<int64_t> few;
    for (size_t i = 0; i < kHostChoices; ++i) few.push_back(choices_[i * (choices_.size() - 1) / (kHostChoices - 1)]);
    return few;
  }

  int64_t PagesThatComeBack(int device, int host) const {
    const Plan& plan = best_.plan;
    const Bytes free = plan.devices[host].memory.margin - options_.hosting->devices[static_cast<size_t>(host)].margin;
    const double token_mb =
        Mb(plan.page_bytes) / static_cast<double>(kPageTokens) * static_cast<double>(std::ssize(LayersOn(plan, device)));
    const int64_t tokens = TokensToLend({.period_ms = best_.levels.levels.back().ms_per_step,
                                         .bw_mb_per_ms = options_.hosting->pairs[device][host]->fetch_mb_per_ms,
                                         .kv_visit_mb = token_mb,
                                         .target_free_mb = Mb(std::max<Bytes>(0, free)),
                                         .kv_tok_mb = token_mb,
                                         .n = plan.context * plan.sequences});
    return tokens / kKvPiece * (kKvPiece / kPageTokens);
  }

  void Try(int device, const KvPlace& place) {
    if (options_.Ends()) return;
    const KvPlace now = KvPlaceOf(best_.plan, device);
    if (place.layer_pages == now.layer_pages && (place.layer_pages == 0 || (place.host == now.host && place.back == now.back))) return;
    absl::StatusOr<Plan> plan = WithPlace(best_.plan, device, place, options_);
    // A host helps more with a longer context. If it does not help at the end, skip the other
    // levels.
    if (!plan.ok() || (place.host >= 0 && MsAtTheEnd(*plan, options_) >= best_.levels.levels.back().ms_per_step)) return;
    absl::StatusOr<Spilling> other = Assess(*std::move(plan), options_);
    if (other.ok() && other->mean_ms < best_.mean_ms * (1 - kWorthwhile)) best_ = *std::move(other);
  }

  static constexpr size_t kHostChoices = 4;

  Spilling best_;
  KvLevelOptions options_;
  std::vector<int64_t> choices_;  // pages per layer, from the levels
};

constexpr int kRings[] = {2, 3, 4, 6, 8, 12, 16, 24, 32};  // of a device's largest parts

// Plans with rings of the smallest size that works, and of the best one.
struct ByRing {
  Spilling least, best;
};

// Tries rings of all sizes, until `most_worse` in turn were no better. `complete` makes a plan whose
// KV can grow to its context, and its levels.
template <typename Complete>
absl::StatusOr<ByRing> SearchRings(const Plan& plan, const KvLevelOptions& options, int most_worse, Complete complete) {
  std::optional<ByRing> found;
  std::string reason = "no ring fits";
  int worse = 0;
  for (const int parts : kRings) {
    if (options.Ends()) reason = "the search was stopped";
    if (options.Ends()) break;
    absl::StatusOr<Plan> grows = WithRings(plan, parts, options);
    if (!grows.ok() || !std::isfinite(grows->predicted.ms_per_step)) continue;
    absl::StatusOr<Spilling> other = complete(*std::move(grows), options);
    if (!other.ok()) reason = std::string(other.status().message());
    if (!other.ok()) continue;
    worse = !found || other->mean_ms < found->best.mean_ms ? 0 : worse + 1;
    if (!found) found = ByRing{*other, *other};
    if (worse == 0) found->best = *std::move(other);
    if (worse == most_worse) break;
  }
  if (found) return *std::move(found);
  return absl::ResourceExhaustedError(
      absl::StrCat("the KV of this plan cannot grow to its context: ", reason, "; plan with more --kv-tokens"));
}

}  // namespace

absl::StatusOr<Plan> PlanToGrow(const Plan& plan, const KvLevelOptions& options) {
  LIME_ASSIGN_OR_RETURN(ByRing found, SearchRings(plan, options, std::size(kRings), Assess));
  return std::move(found.best.plan);
}

absl::StatusOr<Plan> PlanToSpill(const Plan& plan, const KvLevelOptions& options) {
  // Larger rings only take memory from resident parts.
  LIME_ASSIGN_OR_RETURN(ByRing found, SearchRings(plan, options, /*most_worse=*/2, SpillWhereStuck));
  Spilling improved = PlaceSearch(std::move(found.best), options).Run();
  if (std::ranges::none_of(improved.plan.devices, HasKvOnHost)) return std::move(improved.plan);
  // With KV on a host fewer parts may stream. A large ring then only takes memory.
  Spilling other = PlaceSearch(std::move(found.least), options).Run();
  return std::move(other.mean_ms < improved.mean_ms ? other.plan : improved.plan);
}

}  // namespace lime
