#include "planner/plan_explanation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "planner/base/bytes.h"
#include "planner/base/strings.h"
#include "planner/batches.h"
#include "planner/evaluation/assignment.h"
#include "planner/evaluation/evaluator.h"

namespace lime {
namespace {

constexpr char kNoPlanFits[] = "no plan fits: ";  // begins the reasons of SearchPlan, too
constexpr double kGibMb = static_cast<double>(kGiB) / 1e6;
// A shorter search would show its own limits rather than those of a device.
constexpr double kLeastMsPerSearch = 40, kMostMsPerSearch = 400;
constexpr int kMostPlaces = 48;  // places to try a layer on an unused device

std::string Name(const Instance& instance, int device) {
  const std::string& name = instance.devices[device].name;
  return name.empty() ? absl::StrCat("device ", device) : name.substr(0, 80);
}

std::string Ms(double ms) {
  return absl::StrFormat("%.*f ms", ms < 100 ? 2 : 0, ms);
}

std::string Size(double mb) {
  return FormatBytes(static_cast<Bytes>(std::llround(std::min(mb, 1e12) * 1e6)));
}

class Explainer {
 public:
  Explainer(const Instance& instance, const StagePlan& plan, double ms_per_step, const ExplainOptions& options)
      : instance_(instance), plan_(plan), ms_(ms_per_step), options_(options) {
    for (const Stage& stage : plan.stages) ++visits_[stage.device];
  }

  std::vector<DeviceExplanation> Run() {
    std::vector<DeviceExplanation> all(instance_.NumDevices());
    for (int d = 0; d < instance_.NumDevices(); ++d) all[d] = Explain(d);
    return all;
  }

 private:
  DeviceExplanation Explain(int d) {
    DeviceExplanation out;
    out.used = visits_[d] > 0;
    if (!options_.on_demand) out.alone_ms = Alone(d);
    if (SearchMs(2 * instance_.devices.size()) >= kLeastMsPerSearch) out.one_more_gib_ms = GainOfMemory(d);
    if (!out.used) {
      out.otherwise_ms = WithBestLayerOn(d);
      out.why = WhyLeftOut(d, out);
    } else if (static_cast<size_t>(visits_[d]) == plan_.stages.size()) {
      const bool fits = plan_.streamed.empty() && !options_.on_demand;
      out.why = fits ? "everything fits on it, and no second device would be faster" : "no second device would be faster";
    } else if (SearchMs(visits_.size()) >= kLeastMsPerSearch) {
      out.otherwise_ms = Without(d);
      out.why = WhyUsed(out);
    } else {
      out.why = "used; the time limit is too short to plan without it";
    }
    return out;
  }

  // Time per search, for one search per used device and, if time allows, one with a GiB more per
  // device.
  double SearchMs(size_t searches) const {
    return std::min(kMostMsPerSearch, options_.total_ms / static_cast<double>(std::max<size_t>(1, searches)));
  }
  double SearchMs() const {
    const double all_ms = SearchMs(2 * instance_.devices.size());
    return all_ms >= kLeastMsPerSearch ? all_ms : SearchMs(visits_.size());
  }

  // Plans again with the strategy. For `lime`: a short search from the plan, unchanged or with a
  // device's stages handed on.
  FoundPlan Again(const Instance& changed, std::vector<StagePlan> seeds) const {
    SearchOptions search = Part(options_.search, 1);
    search.time_limit_ms = SearchMs();
    search.good_enough_ms = 0;
    search.seeds = std::move(seeds);
    return options_.strategy == Strategy::kLime ? SearchPlan(changed, search) : PlanBy(options_.strategy, changed, search);
  }

  // The gain of one GiB more. The original plan is searched as long as the one with more memory, so
  // that only memory makes the difference.
  double GainOfMemory(int d) {
    if (!same_ms_) same_ms_ = std::min(ms_, Again(instance_, {plan_}).ms_per_step);
    Instance larger = instance_;
    larger.devices[d].mem_mb += kGibMb;
    const FoundPlan found = Again(larger, {plan_, WithResident(d, kGibMb)});
    return found.feasible ? *same_ms_ - found.ms_per_step : 0;
  }

  // The plan with `mb` more of the streamed blocks on `d` resident, spread over its visits.
  StagePlan WithResident(int d, double mb) const {
    Assignment resident = ToAssignment(plan_, instance_.NumBlocks());
    std::vector<int> streamed;
    double streamed_mb = 0;
    for (int b = 0; b < instance_.NumBlocks(); ++b) {
      if (resident.device[b] != d || !resident.streamed[b]) continue;
      streamed.push_back(b);
      streamed_mb += instance_.blocks[b].mb;
    }
    const double share = streamed_mb > 0 ? std::min(1.0, mb / streamed_mb) : 0;
    double passed_mb = 0, kept_mb = 0;
    for (const int b : streamed) {
      passed_mb += instance_.blocks[b].mb;
      if (kept_mb + instance_.blocks[b].mb > std::min(mb, passed_mb * share)) continue;
      kept_mb += instance_.blocks[b].mb;
      resident.streamed[b] = 0;
    }
    return ToPlan(resident);
  }

  std::optional<double> Without(int d) const {
    Instance smaller = instance_;
    smaller.devices[d].mem_mb = smaller.devices[d].disk_mb_per_ms = 0;
    smaller.devices[d].embed_rows_ms.reset();
    const FoundPlan found = Again(smaller, {HandedOn(d, -1), HandedOn(d, 1)});
    if (!found.feasible) return std::nullopt;
    return found.ms_per_step;
  }

  // The plan with the blocks of `d` on the device of the previous or the next stage.
  StagePlan HandedOn(int d, int direction) const {
    Assignment handed = ToAssignment(plan_, instance_.NumBlocks());
    const int n = instance_.NumBlocks();
    for (int pass = 0; pass < 2; ++pass) {  // the second pass is for an end without a neighbour
      for (int i = 0; i < n; ++i) {
        const int b = direction < 0 ? i : n - 1 - i, from = b + direction;
        if (handed.device[b] == d && from >= 0 && from < n) handed.device[b] = handed.device[from];
      }
      direction = -direction;
    }
    handed.embedding_by_rows = handed.embedding_by_rows && instance_.devices[handed.device[0]].embed_rows_ms.has_value();
    return ToPlan(handed);
  }

  std::optional<double> WithBestLayerOn(int d) const {
    std::vector<int> begins;
    for (int b = 0; b < instance_.NumBlocks(); ++b) {
      if (instance_.blocks[b].kind != Instance::Kind::kHead && (b == 0 || instance_.blocks[b].layer != instance_.blocks[b - 1].layer))
        begins.push_back(b);
    }
    double best = std::numeric_limits<double>::infinity();
    Evaluator evaluator(instance_);
    const size_t stride = std::max<size_t>(1, begins.size() / kMostPlaces);
    for (size_t i = 0; i < begins.size(); i += stride) {
      for (const bool streamed : {false, true}) {
        const StagePlan moved = WithLayerOn(d, begins[i], streamed);
        if (moved.Validate(instance_).ok()) best = std::min(best, evaluator.MsPerStep(moved));
      }
    }
    if (!std::isfinite(best)) return std::nullopt;
    return best;
  }

  StagePlan WithLayerOn(int d, int begin, bool streamed) const {
    Assignment moved = ToAssignment(plan_, instance_.NumBlocks());
    for (int b = begin; b < instance_.NumBlocks() && instance_.blocks[b].layer == instance_.blocks[begin].layer; ++b) {
      moved.device[b] = static_cast<int16_t>(d);
      moved.streamed[b] = streamed ? 1 : 0;
    }
    if (begin == 0) moved.embedding_by_rows = instance_.devices[d].embed_rows_ms.has_value();
    return ToPlan(moved);
  }

  // Everything in memory; the embedding by rows if it does not fit.
  std::optional<double> Alone(int d) const {
    StagePlan alone = {.stages = {{.device = d, .lo = 0, .hi = instance_.NumBlocks()}}, .streamed = {}};
    Evaluator evaluator(instance_);
    double ms = evaluator.MsPerStep(alone);
    if (!std::isfinite(ms) && instance_.devices[d].embed_rows_ms) {
      alone.embedding_by_rows = true;
      ms = evaluator.MsPerStep(alone);
    }
    if (!std::isfinite(ms)) return std::nullopt;
    return ms;
  }

  std::string PerToken(double ms_per_step) const { return Ms(ms_per_step / options_.tokens_per_step); }

  std::string WhyUsed(const DeviceExplanation& device) const {
    if (!device.otherwise_ms) return "without it no plan fits";
    const double more = (*device.otherwise_ms / ms_ - 1) * 100;
    if (more < 0.05) return absl::StrCat("no slower than without it (", PerToken(*device.otherwise_ms), " per token)");
    return absl::StrCat("without it ", PerToken(*device.otherwise_ms), absl::StrFormat(" per token (+%.1f %%)", more));
  }

  std::string WhyLeftOut(int d, const DeviceExplanation& device) const {
    if (options_.strategy != Strategy::kLime) return absl::StrCat(Text(kStrategyNames.Of(options_.strategy)), " does not use it");
    if (!device.otherwise_ms)
      return absl::StrCat("its memory, ", Size(instance_.devices[d].mem_mb), " besides its own needs, does not hold a layer");
    const int other = plan_.stages.front().device;
    return absl::StrCat("with a layer on it the time would be ", PerToken(*device.otherwise_ms), " per token: a layer takes ",
                        Ms(LayerMs(d)), " there and ", Ms(LayerMs(other)), " on ", Name(instance_, other),
                        absl::StrFormat(", and a hop takes %.2f ms", instance_.net.tx_ms + instance_.net.lat_ms));
  }

  // Time of all blocks of the first layer.
  double LayerMs(int d) const {
    double ms = 0;
    for (int b = 0; b < instance_.NumBlocks() && instance_.blocks[b].layer == instance_.blocks[0].layer; ++b)
      ms += instance_.devices[d].comp_ms[b];
    return ms;
  }

  const Instance& instance_;
  const StagePlan& plan_;
  const double ms_;
  const ExplainOptions& options_;
  std::vector<int> visits_ = std::vector<int>(instance_.devices.size());
  std::optional<double> same_ms_;  // the plan after more search
};

// Finds a change that makes a plan possible.
class Remedy {
 public:
  Remedy(const Instance& instance, const ExplainOptions& options) : instance_(instance), options_(options) {
    for (int d = 0; d < instance.NumDevices(); ++d) {
      if (instance.devices[d].mem_mb > instance.devices[largest_].mem_mb) largest_ = d;
    }
  }

  int largest() const { return largest_; }

  // Additional MB on the largest device, in steps of 64 MiB.
  std::optional<double> MoreMemory() const {
    constexpr double kStepMb = 64.0 * 1048576 / 1e6;
    const auto fits = [&](double steps) {
      Instance larger = instance_;
      larger.devices[largest_].mem_mb += steps * kStepMb;
      return Fits(larger);
    };
    double all = instance_.embed_mb;
    for (const Instance::Block& block : instance_.blocks) all += block.mb + block.kv_mb;
    const std::optional<double> steps = Least(std::ceil(all / kStepMb) + 1, fits);
    if (!steps) return std::nullopt;
    return *steps * kStepMb;
  }

  // The context in tokens that fits.
  std::optional<int64_t> LessContext() const {
    constexpr double kStepTokens = 64;
    if (options_.context <= static_cast<int64_t>(kStepTokens)) return std::nullopt;
    const double context = static_cast<double>(options_.context);
    const auto fits = [&](double steps) {
      Instance shorter = instance_;
      for (Instance::Block& block : shorter.blocks)
        block.kv_mb = block.state_mb + (block.kv_mb - block.state_mb) * (std::max(0.0, context - steps * kStepTokens) / context);
      return Fits(shorter);
    };
    const std::optional<double> steps = Least(std::floor((context - 1) / kStepTokens), fits);
    if (!steps) return std::nullopt;
    return options_.context - static_cast<int64_t>(*steps * kStepTokens);
  }

 private:
  // An infinite clock means that the search must end.
  bool Ended() const { return options_.search.elapsed_ms && !std::isfinite(options_.search.elapsed_ms()); }

  bool Fits(const Instance& changed) const {
    if (Ended()) return false;
    SearchOptions search = options_.search;
    search.elapsed_ms = nullptr;
    search.first_token.reset();
    search.seeds.clear();
    search.time_limit_ms = std::min(kMostMsPerSearch, options_.total_ms / 40);
    return changed.Validate().ok() && PlanBy(options_.strategy, changed, search).feasible;
  }

  // The least whole number that fits, by doubling and bisection; nullopt if `most` does not fit.
  template <typename Fits>
  static std::optional<double> Least(double most, Fits&& fits) {
    double low = 0, high = 1;
    while (high < most && !fits(high)) low = std::exchange(high, high * 2);
    high = std::min(high, most);
    if (high == most && !fits(high)) return std::nullopt;
    while (high - low > std::max(1.0, high / 32)) {
      const double middle = std::floor((low + high) / 2);
      (fits(middle) ? high : low) = middle;
    }
    return high;
  }

  const Instance& instance_;
  const ExplainOptions& options_;
  int largest_ = 0;
};

}  // namespace

std::vector<DeviceExplanation> ExplainDevices(const Instance& instance, const StagePlan& plan, double ms_per_step,
                                              const ExplainOptions& options) {
  return Explainer(instance, plan, ms_per_step, options).Run();
}

std::string ExplainInfeasible(const Instance& instance, const std::string& reason, const ExplainOptions& options) {
  double weights = 0, pinned = 0, states = 0, memory = 0;
  for (const Instance::Block& block : instance.blocks) weights += block.mb, pinned += block.kv_mb, states += block.state_mb;
  for (const Instance::Device& device : instance.devices) memory += device.mem_mb;
  const Remedy remedy(instance, options);
  const int largest = remedy.largest();
  std::string text = absl::StrCat(kNoPlanFits, "weights need ", Size(weights), ", and ", Size(pinned), " more must stay in memory (KV of ");
  absl::StrAppend(&text, options.context, " tokens, norms", states > 0 ? ", states" : "", "), but there are ", Size(memory), " on ",
                  instance.NumDevices(), instance.NumDevices() == 1 ? " device" : " devices", "; ", Name(instance, largest), " has ",
                  Size(instance.devices[largest].mem_mb),
                  instance.devices[largest].disk_mb_per_ms > 0 ? "" : " and no disk to stream from");
  const std::optional<double> more = remedy.MoreMemory();
  const std::optional<int64_t> context = pinned > states ? remedy.LessContext() : std::nullopt;
  if (more) absl::StrAppend(&text, "; it would fit with ", Size(*more), " more on ", Name(instance, largest));
  if (context) absl::StrAppend(&text, more ? ", or" : "; it would fit", " with a context of ", *context, " tokens");
  if (options.strategy != Strategy::kLime) absl::StrAppend(&text, "; --strategy lime streams weights that do not fit");
  if (!more && !context) absl::StrAppend(&text, "; ", absl::StripPrefix(reason, kNoPlanFits));
  return text;
}

}  // namespace lime
