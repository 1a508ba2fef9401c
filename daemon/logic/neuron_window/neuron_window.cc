#include "daemon/logic/neuron_window/neuron_window.h"

#include <algorithm>
#include <utility>

#include "planner/base/check.h"

namespace lime {

absl::StatusOr<std::unique_ptr<NeuronWindow>> NeuronWindow::Create(const Options& options) {
  LIME_RETURN_IF_ERROR(MaskWindow::Check(options.window));
  return std::unique_ptr<NeuronWindow>(new NeuronWindow(options));
}

NeuronWindow::NeuronWindow(const Options& options)
    : options_(options),
      window_(options.window),
      pointer_(static_cast<size_t>(options.window.rows), kNone),
      row_of_(static_cast<size_t>(options.window.neurons), kNone) {
  moves_.reserve(pointer_.size()), loads_.reserve(pointer_.size());
}

bool NeuronWindow::NextRound() {
  if (!window_.NextRound()) return false;
  Place();
  return true;
}

void NeuronWindow::Remember(std::span<const int32_t> ages, int32_t steps) {
  window_.Remember(ages, steps);
  Place();
}

// Neurons that leave give up their rows, and those that come get some.
void NeuronWindow::Place() {
  moves_.clear(), loads_.clear();
  const int32_t used_before = num_used_;
  Delete();
  if (options_.placement == RowPlacement::kCompact) FillGaps(used_before);
  PlaceLoads();
}

void NeuronWindow::Put(int32_t neuron, int32_t row) {
  LIME_CHECK_EQ(NeuronIn(row), kNone) << "row " << row;
  pointer_[static_cast<size_t>(row)] = neuron;
  row_of_[static_cast<size_t>(neuron)] = row;
}

void NeuronWindow::Delete() {
  for (const int32_t neuron : deletes()) {
    int32_t& row = row_of_[static_cast<size_t>(neuron)];
    pointer_[static_cast<size_t>(row)] = kNone;
    row = kNone;
    --num_used_;
  }
}

// Free rows below num_used, ascending, take the last used rows, from the last downward. So no row is
// copied that was itself filled.
void NeuronWindow::FillGaps(int32_t used_before) {
  int32_t from = used_before - 1;
  for (int32_t to = 0; to < num_used_; ++to) {
    if (NeuronIn(to) != kNone) continue;
    while (NeuronIn(from) == kNone) --from;
    const int32_t neuron = NeuronIn(from);
    pointer_[static_cast<size_t>(from)] = kNone;
    Put(neuron, to);
    moves_.push_back({.from = from, .to = to});
  }
}

// The lowest free rows: with kCompact, those after the used ones.
void NeuronWindow::PlaceLoads() {
  int32_t row = 0;
  for (const int32_t neuron : window_.coming()) {
    while (NeuronIn(row) != kNone) ++row;
    Put(neuron, row);
    loads_.push_back({.neuron = neuron, .row = row});
    ++num_used_;
  }
}

void NeuronWindow::SetRows(int32_t rows) {
  for (int32_t row = rows; row < num_rows(); ++row) {
    const int32_t neuron = std::exchange(pointer_[static_cast<size_t>(row)], kNone);
    if (neuron == kNone) continue;
    row_of_[static_cast<size_t>(neuron)] = kNone;
    window_.Drop(neuron);
    --num_used_;
  }
  window_.SetRows(rows);
}

void NeuronWindow::Clear() {
  window_.Clear();
  std::ranges::fill(pointer_, kNone);
  std::ranges::fill(row_of_, kNone);
  num_used_ = 0;
  moves_.clear(), loads_.clear();
}

}  // namespace lime
