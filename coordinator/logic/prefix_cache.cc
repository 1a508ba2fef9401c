#include "coordinator/logic/prefix_cache.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "planner/base/check.h"
#include "planner/plan/plan.h"

namespace lime {
namespace {

int64_t PagesOf(const PrefixCache::Idle& idle) {
  return (std::ssize(idle.ids) + kPageTokens - 1) / kPageTokens;
}

// The snapshot that was taken at this position; -1: none was.
int32_t SnapshotAt(std::span<const int64_t> snapshots, int64_t positions) {
  const auto found = std::ranges::find(snapshots, positions);
  return positions == 0 || found == snapshots.end() ? -1 : static_cast<int32_t>(found - snapshots.begin());
}

// Ids that are equal from the first on, at most `most`.
int64_t Equal(std::span<const int32_t> ids, std::span<const int32_t> others, int64_t most) {
  const int64_t equal = std::ranges::mismatch(ids, others).in1 - ids.begin();
  return std::min(equal, std::max<int64_t>(most, 0));
}

}  // namespace

// The most of these positions at which a sequence can begin. A snapshot may come from a plan before,
// with a smaller unit.
int64_t PrefixCache::Usable(int64_t positions, std::span<const int64_t> snapshots, int64_t least) const {
  const int64_t whole = positions / options_.unit * options_.unit;
  if (!options_.needs_snapshot && whole >= least) return whole;
  int64_t most = 0;
  for (const int64_t snapshot : snapshots) most = std::max(most, snapshot <= positions && snapshot % options_.unit == 0 ? snapshot : 0);
  return most;
}

int64_t PrefixCache::Shared(std::span<const int32_t> ids, std::span<const int32_t> others, int64_t most, std::span<const int64_t> snapshots,
                            int64_t least) const {
  return options_.unit == 0 ? 0 : Usable(Equal(ids, others, most), snapshots, least);
}

int64_t PrefixCache::Common(std::span<const int32_t> ids, std::span<const int32_t> others, int64_t most) const {
  return options_.unit == 0 ? 0 : Equal(ids, others, most) / options_.unit * options_.unit;
}

int64_t PrefixCache::CommonWithIdle(int64_t group, std::span<const int32_t> ids, int64_t most) const {
  int64_t common = 0;
  for (const Idle& idle : idle_) common = std::max(common, idle.group == group ? Common(ids, idle.ids, most) : 0);
  return common;
}

int32_t PrefixCache::SnapshotFor(int64_t positions, std::span<const int64_t> snapshots, int64_t least) const {
  return options_.needs_snapshot || positions < least ? SnapshotAt(snapshots, positions) : -1;
}

std::optional<PrefixCache::Match> PrefixCache::Find(int64_t group, std::span<const int32_t> ids, int64_t most) const {
  std::optional<Match> best;
  for (const Idle& idle : idle_) {
    const int64_t positions = idle.group == group ? Shared(ids, idle.ids, most, idle.snapshots, idle.least) : 0;
    if (positions == 0) continue;
    const Match match{.slot = idle.slot,
                      .positions = positions,
                      .snapshot = SnapshotFor(positions, idle.snapshots, idle.least),
                      .lost = std::ssize(idle.ids) - positions};
    if (!best || match.positions > best->positions || (match.positions == best->positions && match.lost < best->lost)) best = match;
  }
  return best;
}

int64_t PrefixCache::Kept(int64_t positions, std::span<const int64_t> snapshots, int64_t least) const {
  if (!on()) return 0;
  const int64_t kept = Usable(positions, snapshots, least);
  return kept / kPageTokens <= options_.most_pages ? kept : 0;
}

std::vector<int32_t> PrefixCache::Keep(Idle idle) {
  LIME_CHECK(!idle.ids.empty() && Kept(std::ssize(idle.ids), idle.snapshots, idle.least) == std::ssize(idle.ids)) << "slot " << idle.slot;
  LIME_CHECK(std::ranges::find(idle_, idle.slot, &Idle::slot) == idle_.end()) << "slot " << idle.slot;
  std::vector<int32_t> freed;
  const auto begins = [](const Idle& one, const Idle& other) {
    const auto has = [&](int64_t snapshot) { return snapshot == 0 || SnapshotAt(other.snapshots, snapshot) >= 0; };
    return one.group == other.group && one.least >= other.least && one.ids.size() <= other.ids.size() &&
           std::equal(one.ids.begin(), one.ids.end(), other.ids.begin()) && std::ranges::all_of(one.snapshots, has);
  };
  for (auto it = idle_.begin(); it != idle_.end();) {
    if (begins(*it, idle)) freed.push_back(it->slot);
    it = begins(*it, idle) ? idle_.erase(it) : std::next(it);
  }
  idle_.push_back(std::move(idle));
  while (pages() > options_.most_pages) freed.push_back(*Evict());
  return freed;
}

std::optional<int32_t> PrefixCache::Evict(int32_t not_this) {
  const auto oldest = std::ranges::find_if(idle_, [&](const Idle& idle) { return idle.slot != not_this; });
  if (oldest == idle_.end()) return std::nullopt;
  const int32_t slot = oldest->slot;
  idle_.erase(oldest);
  return slot;
}

std::list<PrefixCache::Idle>::iterator PrefixCache::At(int32_t slot) {
  const auto at = std::ranges::find(idle_, slot, &Idle::slot);
  LIME_CHECK(at != idle_.end()) << "slot " << slot;
  return at;
}

PrefixCache::Idle PrefixCache::Take(int32_t slot) {
  const auto at = At(slot);
  Idle taken = std::move(*at);
  idle_.erase(at);
  return taken;
}

void PrefixCache::Touch(int32_t slot) {
  idle_.splice(idle_.end(), idle_, At(slot));
}

int64_t PrefixCache::pages() const {
  int64_t pages = 0;
  for (const Idle& idle : idle_) pages += PagesOf(idle);
  return pages;
}

}  // namespace lime
