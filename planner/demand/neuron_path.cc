#include "planner/demand/neuron_path.h"

#include <algorithm>
#include <numeric>

namespace lime {
namespace {

class Path {
 public:
  Path(Masks masks, int32_t neurons)
      : masks_(masks),
        steps_of_(static_cast<size_t>(neurons)),
        together_(static_cast<size_t>(neurons)),
        places_(static_cast<size_t>(neurons), kNone) {
    for (size_t step = 0; step < masks.size(); ++step) {
      for (const int32_t neuron : masks[step]) steps_of_[static_cast<size_t>(neuron)].push_back(step);
    }
    by_uses_.resize(static_cast<size_t>(neurons));
    std::iota(by_uses_.begin(), by_uses_.end(), 0);
    std::ranges::stable_sort(by_uses_, [this](int32_t a, int32_t b) { return Uses(a) > Uses(b); });
  }

  absl::StatusOr<std::vector<int32_t>> Places(const std::function<bool()>& ends) {
    int32_t last = kNone;
    for (int32_t place = 0; place < std::ssize(places_); ++place) {
      if (ends()) return absl::CancelledError("interrupted");
      last = Friend(last);
      if (last == kNone) last = MostActive();
      places_[static_cast<size_t>(last)] = place;
    }
    return places_;
  }

 private:
  static constexpr int32_t kNone = -1;

  int64_t Uses(int32_t neuron) const { return std::ssize(steps_of_[static_cast<size_t>(neuron)]); }
  bool IsLeft(int32_t neuron) const { return places_[static_cast<size_t>(neuron)] == kNone; }

  // The neuron that is left and closest to this one.
  int32_t Friend(int32_t neuron) {
    if (neuron == kNone) return kNone;
    candidates_.clear();
    for (const size_t step : steps_of_[static_cast<size_t>(neuron)]) {
      for (const int32_t other : masks_[step]) {
        if (IsLeft(other) && together_[static_cast<size_t>(other)]++ == 0) candidates_.push_back(other);
      }
    }
    int32_t best = kNone;
    int64_t best_both = 0, best_either = 1;
    for (const int32_t other : candidates_) {
      const int64_t both = together_[static_cast<size_t>(other)], either = Uses(neuron) + Uses(other) - both;
      const int64_t more = both * best_either - best_both * either;
      if (more > 0 || (more == 0 && other < best)) best = other, best_both = both, best_either = either;
    }
    for (const int32_t other : candidates_) together_[static_cast<size_t>(other)] = 0;
    return best;
  }

  int32_t MostActive() {
    while (!IsLeft(by_uses_[next_])) ++next_;
    return by_uses_[next_];
  }

  const Masks masks_;
  std::vector<std::vector<size_t>> steps_of_;  // by neuron
  std::vector<int64_t> together_;              // by neuron: steps that also have the last one
  std::vector<int32_t> places_, by_uses_, candidates_;
  size_t next_ = 0;  // of by_uses_
};

}  // namespace

absl::StatusOr<std::vector<int32_t>> PathPlaces(Masks masks, int32_t neurons, const std::function<bool()>& ends) {
  if (neurons < 1 || neurons > kMostRouteUnits) return Invalid("path of neurons: ", neurons, " neurons, need 1 to ", kMostRouteUnits);
  for (const std::vector<int32_t>& mask : masks) LIME_RETURN_IF_ERROR(CheckAscending(mask, neurons));
  return Path(masks, neurons).Places(ends);
}

}  // namespace lime
