#include "coordinator/planning/sparse_search.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/plan/plan_blocks.h"
#include "planner/problem/neuron_demand.h"
#include "planner/unit_places.h"

namespace lime {
namespace {

constexpr int kPlansOfAll = 16, kPlansOfDevice = 6;  // small searches
constexpr int kDeciderChoices = 4;                   // of each of which rows are chosen
constexpr double kLeastShare = 0.125;                // of all neurons, where nothing is known of zeros

class SparsePlanning {
 public:
  explicit SparsePlanning(const SparseSearch& search)
      : search_(search), certified_(search.sparse.decider == DeciderWish::kCertified), layers_(std::ssize(search.sparse.model.neurons)) {}

  absl::StatusOr<Plan> Run() {
    LIME_RETURN_IF_ERROR(FindLayers());
    const bool known = search_.sparse.model.calibration != nullptr;
    if (certified_) choice_.deciders = copies_;
    if (search_.sparse.neuron_rows) {
      LIME_RETURN_IF_ERROR(Try(Rows(*search_.sparse.neuron_rows), 1).status());
    } else if (!known) {
      LIME_RETURN_IF_ERROR(ChooseUncalibrated());
    } else {
      LIME_RETURN_IF_ERROR(ChooseCalibrated());
    }
    return best_;
  }

 private:
  // Null: the layer may be on any device.
  const ClusterDevice* DeviceOf(int32_t layer) const {
    if (search_.whole == nullptr) return nullptr;
    const int part = PartsOf(*search_.whole, {BlockKind::kMlp, layer}).first;
    const std::string& name = search_.whole->devices[static_cast<size_t>(lime::DeviceOf(*search_.whole, part))].name;
    return &*std::ranges::find(search_.devices, name, &ClusterDevice::name);
  }

  template <typename May>
  bool OnItsDevice(int32_t layer, const May& may) const {
    const ClusterDevice* const device = DeviceOf(layer);
    return device != nullptr ? may(*device) : std::ranges::all_of(search_.devices, may);
  }

  // Layers that the calibration does not have stay dense.
  absl::Status FindLayers() {
    const SparseModel& model = search_.sparse.model;
    neurons_ = model.neurons;
    copies_.resize(neurons_.size());
    for (int32_t layer = 0; layer < layers_; ++layer) {
      const auto at = static_cast<size_t>(layer);
      if (neurons_[at] == 0) continue;
      const bool known = model.calibration == nullptr || OfLayer(*model.calibration, layer) != nullptr;
      if (!known || !OnItsDevice(layer, [&](const ClusterDevice& device) { return MayBeSparse(search_.sparse, device, layer); }))
        neurons_[at] = 0;
      if (neurons_[at] == 0) continue;
      if (OnItsDevice(layer, [&](const ClusterDevice& device) { return MayProve(search_.sparse, device, layer, certified_); }))
        copies_[at] = model.copies[at];
      const ClusterDevice* const device = DeviceOf(layer);
      groups_.resize(neurons_.size(), -1), bursts_.resize(neurons_.size());
      if (device != nullptr) groups_[at] = static_cast<int32_t>(device - search_.devices.data());
      bursts_[at] = *BurstCostOf((device != nullptr ? *device : search_.devices.front()).profile);
    }
    if (neurons_.empty() || std::ranges::max(neurons_) == 0)
      return absl::FailedPreconditionError(
          "no device has bundles of the layers that it computes, a measured disk and LIME's kernels; pushes send no bundles: prepare a "
          "store with `lime prepare --bundles` on each device, and name its folder as `weights` in the cluster file");
    const bool any = std::ranges::any_of(copies_, [](const DeciderForm& form) { return form.bits > 0; });
    if (certified_ && !any)
      return absl::FailedPreconditionError(
          "--decider certified: no device has copies of deciders whose zeros its kernels prove; `lime calibrate` and `lime prepare "
          "--bundles` make them");
    return absl::OkStatus();
  }

  std::vector<int64_t> Rows(int64_t most) const {
    std::vector<int64_t> rows = neurons_;
    for (int64_t& of_layer : rows) of_layer = std::min(of_layer, most);
    return rows;
  }

  absl::StatusOr<Plan> PlanWith(const std::vector<int64_t>& rows, double work) {
    choice_.neuron_rows = rows;
    LIME_ASSIGN_OR_RETURN(newest_, search_.plan(choice_, work));
    return newest_;
  }

  void Keep() {
    best_ = newest_, best_ms_ = TimeMs(newest_), best_choice_ = choice_;
    search_.best();
  }

  // Whether it is the best plan until now.
  absl::StatusOr<bool> Try(const std::vector<int64_t>& rows, double work) {
    LIME_RETURN_IF_ERROR(PlanWith(rows, work).status());
    if (TimeMs(newest_) >= best_ms_) return false;
    Keep();
    return true;
  }

  // As much memory for neurons as makes nothing else stream; if the rest streams anyway, an eighth of them, or
  // half of that and so on until it fits.
  absl::Status ChooseUncalibrated() {
    const int64_t all = std::ranges::max(neurons_);
    const auto streams = [](const Plan& plan) { return std::ranges::any_of(plan.parts, &PlanPart::streamed); };
    int64_t rows = std::max<int64_t>(1, static_cast<int64_t>(kLeastShare * static_cast<double>(all)));
    absl::StatusOr<Plan> plan = PlanWith(Rows(rows), 1);
    while (absl::IsResourceExhausted(plan.status()) && rows > 1 && !search_.ends()) plan = PlanWith(Rows(rows /= 2), 1);
    LIME_RETURN_IF_ERROR(plan.status());
    Keep();
    for (int64_t more = 2 * rows; rows < all && !streams(*plan) && !search_.ends(); more *= 2) {
      rows = std::min(all, more);
      plan = PlanWith(Rows(rows), 1);
      if (absl::IsResourceExhausted(plan.status())) break;
      LIME_RETURN_IF_ERROR(plan.status());
      if (!streams(*plan)) Keep();
    }
    return absl::OkStatus();
  }

  // By small searches; then by one that continues from the best of them.
  absl::Status ChooseCalibrated() {
    const std::vector<DeciderForm> copies = KnownCopies(*search_.sparse.model.calibration, copies_);
    const bool any = std::ranges::any_of(copies, [](const DeciderForm& form) { return form.bits > 0; });
    if (any && search_.sparse.decider == DeciderWish::kAuto && search_.sparse.model.predictor == nullptr) {
      const auto with = [&](const std::vector<DeciderForm>& deciders) {
        choice_.deciders = deciders;
        return ChooseRows(kDeciderChoices);
      };
      LIME_RETURN_IF_ERROR(
          ChooseDeciders(
              {.calibration = search_.sparse.model.calibration.get(), .copies = copies, .plan = with, .most_plans = kDeciderChoices})
              .status());
    } else {
      LIME_RETURN_IF_ERROR(ChooseRows(1).status());
    }
    if (search_.ends()) return absl::OkStatus();
    choice_ = best_choice_;
    const absl::Status again = Try(best_choice_.neuron_rows, 1).status();
    return absl::IsResourceExhausted(again) ? absl::OkStatus() : again;
  }

  // `choices`: how often rows are chosen, which share the work of one search.
  absl::StatusOr<Plan> ChooseRows(int choices) {
    const int plans = kPlansOfAll + kPlansOfDevice * static_cast<int>(search_.devices.size());
    const SparseModel& model = search_.sparse.model;
    std::vector<int32_t> ranks;
    if (model.predictor != nullptr) ranks = PredictorRanks(*model.predictor);
    return ChooseNeuronRows(search_.spec,
                            {.neurons = neurons_,
                             .calibration = model.calibration.get(),
                             .deciders = choice_.deciders,
                             .predictor_ranks = ranks,
                             .on_path = model.on_path,
                             .batch = search_.batch,
                             .bursts = bursts_,
                             .groups = groups_,
                             .plan = [&](const std::vector<int64_t>& rows) { return PlanWith(rows, 1.0 / (plans * choices)); },
                             .best =
                                 [&] {
                                   if (TimeMs(newest_) <= best_ms_) Keep();
                                 },
                             .ends = search_.ends,
                             .most_plans = plans});
  }

  const SparseSearch& search_;
  const bool certified_;
  const int64_t layers_;
  std::vector<int64_t> neurons_;     // by layer; 0: it stays dense
  std::vector<DeciderForm> copies_;  // by layer, that its device has
  std::vector<int32_t> groups_;      // by layer: its device
  std::vector<BurstCost> bursts_;
  SparseChoice choice_, best_choice_;
  Plan newest_, best_;
  double best_ms_ = std::numeric_limits<double>::infinity();
};

}  // namespace

absl::StatusOr<Plan> SearchSparsePlan(const SparseSearch& search) {
  return SparsePlanning(search).Run();
}

BlockHomes HomesLike(const Plan& plan) {
  BlockHomes homes;
  for (int32_t d = 0; d < plan.NumDevices(); ++d) homes[plan.devices[static_cast<size_t>(d)].name] = BlocksOn(plan, d);
  return homes;
}

}  // namespace lime
