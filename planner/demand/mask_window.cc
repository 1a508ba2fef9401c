#include "planner/demand/mask_window.h"

#include <algorithm>
#include <utility>

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
      rows_(options.rows),
      last_use_(static_cast<size_t>(options.neurons), kNever),
      newest_(static_cast<size_t>(options.masks)),
      in_memory_(static_cast<size_t>(options.neurons)) {
  LIME_CHECK(Check(options).ok()) << Check(options).message();
  const auto neurons = static_cast<size_t>(options.neurons), rows = static_cast<size_t>(options.rows);
  mask_.reserve(neurons), held_.reserve(rows), leaving_.reserve(rows), coming_.reserve(rows);
}

absl::Status MaskWindow::BeginStep(std::span<const int32_t> mask) {
  LIME_CHECK(!has_round_) << "a round of step " << step_ << " is left";
  LIME_RETURN_IF_ERROR(CheckAscending(mask, options_.neurons));
  NextMask();
  for (const int32_t neuron : mask) NoteUse(neuron, step_);
  mask_.assign(mask.begin(), mask.end());
  ChooseWindow();
  has_round_ = true, next_ = 0;
  return absl::OkStatus();
}

// The oldest mask leaves the window.
void MaskWindow::NextMask() {
  union_ -= std::exchange(NewestAt(++step_), 0);
}

// The last mask that has the neuron is that of `step`.
void MaskWindow::NoteUse(int32_t neuron, int64_t step) {
  int64_t& last = last_use_[static_cast<size_t>(neuron)];
  if (last != kNever && step_ - last < options_.masks) {
    --NewestAt(last);
  } else {
    ++union_;
  }
  last = step;
  ++NewestAt(step);
}

void MaskWindow::Remember(std::span<const int32_t> ages, int32_t steps) {
  LIME_CHECK(!has_round_) << "a round of step " << step_ << " is left";
  LIME_CHECK(steps >= 1 && steps <= options_.masks) << steps;
  LIME_CHECK_EQ(std::ssize(ages), options_.neurons);
  for (int32_t i = 0; i < steps; ++i) NextMask();
  int64_t used = 0;
  for (int32_t neuron = 0; neuron < options_.neurons; ++neuron) {
    const int32_t age = ages[static_cast<size_t>(neuron)];
    if (age == kNever) continue;
    LIME_CHECK(age >= 0 && age < steps) << "neuron " << neuron << ": " << age;
    NoteUse(neuron, step_ - age), ++used;
  }
  LIME_CHECK_LE(used, rows_);
  mask_.clear(), part_ = {};
  ChooseWindow();
  LetGo();
  for (int32_t neuron = 0; neuron < options_.neurons; ++neuron) {
    if (ages[static_cast<size_t>(neuron)] == kNever || InMemory(neuron)) continue;
    coming_.push_back(neuron);
    Hold(neuron);
  }
}

void MaskWindow::ChooseWindow() {
  const int64_t most = std::min<int64_t>(options_.masks, step_ + 1);
  kept_ = static_cast<int32_t>(most);
  if (union_ <= rows_) return;
  auto at = static_cast<size_t>(step_ % options_.masks);
  int64_t neurons = newest_[at];
  for (kept_ = 1; kept_ < most; ++kept_) {
    at = (at == 0 ? newest_.size() : at) - 1;
    neurons += newest_[at];
    if (neurons > rows_) break;
  }
}

void MaskWindow::Hold(int32_t neuron) {
  in_memory_[static_cast<size_t>(neuron)] = true;
  held_.push_back(neuron);
}

bool MaskWindow::NextRound() {
  if (!has_round_) return false;
  const size_t count = std::min(mask_.size() - next_, static_cast<size_t>(rows_));
  part_ = std::span(mask_).subspan(next_, count);
  next_ += count;
  has_round_ = next_ < mask_.size();
  LetGo();
  for (const int32_t neuron : part_) {
    if (!InMemory(neuron)) coming_.push_back(neuron);
  }
  for (const int32_t neuron : coming_) Hold(neuron);
  return true;
}

// Neurons that do not stay leave memory.
void MaskWindow::LetGo() {
  leaving_.clear(), coming_.clear();
  std::erase_if(held_, [this](int32_t neuron) {
    if (!InMemory(neuron)) return true;
    if (Stays(neuron)) return false;
    leaving_.push_back(neuron);
    in_memory_[static_cast<size_t>(neuron)] = false;
    return true;
  });
  std::ranges::sort(leaving_);
}

// Parts of a mask are ranges of it, so its first and last neuron say which are in it.
bool MaskWindow::Stays(int32_t neuron) const {
  const int64_t age = step_ - last_use_[static_cast<size_t>(neuron)];
  if (std::ssize(mask_) <= rows_) return age < kept_;
  return age == 0 && neuron >= part_.front() && neuron <= part_.back();
}

int64_t MaskWindow::UnionOf(int32_t masks) const {
  LIME_CHECK(masks >= 1 && masks <= options_.masks) << masks;
  if (masks == options_.masks) return union_;
  int64_t neurons = 0;
  for (int64_t age = 0; age < std::min<int64_t>(masks, step_ + 1); ++age)
    neurons += newest_[static_cast<size_t>((step_ - age) % options_.masks)];
  return neurons;
}

void MaskWindow::SetRows(int32_t rows) {
  LIME_CHECK(!has_round_) << "a round of step " << step_ << " is left";
  LIME_CHECK(rows >= 1 && rows <= options_.rows) << rows;
  LIME_CHECK_LE(std::ranges::count_if(held_, [this](int32_t neuron) { return InMemory(neuron); }), rows);
  rows_ = rows;
}

void MaskWindow::Drop(int32_t neuron) {
  LIME_CHECK(!has_round_) << "a round of step " << step_ << " is left";
  in_memory_[static_cast<size_t>(neuron)] = false;  // LetGo, which comes before any Hold, takes it from held_
}

void MaskWindow::Clear() {
  step_ = kNever, kept_ = 0, union_ = 0, has_round_ = false;
  std::ranges::fill(last_use_, kNever);
  std::ranges::fill(newest_, 0);
  std::fill(in_memory_.begin(), in_memory_.end(), false);
  part_ = {}, held_.clear(), leaving_.clear(), coming_.clear();
}

}  // namespace lime
