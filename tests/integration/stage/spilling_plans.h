// Random plans, by seed, in which KV does not fit in the memory of a device.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "planner/kv/kv_growth.h"
#include "planner/plan/hosting/kv_on_host.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_residency.h"
#include "tests/integration/stage/stage_orders.h"

namespace lime {

inline constexpr int64_t kLongContext = 1400;
inline constexpr int64_t kAhead = 2 * kResidencyLead;  // positions with pages, beyond those ordered

class Draws {
 public:
  Draws(const Plan& plan, uint64_t seed) : plan_(plan), random_(seed) {}

  int64_t Below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

  // A random residency. The pages decide which KV parts stream; other parts stream at random.
  Residency Draw(int64_t layer_pages) {
    Residency residency{.layer_pages = layer_pages};
    const int64_t percent = Below(101);
    for (int p = 0; p < plan_.NumParts(); ++p) {
      const PlanPart& part = plan_.parts[p];
      const PlanDevice& device = plan_.devices[plan_.stages[StageOf(plan_, p)].device];
      const bool on_disk = HasKvOnDisk(device) && part.kv_begin < PositionsAway(plan_, device, layer_pages);
      if (part.is_kv() ? on_disk : Below(100) < percent) residency.streamed.push_back(p);
    }
    return residency;
  }

 private:
  const Plan& plan_;
  std::mt19937_64 random_;
};

// Decides which KV comes back from the host: none, the pieces that fit, or all of it because the
// host is not asked.
inline void DrawFetching(Plan& plan, int device, Draws& draws) {
  PlanDevice& of = plan.devices[device];
  const int64_t pieces = HostedPieces(plan, of);
  of.asks_kv = draws.Below(3) > 0;
  if (!of.asks_kv) {
    of.kv_fetch_pieces = pieces + kKvFetchesUnderWay + draws.Below(4), of.kv_fetch_mb_per_ms = 0.1;
  } else if (draws.Below(3) > 0) {
    of.kv_fetch_pieces = 1 + draws.Below(3 * pieces + 4);
  }
  of.memory.fetched = FetchedBytes(plan, of);
  of.budget += of.memory.fetched;
}

// Makes a random other device, with or without a stage, the host of the KV for which this device
// has no room.
inline void DrawHost(Plan& plan, int device, Draws& draws) {
  constexpr Bytes kMore = 64 * kMiB;
  const int32_t host = static_cast<int32_t>(draws.Below(plan.NumDevices()));
  const bool has_stage = std::ranges::find(plan.stages, device, &Stage::device) != plan.stages.end();
  if (host == device || !has_stage) return;
  plan.devices[device].kv_host = host;
  for (const int32_t d : {device, host}) plan.devices[d].budget += kMore, plan.devices[d].memory.margin += kMore;
  DrawFetching(plan, device, draws);
}

// Every device keeps a random number of pages in memory, at least the working pages; some devices
// keep all pages. The other pages are on its disk, or on a host if the model's layers have KV alike.
inline Plan Spilling(const ModelSpec& spec, uint64_t seed) {
  constexpr Bytes kCuts = kMiB;  // cut parts need a little more memory
  Plan plan = Elastic(RandomPlan(spec, seed, {.context = kLongContext, .prompt = 200, .most_chunk = 90}).Draw(), kCuts);
  absl::StatusOr<Plan> cut = CutForKv(plan, spec);
  EXPECT_TRUE(cut.ok()) << cut.status();
  if (!cut.ok()) return plan;
  cut = Elastic(*std::move(cut));
  Draws draws(*cut, seed);
  for (int d = 0; d < cut->NumDevices(); ++d) {
    PlanDevice& device = cut->devices[d];
    if (draws.Below(4) > 0) device.max_layer_pages = WorkingPages(*cut) + draws.Below(draws.Below(2) == 0 ? 4 : 150);
    if (device.max_layer_pages > 0 && draws.Below(4) > 0 && spec.config.HasAlikeKv()) DrawHost(*cut, d, draws);
  }
  return *std::move(cut);
}

// Pages of a layer for all requests, each with its prompt and `tokens` generated tokens.
inline int64_t PagesAt(const std::vector<Reference>& requests, int64_t tokens) {
  int64_t pages = 0;
  for (const Reference& request : requests) pages += (std::ssize(request.prompt) + tokens + kPageTokens - 1) / kPageTokens;
  return pages;
}

// A plan with all KV in memory, or with some of it on disks and hosts. It has pages for all
// positions from the start, or for nearly all.
inline Plan DrawLongPlan(const ModelSpec& spec, uint64_t seed) {
  if (seed % 3 == 0) return RandomPlan(spec, seed, {.context = kLongContext, .prompt = 200, .most_chunk = 90}).Draw();
  const Plan plan = Spilling(spec, seed);
  Draws draws(plan, seed);
  const int64_t full = FullLayerPages(plan);
  const absl::StatusOr<Plan> other = WithResidency(plan, draws.Draw(seed % 3 == 1 ? full : full - draws.Below(full / 10)));
  EXPECT_TRUE(other.ok()) << other.status();
  return other.ok() ? *other : plan;
}

// Whether the plan has room for `pages` pages of each layer, in memory, on disks and on hosts.
inline bool HasRoom(const Plan& plan, int64_t pages) {
  if (ResidencyOf(plan).layer_pages < pages) return false;
  for (int d = 0; d < plan.NumDevices(); ++d) {
    if (plan.devices[d].kv_pages < PagesOn(plan, d, pages)) return false;
  }
  return true;
}

// A plan that has room for `pages` pages of each layer.
inline Plan DrawLongPlan(const ModelSpec& spec, uint64_t seed, int64_t pages) {
  for (;; seed += 1000) {
    Plan plan = DrawLongPlan(spec, seed);
    if (HasRoom(plan, pages)) return plan;
  }
}

}  // namespace lime
