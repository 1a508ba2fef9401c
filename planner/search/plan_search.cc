#include "planner/search/plan_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/evaluation/evaluator.h"
#include "planner/search/exhaustive.h"
#include "planner/search/part_groups.h"
#include "planner/search/refining_search.h"

namespace lime {
namespace {

// Share of the time limit that becomes work. A current core needs about half of the limit for it.
constexpr double kShareOfLimit = 0.75;
// Shares of work for starts: per level, and if there is only one level.
constexpr double kStartsOfLevel = 0.4, kStartsAlone = 0.5;

// Work to find a plan to compare with, before the exhaustive search.
constexpr double kIncumbentWork = 10 * SearchBudget::kWorkPerMs;

// An instance with model blocks in few parts, and the matching options.
struct Resolution {
  std::vector<int32_t> begins;  // first parts of its blocks
  Instance instance;
  std::optional<FirstTokenBound> first_token;
  std::optional<MoveCost> move_cost;
  double share = 0;  // of the work
};

class Search {
 public:
  Search(const Instance& instance, const SearchOptions& options)
      : instance_(instance),
        options_(options),
        work_(std::min(options.max_work, std::min(options.time_limit_ms, kMaxTimeLimitMs) * kShareOfLimit * SearchBudget::kWorkPerMs)),
        budget_(work_, options.time_limit_ms, options.elapsed_ms),
        exact_(instance),
        unit_begins_(UnitBegins(instance, options.granularity)) {
    if (options.first_token) first_token_.emplace(options.first_token->problem);
  }

  FoundPlan Run() {
    FoundPlan best;
    if (CannotFit(instance_)) {
      best.optimal = true;
      best.reason = Reason();
      return best;
    }
    RefiningSearch parts(instance_, AnnealerOptions(options_.first_token, options_.move_cost), budget_);
    OfferSeeds(parts);
    const bool small = options_.exhaustive && IsSmall();
    if (small) {
      if (MayMove()) parts.OfferStarts(std::min(kIncumbentWork, 0.2 * work_));
      parts.Improve(std::min(0.02 * work_, kIncumbentWork), options_.good_enough_ms);
      Settle(parts, best);
      Exhaust(best);
    }
    if (!best.optimal) {
      Descend(parts, small);
      Settle(parts, best);
    }
    KeepToSeeds(best);
    if (best.feasible) PreferResident(best);
    if (best.feasible) Tidy(best);
    if (best.feasible && first_token_) best.first_token = FirstTokenPredictor(options_.first_token->problem).Predict(best.plan);
    if (!best.feasible) best.reason = Reason();
    return best;
  }

 private:
  Annealer::Options AnnealerOptions(const std::optional<FirstTokenBound>& first_token, const std::optional<MoveCost>& move_cost) const {
    return {.granularity = options_.granularity,
            .move_cost = move_cost,
            .first_token = first_token ? &*first_token : nullptr,
            .seed = options_.seed};
  }

  bool MayMove() const { return !(options_.move_cost && !options_.move_cost->MayMove()); }

  bool BeginsAtUnits(const StagePlan& plan) const {
    return std::all_of(plan.stages.begin(), plan.stages.end(),
                       [&](const Stage& stage) { return std::binary_search(unit_begins_.begin(), unit_begins_.end(), stage.lo); });
  }

  void OfferSeeds(RefiningSearch& resolution) {
    for (const StagePlan& seed : options_.seeds) {
      if (BeginsAtUnits(seed)) resolution.Offer(ToAssignment(seed, instance_.NumBlocks()), RefiningSearch::kSeed);
    }
  }

  // Model blocks first in one part, then in a few, then in all parts. Each level starts from the
  // best plans of the level before.
  void Descend(RefiningSearch& parts, bool has_starts) {
    const std::vector<Resolution> resolutions = CoarseResolutions();
    std::vector<RefiningSearch::Line> lines;
    double shares = 1;  // of this level and the next ones
    for (size_t i = 0; i < resolutions.size(); ++i) {
      const Resolution& resolution = resolutions[i];
      RefiningSearch search(resolution.instance, AnnealerOptions(resolution.first_token, resolution.move_cost), budget_);
      for (const StagePlan& seed : options_.seeds) {
        search.Offer(ToGroups(ToAssignment(seed, instance_.NumBlocks()), resolution.begins), RefiningSearch::kSeed);
      }
      for (const RefiningSearch::Line& line : lines) search.Offer(ToGroups(line.best.plan, resolution.begins), line.kind);
      const double part = std::max(0.0, budget_.remaining()) * resolution.share / shares;
      shares -= resolution.share;
      if (MayMove()) search.OfferStarts(kStartsOfLevel * part);
      search.Improve((1 - kStartsOfLevel) * part, options_.good_enough_ms);
      lines = search.lines();
      for (RefiningSearch::Line& line : lines) line.best.plan = ToParts(line.best.plan, resolution.begins);
    }
    for (const RefiningSearch::Line& line : lines) parts.Offer(line.best.plan, line.kind);
    if (resolutions.empty() && !has_starts && MayMove()) parts.OfferStarts(kStartsAlone * work_);
    parts.Improve(0.95 * budget_.remaining(), options_.good_enough_ms);
  }

  std::vector<Resolution> CoarseResolutions() const {
    constexpr size_t kFewBlocks = 8;
    std::vector<Resolution> resolutions;
    size_t before = 0;
    for (const auto& [most_groups, share] : {std::pair{1, 0.25}, std::pair{4, 0.6}}) {
      Resolution resolution = {.begins = GroupParts(instance_, most_groups), .share = share};
      const size_t blocks = resolution.begins.size() - 1;
      if (blocks < kFewBlocks || blocks == before || 2 * blocks > instance_.blocks.size()) continue;
      before = blocks;
      resolution.instance = PutTogether(instance_, resolution.begins);
      resolution.first_token = options_.first_token;
      if (resolution.first_token) {
        for (PrefillChunk& chunk : resolution.first_token->problem.chunks) chunk.instance = PutTogether(chunk.instance, resolution.begins);
      }
      resolution.move_cost = options_.move_cost;
      if (resolution.move_cost) {
        resolution.move_cost->home.clear();
        for (size_t p = 0; p < blocks; ++p) resolution.move_cost->home.push_back(options_.move_cost->home[resolution.begins[p]]);
      }
      resolutions.push_back(std::move(resolution));
    }
    return resolutions;
  }

  FoundPlan Exactly(const Assignment& assignment) {
    FoundPlan out = {.plan = ToPlan(assignment)};
    out.ms_per_step = exact_.MsPerStep(out.plan);
    out.feasible = std::isfinite(out.ms_per_step) && FirstTokenInTime(out.plan);
    out.cost = out.ms_per_step;
    for (size_t b = 0; options_.move_cost && b < assignment.device.size(); ++b) {
      if (options_.move_cost->home[b] != assignment.device[b]) out.cost += options_.move_cost->Of(instance_.blocks[b]);
    }
    return out;
  }

  bool FirstTokenInTime(const StagePlan& plan) {
    if (!first_token_) return true;
    const FirstToken first = first_token_->Predict(plan, options_.first_token->most_ms);
    least_first_token_ms_ = std::min(least_first_token_ms_, first.ms);
    return first.feasible && first.ms <= options_.first_token->most_ms;
  }

  // The best plan of the level, if better than `best`. Its order is that of the quick evaluation,
  // up to rounding.
  void Settle(const RefiningSearch& resolution, FoundPlan& best) {
    constexpr double kRounding = 1 + 1e-6;
    for (const RefiningSearch::Line& line : resolution.lines()) {
      const RefiningSearch::Candidate& candidate = line.best;
      if (candidate.cost >= Annealer::kDoesNotFit || (best.feasible && candidate.cost > best.cost * kRounding)) return;
      FoundPlan plan = Exactly(candidate.plan);
      if (plan.feasible && (!best.feasible || plan.cost < best.cost)) best = std::move(plan);
    }
  }

  // The quick evaluation rounds differently, so a seed may be slightly better than the plan found.
  void KeepToSeeds(FoundPlan& best) {
    for (const StagePlan& seed : options_.seeds) {
      if (!BeginsAtUnits(seed)) continue;
      FoundPlan plan = Exactly(ToAssignment(seed, instance_.NumBlocks()));
      if (plan.feasible && (!best.feasible || plan.cost < best.cost)) best = std::move(plan);
    }
  }

  // If everything fits, prefers a plan of equal time without reads: disks wear, and may become
  // slower.
  void PreferResident(FoundPlan& best) {
    constexpr double kAsGood = 1 + 1e-6;
    for (const StagePlan& seed : options_.seeds) {
      if (best.plan.streamed.empty()) return;
      if (!seed.streamed.empty() || !BeginsAtUnits(seed)) continue;
      FoundPlan plan = Exactly(ToAssignment(seed, instance_.NumBlocks()));
      if (!plan.feasible || plan.cost > best.cost * kAsGood) continue;
      plan.optimal = best.optimal;
      best = std::move(plan);
    }
  }

  // Makes streamed blocks resident if that costs nothing.
  void Tidy(FoundPlan& best) {
    constexpr double kTidyWork = 500 * SearchBudget::kWorkPerMs, kTidyShare = 0.2;
    const double trial = static_cast<double>(Evaluator::kSteps) * instance_.NumBlocks() * instance_.microbatches;
    double work = std::min(kTidyWork, kTidyShare * work_);
    Assignment plan = ToAssignment(best.plan, instance_.NumBlocks());
    for (const int32_t block : std::vector<int32_t>(best.plan.streamed)) {
      if ((work -= trial) < 0 || !budget_.InTime()) return;
      plan.streamed[block] = 0;
      FoundPlan tidier = Exactly(plan);
      if (tidier.feasible && tidier.ms_per_step <= best.ms_per_step) {
        tidier.optimal = best.optimal;
        best = std::move(tidier);
      } else {
        plan.streamed[block] = 1;
      }
    }
  }

  bool IsSmall() const {
    constexpr double kMostPlans = 1L << 32;
    return std::pow(2.0 * instance_.NumDevices(), instance_.NumBlocks()) <= kMostPlans;
  }

  void Exhaust(FoundPlan& best) {
    constexpr double kExhaustWork = 800 * SearchBudget::kWorkPerMs;
    SearchBudget budget(std::min(kExhaustWork, work_), options_.time_limit_ms, options_.elapsed_ms);
    const Exhausted all = SearchAll(instance_,
                                    {.granularity = options_.granularity,
                                     .move_cost = options_.move_cost,
                                     .first_token = options_.first_token ? &*options_.first_token : nullptr,
                                     .incumbent_cost = best.feasible ? best.cost : std::numeric_limits<double>::infinity()},
                                    budget);
    least_first_token_ms_ = std::min(least_first_token_ms_, all.least_first_token_ms);
    if (all.better) best = Exactly(*all.better);
    best.optimal = all.complete;
  }

  std::string Reason() {
    if (std::isfinite(least_first_token_ms_)) {
      return absl::StrCat("no plan was found with the first token within ", options_.first_token->most_ms, " ms; the earliest comes after ",
                          least_first_token_ms_, " ms");
    }
    const auto& devices = instance_.devices;
    const bool cold = std::any_of(devices.begin(), devices.end(), [](const auto& device) { return device.embed_rows_ms.has_value(); });
    double have_mb = 0, need_mb = cold ? 0 : instance_.embed_mb;
    for (const Instance::Device& device : devices) have_mb += device.mem_mb;
    for (const Instance::Block& block : instance_.blocks) need_mb += block.kv_mb;
    return absl::StrCat("no plan fits: the devices have ", have_mb, " MB together, the KV cache",
                        cold ? " needs " : " and the embedding need ", need_mb,
                        " MB besides a ring for the streamed blocks on every device that streams");
  }

  const Instance& instance_;
  const SearchOptions& options_;
  const double work_;
  SearchBudget budget_;
  Evaluator exact_;
  std::optional<FirstTokenPredictor> first_token_;
  double least_first_token_ms_ = std::numeric_limits<double>::infinity();  // of plans that fit
  const std::vector<int32_t> unit_begins_;
};

// The most KV that a device can hold, and weights if nothing streams. A device with any block has
// room for one block, resident or in its pool.
double MostHeldMb(const Instance& instance, const Instance::Device& device, double smallest_mb, bool streams) {
  bool holds_one = false;
  for (const Instance::Block& block : instance.blocks) holds_one |= block.mb + block.kv_mb <= device.mem_mb + kMemorySlackMb;
  return holds_one ? device.mem_mb + kMemorySlackMb - (streams ? smallest_mb : 0) : 0;
}

}  // namespace

bool CannotFit(const Instance& instance) {
  const auto& devices = instance.devices;
  const bool streams = std::ranges::any_of(devices, [](const auto& device) { return device.disk_mb_per_ms > 0; });
  const bool by_rows = std::ranges::any_of(devices, [](const auto& device) { return device.embed_rows_ms.has_value(); });
  double kept_mb = by_rows ? 0 : instance.embed_mb, smallest_mb = std::numeric_limits<double>::infinity();
  for (const Instance::Block& block : instance.blocks) {
    const auto fits = [&](const auto& device) { return block.mb + block.kv_mb <= device.mem_mb + kMemorySlackMb; };
    if (std::ranges::none_of(devices, fits)) return true;
    kept_mb += block.kv_mb + (streams ? 0 : block.mb);
    smallest_mb = std::min(smallest_mb, block.mb);
  }
  double room_mb = 0;
  for (const Instance::Device& device : devices) room_mb += MostHeldMb(instance, device, smallest_mb, streams);
  return kept_mb > room_mb;
}

FoundPlan SearchPlan(const Instance& instance, const SearchOptions& options) {
  return Search(instance, options).Run();
}

}  // namespace lime
