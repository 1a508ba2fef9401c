#include "planner/kv/kv_levels.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/base/check.h"
#include "planner/base/random.h"
#include "planner/evaluation/assignment.h"
#include "planner/evaluation/evaluator.h"
#include "planner/evaluation/quick_evaluator.h"
#include "planner/plan/baselines/eviction.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_blocks.h"
#include "planner/search/search_budget.h"

namespace lime {
namespace {

const PlanDevice& DeviceOfPart(const Plan& plan, int part) {
  return plan.devices[plan.stages[StageOf(plan, part)].device];
}

// The part of a KV part that a step reads from the disk at a level.
double KvPartMb(const Plan& plan, int p, int64_t layer_pages) {
  const PlanPart& part = plan.parts[p];
  if (!HasKvOnDisk(DeviceOfPart(plan, p))) return 0;
  const double there = MeanPositionsAway(plan, DeviceOfPart(plan, p), layer_pages) - static_cast<double>(part.kv_begin);
  const double positions = static_cast<double>(part.kv_end - part.kv_begin);
  return Mb(part.bytes) * std::clamp(there / positions, 0.0, 1.0);
}

// The decode step of a plan at a level. LevelDraft sets the memory of each residency: resident
// parts and ring.
Instance ToInstance(const Plan& plan, int64_t layer_pages, const std::vector<int32_t>& streamed) {
  Instance instance;
  const std::vector<double> wait_ms = AllWaitsMs(plan, layer_pages, streamed);
  std::vector<double> comp_ms;
  for (int p = 0; p < plan.NumParts(); ++p) {
    const PlanPart& part = plan.parts[p];
    instance.blocks.push_back({.kind = InstanceKind(part.block.kind),
                               .layer = part.block.layer,
                               .mb = part.is_kv() ? KvPartMb(plan, p, layer_pages) : Mb(MovableBytes(part))});
    comp_ms.push_back(WaitsForKv(plan, p) ? wait_ms[p] : AddedMs(plan, p));
  }
  for (const PlanDevice& device : plan.devices) {
    instance.devices.push_back({.name = device.name,
                                .disk_mb_per_ms = device.disk_mb_per_ms,
                                .disk_lat_ms = device.disk_lat_ms,
                                .comp_ms = comp_ms,
                                .embed_rows_ms = plan.decode.embed_rows_ms});
  }
  instance.net = {.tx_ms = plan.decode.tx_ms, .lat_ms = plan.decode.lat_ms};
  instance.microbatches = plan.microbatches;
  return instance;
}

// KV parts that stream at a level, or with `on_disk` false the others; ascending.
std::vector<int32_t> KvPartsOnDisk(const Plan& plan, int64_t layer_pages, bool on_disk) {
  std::vector<int32_t> parts;
  for (int p = 0; p < plan.NumParts(); ++p) {
    const PlanDevice& device = DeviceOfPart(plan, p);
    const bool is_there = HasKvOnDisk(device) && plan.parts[p].kv_begin < PositionsAway(plan, device, layer_pages);
    if (plan.parts[p].is_kv() && is_there == on_disk) parts.push_back(p);
  }
  return parts;
}

// A residency under construction, and its time. The level determines which KV parts stream.
class LevelDraft {
 public:
  LevelDraft(const Plan& plan, int64_t layer_pages, const std::vector<int32_t>& streamed)
      : plan_(plan),
        together_(StaysTogether(plan, std::max(plan.microbatches, plan.chunks_per_sweep))),
        instance_(ToInstance(plan, layer_pages, streamed)),
        quick_(instance_),
        resident_(plan.devices.size(), 0),
        stage_streamed_(plan.stages.size(), 0) {
    for (int p = 0; p < plan.NumParts(); ++p) stage_of_.push_back(StageOf(plan, p));
    assignment_ = ToAssignment(
        {.stages = plan.stages, .streamed = streamed, .embedding_by_rows = plan.embedding == EmbeddingPlacement::kByRows}, plan.NumParts());
    for (const int32_t p : KvPartsOnDisk(plan, layer_pages, /*on_disk=*/false)) assignment_.streamed[p] = 0;
    for (const int32_t p : KvPartsOnDisk(plan, layer_pages, /*on_disk=*/true)) assignment_.streamed[p] = 1;
    for (int p = 0; p < plan.NumParts(); ++p) Count(p, +1);
  }

  LevelDraft(const LevelDraft&) = delete;
  LevelDraft& operator=(const LevelDraft&) = delete;

  bool streamed(int part) const { return assignment_.streamed[part] != 0; }
  int stage_of(int part) const { return stage_of_[part]; }
  Bytes resident(int device) const { return resident_[device]; }

  void Set(int part, bool streams) {
    Count(part, -1);
    assignment_.streamed[part] = streams ? 1 : 0;
    Count(part, +1);
  }

  // Whether a search may choose it.
  bool IsFree(int part) const { return !plan_.parts[part].is_kv() && !plan_.parts[part].on_demand(); }

  // Whether the ring has room to stream the part.
  bool MayStream(int part) const {
    const PlanDevice& device = plan_.devices[plan_.stages[stage_of_[part]].device];
    const Bytes beside = together_ ? stage_streamed_[stage_of_[part]] : 0;
    return device.disk_mb_per_ms >= kMinDiskRate && beside + plan_.parts[part].bytes <= device.memory.ring;
  }

  // Milliseconds per step: quick, or by the exact evaluation.
  double QuickMs(SearchBudget& budget) {
    SetMemory();
    const double ms = quick_.MsPerStep(assignment_);
    budget.Spend(quick_.work());
    return ms;
  }
  double ExactMs() {
    SetMemory();
    return Evaluator(instance_).MsPerStep(plan_.stages, assignment_.streamed, assignment_.embedding_by_rows);
  }

  std::vector<int32_t> Streamed() const {
    std::vector<int32_t> parts;
    for (int p = 0; p < plan_.NumParts(); ++p) {
      if (streamed(p)) parts.push_back(p);
    }
    return parts;
  }

 private:
  void Count(int part, int sign) {
    if (plan_.parts[part].is_kv() && !streamed(part)) return;  // it is in KV pages
    const Bytes bytes = sign * MovableBytes(plan_.parts[part]);
    (streamed(part) ? stage_streamed_[stage_of_[part]] : resident_[plan_.stages[stage_of_[part]].device]) += bytes;
  }

  void SetMemory() {
    for (int d = 0; d < plan_.NumDevices(); ++d) {
      instance_.devices[d].mem_mb = std::max(0.0, (static_cast<double>(resident_[d] + plan_.devices[d].memory.ring) - 0.5) / 1e6);
    }
  }

  const Plan& plan_;
  const bool together_;
  Instance instance_;
  QuickEvaluator quick_;
  Assignment assignment_;
  std::vector<int> stage_of_;          // by part
  std::vector<Bytes> resident_;        // by device, of parts
  std::vector<Bytes> stage_streamed_;  // by stage
};

// Memory for a device's parts at a level, after the margin. Negative: not even the pages fit.
Bytes RoomForParts(const Plan& plan, int device, int64_t layer_pages) {
  const PlanMemory& memory = plan.devices[device].memory;
  const int64_t pages = PagesOn(plan, device, layer_pages);
  Bytes pinned = 0;
  for (const int part : PartsOn(plan, device))
    pinned += plan.parts[part].pinned_bytes + (plan.parts[part].on_demand() ? MemoryOf(plan.parts[part]) : 0);
  return plan.devices[device].budget - plan.devices[device].least_margin - (memory.total() - memory.kv - memory.weights - memory.margin) -
         pinned - pages * plan.page_bytes;
}

// Searches one level, starting from the level before.
class KvLevelSearch {
 public:
  KvLevelSearch(const Plan& plan, int64_t layer_pages, const KvLevelOptions& options, LevelDraft& draft)
      : plan_(plan), options_(options), draft_(draft), budget_(options.work, 0, nullptr), random_(options.seed) {
    for (int d = 0; d < plan.NumDevices(); ++d) room_.push_back(RoomForParts(plan, d, layer_pages));
  }

  // Returns the device that cannot make room, if any.
  std::optional<int> Run() {
    std::vector<int32_t> used;
    for (const Stage& stage : plan_.stages) {
      if (std::ranges::find(used, stage.device) == used.end()) used.push_back(stage.device);
    }
    for (const int32_t d : used) {
      while (draft_.resident(d) > room_[d]) {
        if (options_.Ends() || !StreamOneMore(d)) return d;
      }
    }
    for (const int32_t d : used) KeepWhatFits(d);
    Improve();
    return std::nullopt;
  }

 private:
  // The first, the middle and the last resident part of each visit.
  std::vector<int> Candidates(int device) {
    std::vector<int> parts;
    for (const Stage& stage : plan_.stages) {
      std::vector<int> resident;
      for (int p = stage.lo; stage.device == device && p < stage.hi; ++p) {
        if (draft_.IsFree(p) && !draft_.streamed(p) && plan_.parts[p].bytes > 0 && draft_.MayStream(p)) resident.push_back(p);
      }
      if (resident.empty()) continue;
      for (const size_t i : {size_t{0}, resident.size() / 2, resident.size() - 1}) parts.push_back(resident[i]);
    }
    std::ranges::sort(parts);
    parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
    return parts;
  }

  // Streams the part with the least time per byte; the largest if several cost nothing.
  bool StreamOneMore(int device) {
    const double now_ms = draft_.QuickMs(budget_);
    std::optional<int> best;
    std::pair<double, Bytes> best_cost;
    for (const int part : Candidates(device)) {
      draft_.Set(part, true);
      const double more_ms = std::max(0.0, draft_.QuickMs(budget_) - now_ms);
      draft_.Set(part, false);
      const Bytes bytes = plan_.parts[part].bytes;
      const std::pair<double, Bytes> cost = {more_ms / static_cast<double>(bytes), -bytes};
      if (!best || cost < best_cost) best = part, best_cost = cost;
    }
    if (best) draft_.Set(*best, true);
    return best.has_value();
  }

  // Largest first. StreamOneMore may have streamed one part too many.
  void KeepWhatFits(int device) {
    std::vector<int> streamed;
    for (int p = 0; p < plan_.NumParts(); ++p) {
      if (draft_.IsFree(p) && draft_.streamed(p) && plan_.stages[draft_.stage_of(p)].device == device) streamed.push_back(p);
    }
    std::ranges::stable_sort(streamed, std::ranges::greater{}, [this](int p) { return plan_.parts[p].bytes; });
    for (const int p : streamed) {
      if (draft_.resident(device) + plan_.parts[p].bytes <= room_[device]) draft_.Set(p, false);
    }
  }

  // Exchanges a streamed part for a resident one of the same device.
  void Improve() {
    double now_ms = draft_.QuickMs(budget_);
    int misses = 0;
    while (budget_.remaining() > 0 && misses < 40 + 2 * plan_.NumParts() && !options_.Ends()) {
      const int out = random_.Below(plan_.NumParts()), in = random_.Below(plan_.NumParts());
      ++misses;
      budget_.Spend(1);
      const int device = plan_.stages[draft_.stage_of(out)].device;
      if (!draft_.IsFree(out) || !draft_.IsFree(in)) continue;
      if (draft_.streamed(out) || !draft_.streamed(in) || plan_.stages[draft_.stage_of(in)].device != device) continue;
      draft_.Set(in, false);
      const bool may = draft_.MayStream(out);
      draft_.Set(out, true);
      const double ms = may && draft_.resident(device) <= room_[device] ? draft_.QuickMs(budget_) : HUGE_VAL;
      if (ms < now_ms * (1 - 1e-9)) {
        now_ms = ms;
        misses = 0;
      } else {
        draft_.Set(out, false);
        draft_.Set(in, true);
      }
    }
  }

  const Plan& plan_;
  const KvLevelOptions& options_;
  LevelDraft& draft_;
  SearchBudget budget_;
  Random random_;
  std::vector<Bytes> room_;  // by device
};

// Other rules add to the plan's own residency; LIME's continues from the level before. If there is
// no next level, `stuck` is the device without room, if one device is the cause.
std::optional<KvLevel> NextLevel(const Plan& plan, int64_t layer_pages, const KvLevelOptions& options, const KvLevels& before,
                                 std::optional<int>& stuck) {
  LevelDraft draft(plan, layer_pages, (options.rule != kLimeRule ? before.levels.front() : before.levels.back()).residency.streamed);
  if (options.rule != kLimeRule) {
    for (int d = 0; d < plan.NumDevices(); ++d) {
      for (const int32_t part : options.rule(plan, d, RoomForParts(plan, d, 0), layer_pages)) draft.Set(part, true);
    }
  } else if (stuck = KvLevelSearch(plan, layer_pages, options, draft).Run(); stuck) {
    return std::nullopt;
  }
  KvLevel level{.residency = {.layer_pages = layer_pages, .streamed = draft.Streamed()}};
  level.ms_per_step = LevelDraft(plan, layer_pages, level.residency.streamed).ExactMs();
  if (!WithResidency(plan, level.residency).ok() || !std::isfinite(level.ms_per_step)) return std::nullopt;
  return level;
}

}  // namespace

double MeanMs(const KvLevels& levels) {
  double sum_ms = 0;
  for (const KvLevel& level : levels.levels) sum_ms += level.ms_per_step;
  return sum_ms / static_cast<double>(levels.levels.size());
}

double MeanMs(const KvLevels& levels, int64_t from, int64_t to) {
  double sum_ms = 0;
  int64_t at = from, pages = 0;
  for (const KvLevel& level : levels.levels) {
    const int64_t here = std::min(to, level.residency.layer_pages) - at;
    if (here <= 0) continue;
    sum_ms += level.ms_per_step * static_cast<double>(here);
    at += here, pages += here;
  }
  if (pages > 0) return sum_ms / static_cast<double>(pages);
  const auto level = std::ranges::find_if(levels.levels, [&](const KvLevel& of) { return of.residency.layer_pages >= from; });
  return level == levels.levels.end() ? levels.levels.back().ms_per_step : level->ms_per_step;
}

namespace {

// Evicted positions grow in pages.
KvLevels EvictionLevels(const Plan& plan, int max_levels) {
  KvLevels answer;
  const int64_t first = RetainedPages(plan), more = SharedPages(plan), levels = std::min<int64_t>(max_levels, more);
  for (int64_t level = 0, before = first - 1; level <= levels; ++level) {
    const int64_t pages = first + more * level / levels;
    const Plan middle =
        WithEvictedPositions(plan, kPageTokens * (static_cast<double>(before + 1 + pages) / 2 - static_cast<double>(first)));
    answer.levels.push_back(
        {.residency = {.layer_pages = plan.sequences * pages}, .ms_per_step = LevelDraft(middle, plan.sequences * pages, {}).ExactMs()});
    before = pages;
  }
  return answer;
}

}  // namespace

double FirstLevelMs(const Plan& plan) {
  const Residency first = ResidencyOf(plan);
  return LevelDraft(plan, first.layer_pages, first.streamed).ExactMs();
}

KvLevels MakeKvLevels(const Plan& plan, const KvLevelOptions& options) {
  if (!RetainsAllKv(plan)) return EvictionLevels(plan, std::max(1, options.max_levels));
  LIME_CHECK(!IsFixed(plan));
  KvLevels answer;
  std::vector<KvLevel>& levels = answer.levels;
  levels.push_back({.residency = ResidencyOf(plan), .ms_per_step = FirstLevelMs(plan)});
  const int64_t first = levels[0].residency.layer_pages, full = FullLayerPages(plan);
  const int64_t step = std::max<int64_t>(plan.sequences, (full - first + options.max_levels - 1) / std::max(1, options.max_levels));
  if (first < full && std::ranges::any_of(plan.parts, &PlanPart::on_demand)) {
    answer.exhausted = "KV that grows beside parts on demand is not supported";
    return answer;
  }
  for (int64_t pages = first; pages < full;) {
    pages = std::min(full, pages + step);
    if (options.Ends()) {
      answer.exhausted = "the search was stopped";
      break;
    }
    std::optional<KvLevel> level = NextLevel(plan, pages, options, answer, answer.stuck);
    if (!level) {
      Residency all{.layer_pages = pages, .streamed = KvPartsOnDisk(plan, pages, /*on_disk=*/true)};
      for (int p = 0; p < plan.NumParts(); ++p) {
        if (!plan.parts[p].is_kv()) all.streamed.push_back(p);
      }
      std::ranges::sort(all.streamed);
      const absl::Status room = WithResidency(plan, all).status();
      answer.exhausted = absl::StrCat("no residency of this plan has room for ", pages, " KV pages of a layer",
                                      room.ok() ? " besides the parts that stream by this rule" : absl::StrCat(": ", room.message()));
      break;
    }
    levels.push_back(*std::move(level));
  }
  return answer;
}

double MsAtTheEnd(const Plan& plan, const KvLevelOptions& options) {
  const KvLevels first{.levels = {{.residency = ResidencyOf(plan)}}};
  std::optional<int> stuck;
  const std::optional<KvLevel> last = NextLevel(plan, FullLayerPages(plan), options, first, stuck);
  return last ? last->ms_per_step : HUGE_VAL;
}

absl::StatusOr<Plan> Refit(Plan plan, const KvLevelOptions& options) {
  const std::vector<PlanNeed> needs = NeedsOf(plan);
  for (int d = 0; d < plan.NumDevices(); ++d) SetKvOfOthers(needs[d], plan.devices[d].memory);
  Residency first = ResidencyOf(plan);
  LevelDraft draft(plan, first.layer_pages, first.streamed);
  if (KvLevelSearch(plan, first.layer_pages, options, draft).Run())
    return absl::ResourceExhaustedError("memory has no room for the first level");
  first.streamed = draft.Streamed();
  const double ms_per_step = LevelDraft(plan, first.layer_pages, first.streamed).ExactMs();
  LIME_ASSIGN_OR_RETURN(Plan changed, WithResidency(plan, first));
  changed.predicted.ms_per_step = ms_per_step;
  changed.predicted.ms_per_token = ms_per_step / plan.sequences;
  return changed;
}

}  // namespace lime
