#include "planner/neuron_places.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "planner/base/check.h"
#include "planner/base/names.h"
#include "planner/demand/neuron_rows.h"
#include "planner/plan/plan_blocks.h"
#include "planner/plan/sparse_parts.h"
#include "planner/problem/neuron_demand.h"
#include "planner/unit_places.h"

namespace lime {
namespace {

constexpr double kFirstShare = 0.125;            // of all neurons
constexpr double kLeastShare = kFirstShare / 8;  // that is tried without being near a better one
constexpr double kFirstFactor = 2;               // by which memory for neurons is changed at first
constexpr double kLastFactor = 1.03;             // smaller changes do not matter

class NeuronRowsChoice {
 public:
  NeuronRowsChoice(const ModelSpec& spec, const NeuronRowsSearch& search) : spec_(spec), search_(search) {}

  absl::StatusOr<Plan> Run() {
    LIME_RETURN_IF_ERROR(FindLayers());
    std::vector<double> bytes = OfAll(kFirstShare);
    LIME_RETURN_IF_ERROR(Begin(bytes));
    LIME_RETURN_IF_ERROR(Sweep(bytes));
    for (double factor = std::sqrt(kFirstFactor); factor > kLastFactor && MayGoOn(); factor = std::sqrt(factor)) {
      for (size_t group = 0; group < groups_.size(); ++group) LIME_RETURN_IF_ERROR(Improve(factor, group, bytes));
    }
    for (size_t group = 0; groups_.size() > 1 && group < groups_.size(); ++group) LIME_RETURN_IF_ERROR(TryDense(group, bytes));
    LIME_RETURN_IF_ERROR(UseWhatIsLeft());
    return best_;
  }

 private:
  // Layers that share memory.
  struct Group {
    int32_t id = 0;
    std::vector<SparseLayer> layers;
    Bytes all = 0;  // of their neurons
  };

  int32_t GroupOf(int32_t layer) const {
    return static_cast<size_t>(layer) < search_.groups.size() ? search_.groups[static_cast<size_t>(layer)] : 0;
  }

  void Add(int32_t id, const SparseLayer& layer) {
    auto group = std::ranges::find(groups_, id, &Group::id);
    if (group == groups_.end()) group = groups_.insert(groups_.end(), Group{.id = id});
    group->layers.push_back(layer);
    group->all += layer.calibration->neurons * layer.row_bytes;
  }

  std::vector<double> OfAll(double share) const {
    std::vector<double> bytes;
    for (const Group& group : groups_) bytes.push_back(share * static_cast<double>(group.all));
    return bytes;
  }

  absl::Status FindLayers() {
    for (int32_t layer = 0; layer < std::ssize(search_.neurons); ++layer) {
      const int64_t neurons = search_.neurons[static_cast<size_t>(layer)];
      const LayerCalibration* const known = OfLayer(*search_.calibration, layer);
      if (neurons == 0 || known == nullptr) continue;
      if (known->neurons != neurons)
        return Invalid("planning: layer ", layer, " has ", neurons, " neurons, but ", known->neurons,
                       " in the calibration, which is of another model; run `lime calibrate` again");
      const BlockSpec& mlp = spec_.block({BlockKind::kMlp, layer});
      const bool certified = static_cast<size_t>(layer) < search_.deciders.size() && search_.deciders[static_cast<size_t>(layer)].bits > 0;
      const CopiedLayer* const copy = certified ? CopyOfLayer(*search_.calibration, layer) : nullptr;
      const LayerCalibration* const computed = copy != nullptr ? &copy->unproven : known;
      const bool predicted =
          static_cast<size_t>(layer) < search_.predictor_ranks.size() && search_.predictor_ranks[static_cast<size_t>(layer)] > 0;
      const NeuronPlace place{.calibration = computed, .certified = certified || predicted, .on_path = search_.on_path};
      layers_.push_back({.calibration = computed,
                         .row_bytes = NeuronBytes(mlp, certified || predicted),
                         .read_ms = NeuronReadMs(mlp, place, /*load_share=*/0, BurstOf(layer))});
      Add(GroupOf(layer), layers_.back());
    }
    if (!layers_.empty()) return absl::OkStatus();
    return Invalid("planning: the calibration has no layer with bundles; run `lime calibrate` again");
  }

  const BurstCost& BurstOf(int32_t layer) const {
    return static_cast<size_t>(layer) < search_.bursts.size() ? search_.bursts[static_cast<size_t>(layer)] : search_.burst;
  }

  bool MayGoOn() const { return plans_ < search_.most_plans && !search_.ends(); }

  // Less memory until a plan fits.
  absl::Status Begin(std::vector<double>& bytes) {
    while (true) {
      LIME_ASSIGN_OR_RETURN(const bool fits, Try(bytes));
      if (fits) return absl::OkStatus();
      if (!MayGoOn() || std::ranges::max(bytes) < 1)
        return refusal_.ok() ? absl::ResourceExhaustedError("planning: no plan has a finite time") : refusal_;
      for (double& of : bytes) of /= kFirstFactor;
    }
  }

  // The time may have several minima: memory for neurons is taken from other weights, which are blocks.
  absl::Status Sweep(std::vector<double>& bytes) {
    for (double share = 1; share >= kLeastShare && MayGoOn(); share /= kFirstFactor) {
      LIME_ASSIGN_OR_RETURN(const bool better, Try(OfAll(share)));
      if (better) bytes = OfAll(share);
    }
    return absl::OkStatus();
  }

  // Changes the memory of one group.
  absl::Status Improve(double factor, size_t group, std::vector<double>& bytes) {
    const double all = static_cast<double>(groups_[group].all);
    const auto try_with = [&](double of_group) -> absl::StatusOr<bool> {
      std::vector<double> other = bytes;
      other[group] = of_group;
      LIME_ASSIGN_OR_RETURN(const bool better, Try(other));
      if (better) bytes = std::move(other);
      return better;
    };
    bool more = false, better = true;
    while (better && MayGoOn() && bytes[group] < all) {
      LIME_ASSIGN_OR_RETURN(better, try_with(std::min(all, bytes[group] * factor)));
      more = more || better;
    }
    for (better = true; better && !more && MayGoOn() && bytes[group] > 0;) {
      LIME_ASSIGN_OR_RETURN(better, try_with(bytes[group] / factor));
    }
    return absl::OkStatus();
  }

  absl::Status TryDense(size_t group, std::vector<double>& bytes) {
    if (!MayGoOn() || bytes[group] == 0) return absl::OkStatus();
    std::vector<double> other = bytes;
    other[group] = 0;
    if (std::ranges::max(other) == 0) return absl::OkStatus();
    LIME_ASSIGN_OR_RETURN(const bool better, Try(other));
    if (better) bytes = std::move(other);
    return absl::OkStatus();
  }

  // Whether the plan with so many bytes of neurons in each group is the best one until now.
  absl::StatusOr<bool> Try(const std::vector<double>& bytes) {
    std::vector<int64_t> rows(search_.neurons.size(), 0);
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (bytes[g] == 0) continue;
      const auto divided = DivideNeuronRows(groups_[g].layers, search_.batch, static_cast<Bytes>(bytes[g]));
      if (absl::IsResourceExhausted(divided.status())) {
        if (refusal_.ok()) refusal_ = divided.status();
        return false;
      }
      LIME_RETURN_IF_ERROR(divided.status());
      for (size_t i = 0; i < divided->size(); ++i) rows[static_cast<size_t>(groups_[g].layers[i].calibration->layer)] = (*divided)[i];
    }
    return TryRows(rows);
  }

  // `as_good`: a plan that is as fast counts as better.
  absl::StatusOr<bool> TryRows(const std::vector<int64_t>& rows, bool as_good = false) {
    if (rows == tried_) return false;
    tried_ = rows;
    ++plans_;
    absl::StatusOr<Plan> plan = search_.plan(rows);
    if (absl::IsResourceExhausted(plan.status())) {
      refusal_ = plan.status();
      return false;
    }
    LIME_RETURN_IF_ERROR(plan.status());
    const double ms = TimeMs(*plan);
    if (as_good ? ms > best_ms_ : ms >= best_ms_) return false;
    best_ = *std::move(plan), best_rows_ = rows, best_ms_ = ms;
    search_.best();
    return true;
  }

  // A calibration has seen too little text to know of the last neurons, so rows that save nothing by it are
  // given out, too, as evenly as they fit.
  static void SpreadRest(const std::vector<SparseLayer>& layers, Bytes bytes, std::vector<int64_t>& rows) {
    for (size_t i = 0; i < layers.size(); ++i) bytes -= rows[i] * layers[i].row_bytes;
    for (size_t i = 0; i < layers.size(); ++i) {
      const int64_t share = std::max<Bytes>(0, bytes) / static_cast<int64_t>(layers.size() - i) / layers[i].row_bytes;
      const int64_t more = std::min(share, layers[i].calibration->neurons - rows[i]);
      rows[i] += more, bytes -= more * layers[i].row_bytes;
    }
  }

  // Each device divides its neurons' memory, and what its margin has beyond the least one, again.
  absl::Status UseWhatIsLeft() {
    std::vector<int64_t> rows = best_rows_;
    for (int32_t d = 0; d < best_.NumDevices(); ++d) {
      const PlanDevice& device = best_.devices[static_cast<size_t>(d)];
      std::vector<SparseLayer> own;
      Bytes bytes = std::max<Bytes>(0, device.memory.margin - device.least_margin);
      for (const int p : PartsOn(best_, d)) {
        const PlanPart& part = best_.parts[static_cast<size_t>(p)];
        if (!part.sparse()) continue;
        own.push_back(*std::ranges::find(layers_, part.block.layer, [](const SparseLayer& layer) { return layer.calibration->layer; }));
        bytes += MemoryOf(part);
      }
      if (own.empty()) continue;
      LIME_ASSIGN_OR_RETURN(std::vector<int64_t> divided, DivideNeuronRows(own, search_.batch, bytes));
      SpreadRest(own, bytes, divided);
      for (size_t i = 0; i < own.size(); ++i) rows[static_cast<size_t>(own[i].calibration->layer)] = divided[i];
    }
    return search_.ends() ? absl::OkStatus() : TryRows(rows, /*as_good=*/true).status();
  }

  const ModelSpec& spec_;
  const NeuronRowsSearch& search_;
  std::vector<SparseLayer> layers_;
  std::vector<Group> groups_;
  int plans_ = 0;
  std::vector<int64_t> tried_, best_rows_;
  Plan best_;
  double best_ms_ = std::numeric_limits<double>::infinity();
  absl::Status refusal_;
};

}  // namespace

absl::StatusOr<Plan> ChooseNeuronRows(const ModelSpec& spec, const NeuronRowsSearch& search) {
  LIME_CHECK(search.calibration != nullptr);
  return NeuronRowsChoice(spec, search).Run();
}

std::vector<DeciderForm> KnownCopies(const Calibration& calibration, std::span<const DeciderForm> forms) {
  std::vector<DeciderForm> known(forms.begin(), forms.end());
  for (size_t layer = 0; layer < known.size(); ++layer) {
    const CopiedLayer* const copy = CopyOfLayer(calibration, static_cast<int32_t>(layer));
    const bool same = copy != nullptr && known[layer] == DeciderForm{copy->bits, copy->directions};
    if (!same) known[layer] = {};
  }
  return known;
}

absl::StatusOr<Plan> ChooseDeciders(const DeciderSearch& search) {
  Plan best;
  double best_ms = std::numeric_limits<double>::infinity();
  absl::Status refusal;
  int plans = 0;
  const auto try_with = [&](const std::vector<DeciderForm>& deciders) -> absl::StatusOr<bool> {
    ++plans;
    absl::StatusOr<Plan> plan = search.plan(deciders);
    if (absl::IsResourceExhausted(plan.status())) {
      refusal = plan.status();
      return false;
    }
    LIME_RETURN_IF_ERROR(plan.status());
    const double ms = TimeMs(*plan);
    if (ms >= best_ms) return false;
    best = *std::move(plan), best_ms = ms;
    search.best();
    return true;
  };
  std::vector<size_t> layers;  // with copies, the one that proves most first
  for (size_t layer = 0; layer < search.copies.size(); ++layer) {
    if (search.copies[layer].bits > 0) layers.push_back(layer);
  }
  std::ranges::stable_sort(layers, {}, [&](size_t layer) {
    return CopyOfLayer(*search.calibration, static_cast<int32_t>(layer))->unproven.batches.front().active;
  });
  const std::vector<DeciderForm> none(search.copies.size()), all(search.copies.begin(), search.copies.end());
  LIME_RETURN_IF_ERROR(try_with(none).status());
  if (layers.empty()) return best_ms < std::numeric_limits<double>::infinity() ? absl::StatusOr<Plan>(best) : refusal;
  LIME_ASSIGN_OR_RETURN(const bool with_all, try_with(all));
  std::vector<DeciderForm> deciders = with_all ? all : none;
  if (with_all) std::ranges::reverse(layers);  // those that prove least lose their copies first
  for (const size_t layer : layers) {
    if (plans >= search.most_plans) break;
    std::vector<DeciderForm> other = deciders;
    other[layer] = with_all ? DeciderForm() : search.copies[layer];
    LIME_ASSIGN_OR_RETURN(const bool better, try_with(other));
    if (!better) break;
    deciders = std::move(other);
  }
  return best_ms < std::numeric_limits<double>::infinity() ? absl::StatusOr<Plan>(best) : refusal;
}

std::optional<DeciderWish> ParseDecider(std::string_view name) {
  constexpr Names<DeciderWish, 3> kNames = {
      {{DeciderWish::kAuto, "auto"}, {DeciderWish::kDense, "dense"}, {DeciderWish::kCertified, "certified"}}};
  return kNames.Find(name);
}

std::optional<SparsityWish> ParseSparsity(std::string_view name) {
  constexpr Names<SparsityWish, 4> kNames = {{{SparsityWish::kAuto, "auto"},
                                              {SparsityWish::kOff, "off"},
                                              {SparsityWish::kExact, "exact"},
                                              {SparsityWish::kPredicted, "predicted"}}};
  return kNames.Find(name);
}

double PromptMs(const Plan& plan) {
  double ms = plan.predicted.ttft_ms;
  if (plan.prefill_chunk <= 0) return ms;
  const int64_t chunks = (plan.prompt_tokens + plan.prefill_chunk - 1) / plan.prefill_chunk;
  const int64_t together = std::max<int64_t>(1, plan.chunks_per_sweep), sweeps = (chunks + together - 1) / together;
  for (int32_t d = 0; d < plan.NumDevices(); ++d) {
    double bytes = 0;
    for (const int p : PartsOn(plan, d)) {
      const PlanPart& part = plan.parts[static_cast<size_t>(p)];
      if (part.sparse() || part.streamed) bytes += static_cast<double>(part.bytes) * static_cast<double>(part.sparse() ? chunks : sweeps);
    }
    if (bytes > 0) ms = std::max(ms, bytes / 1e6 / plan.devices[static_cast<size_t>(d)].disk_mb_per_ms);
  }
  return ms;
}

SparsityChoice ChooseSparsity(const SparsityTimes& times) {
  if (!times.exact_ms) return {.why = "with sparse MLPs, there is no plan for this memory"};
  if (!times.off_ms) return {.exact = true, .why = "without sparse MLPs, there is no plan for this memory"};
  const bool exact = times.exact_work_ms < times.off_work_ms * (1 - kLeastSparseGain);
  const double own_ms = exact ? *times.exact_ms : *times.off_ms, other_ms = exact ? *times.off_ms : *times.exact_ms;
  const bool by_prompts = exact != (*times.exact_ms < *times.off_ms * (1 - kLeastSparseGain));
  return {.exact = exact,
          .why = absl::StrFormat("%.2f ms a token predicted, %.2f %s sparse MLPs%s", own_ms, other_ms, exact ? "without" : "with",
                                 by_prompts ? "; the prompts decide" : "")};
}

}  // namespace lime
