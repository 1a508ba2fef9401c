// What recorded masks of sparse layers say to the planner: how many neurons a window needs in
// memory, and how many a step loads.
//
// Counts come from MaskWindow, the code of a device, so they are those that the device will have.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/base/status.h"
#include "planner/demand/hit_curve.h"
#include "planner/demand/mask_window.h"
#include "planner/demand/route_log.h"

namespace lime {

// Masks of one layer, one a step; the neurons of each ascend.
using Masks = std::span<const std::vector<int32_t>>;
// Masks of one sequence, one a token.
using SequenceMasks = std::vector<std::vector<int32_t>>;

// Every so many-th mask of all sequences, so that counting pairs of active neurons takes a bounded time.
SequenceMasks SampledMasks(std::span<const SequenceMasks> sequences);

// Entry k - 1: the mean share of the neurons that any of k consecutive masks has, over all such k
// ("aggregated neuron use", s_agg(k) of "LLM in a flash", section 3.1). For k from 1 to `most`, which
// is at most the number of masks. InvalidArgument for masks that are not of the layer, or bounds of
// MaskWindow::Check.
absl::StatusOr<std::vector<double>> UnionShares(Masks masks, int32_t neurons, int32_t most);

struct WindowLoads {
  std::vector<int32_t> loads;  // neurons that each step loads
  int64_t uses = 0;            // neurons of all masks
  int32_t rows_needed = 0;     // the largest union of k consecutive masks

  int64_t total() const;
  // Mean share of the neurons that a step loads, from step `first` (counted from 0) on; 0 without
  // such a step. Once the window is full, that is s_agg(k + 1) - s_agg(k) if all masks stay.
  double MeanShareFrom(size_t first, int32_t neurons) const;
};

// The loads of a layer whose window and memory are `options`. Errors as above.
absl::StatusOr<WindowLoads> LoadsOf(Masks masks, const MaskWindow::Options& options);

// A curve for each layer of the log, as HitCurvesOf makes them for experts: the expected share of a
// mask that is in memory, for each number of rows. So DividePlaces divides rows over layers. The
// window has up to `masks` masks. Only visits of one row count: a prompt reads its layers whole. A
// step without a visit of a layer is an empty mask of it; a layer without any visit has no curve.
std::vector<HitCurve> WindowCurvesOf(const RouteLog& log, int32_t masks);

}  // namespace lime
