#include "planner/demand/mask_window.h"

#include <algorithm>

#include "planner/base/check.h"
#include "planner/demand/route_log.h"

namespace lime {

absl::Status MaskWindow::Check(const Options& options) {
  if (options.neurons < 1 || options.neurons > kMostRouteUnits)
    return Invalid("window of neurons: ", options.neurons, " neurons, need 1 to ", kMostRouteUnits);
  if (options.rows < 1 || options.rows > options.neurons)
    return Invalid("window of neurons: ", options.rows, " rows, need 1 to the ", options.neurons, " neurons");
  if (options.masks < 1 || options.masks > kMostWindowMasks)
    return Invalid("window of neurons: ", options.masks, " masks, need 1 to ", kMostWindowMasks);
  return absl::OkStatus();
}

MaskWindow::MaskWindow(const Options& options)
    : options_(options),
      last_use_(static_cast<size_t>(options.neurons), kNever),
      newest_(static_cast<size_t>(options.masks)),
      in_memory_(static_cast<size_t>(options.neurons)) {
  LIME_CHECK(Check(options).ok()) << Check(options).message();
  const auto neurons = static_cast<size_t>(options.neurons), rows = static_cast<size_t>(options.rows);
  mask_.reserve(neurons), leaving_.reserve(rows), coming_.reserve(rows);
}

absl::Status MaskWindow::BeginStep(std::span<const int32_t> mask) {
  LIME_CHECK(!has_round_) << "a round of step " << step_ << " is left";
  LIME_RETURN_IF_ERROR(CheckAscending(mask, options_.neurons));
  ++step_;
  NewestAt(step_) = 0;  // of the mask that leaves the window
  for (const int32_t neuron : mask) {
    int64_t& last = last_use_[static_cast<size_t>(neuron)];
    if (last != kNever && step_ - last < options_.masks) --NewestAt(last);
    last = step_;
  }
  NewestAt(step_) = std::ssize(mask);
  mask_.assign(mask.begin(), mask.end());
  ChooseWindow();
  has_round_ = true, next_ = 0;
  return absl::OkStatus();
}

void MaskWindow::ChooseWindow() {
  const int64_t most = std::min<int64_t>(options_.masks, step_ + 1);
  int64_t neurons = NewestAt(step_);
  for (kept_ = 1; kept_ < most; ++kept_) {
    neurons += NewestAt(step_ - kept_);
    if (neurons > options_.rows) break;
  }
}

bool MaskWindow::NextRound() {
  if (!has_round_) return false;
  const size_t count = std::min(mask_.size() - next_, static_cast<size_t>(options_.rows));
  part_ = std::span(mask_).subspan(next_, count);
  next_ += count;
  has_round_ = next_ < mask_.size();
  leaving_.clear(), coming_.clear();
  for (int32_t neuron = 0; neuron < options_.neurons; ++neuron) {
    if (InMemory(neuron) && !Stays(neuron)) leaving_.push_back(neuron);
  }
  for (const int32_t neuron : leaving_) in_memory_[static_cast<size_t>(neuron)] = false;
  for (const int32_t neuron : part_) {
    if (!InMemory(neuron)) coming_.push_back(neuron);
  }
  for (const int32_t neuron : coming_) in_memory_[static_cast<size_t>(neuron)] = true;
  return true;
}

// Parts of a mask are ranges of it, so its first and last neuron say which are in it.
bool MaskWindow::Stays(int32_t neuron) const {
  const int64_t age = step_ - last_use_[static_cast<size_t>(neuron)];
  if (std::ssize(mask_) <= options_.rows) return age < kept_;
  return age == 0 && neuron >= part_.front() && neuron <= part_.back();
}

int64_t MaskWindow::UnionOf(int32_t masks) const {
  LIME_CHECK(masks >= 1 && masks <= options_.masks) << masks;
  int64_t neurons = 0;
  for (int64_t age = 0; age < std::min<int64_t>(masks, step_ + 1); ++age) neurons += NewestAt(step_ - age);
  return neurons;
}

void MaskWindow::Clear() {
  step_ = kNever, kept_ = 0, has_round_ = false;
  std::ranges::fill(last_use_, kNever);
  std::ranges::fill(newest_, 0);
  std::fill(in_memory_.begin(), in_memory_.end(), false);
  part_ = {}, leaving_.clear(), coming_.clear();
}

}  // namespace lime
