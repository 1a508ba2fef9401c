#include "planner/demand/mask_statistics.h"

#include <algorithm>
#include <numeric>

#include "planner/base/check.h"
#include "planner/demand/replay.h"

namespace lime {
namespace {

constexpr int64_t kMostPairs = int64_t{1} << 31;  // sum of the squares of the masks' sizes

// The masks of one layer, in the log's steps of one row.
std::vector<std::vector<int32_t>> MasksOf(const RouteLog& log, int32_t layer) {
  std::vector<std::vector<int32_t>> masks;
  for (int64_t step = 0; step < log.num_steps(); ++step) {
    const std::span<const RouteLog::Visit> visits = log.visits_of(step);
    if (visits.front().rows > 1) continue;
    masks.emplace_back();
    for (const RouteLog::Visit& visit : visits) {
      if (visit.layer != layer) continue;
      const std::span<const int32_t> units = log.units_of(visit);
      masks.back().assign(units.begin(), units.end());
    }
  }
  return masks;
}

}  // namespace

SequenceMasks SampledMasks(std::span<const SequenceMasks> sequences) {
  int64_t pairs = 0;
  for (const SequenceMasks& sequence : sequences) {
    for (const std::vector<int32_t>& mask : sequence) pairs += std::ssize(mask) * std::ssize(mask);
  }
  const int64_t stride = 1 + pairs / kMostPairs;
  SequenceMasks sample;
  int64_t at = 0;
  for (const SequenceMasks& sequence : sequences) {
    for (const std::vector<int32_t>& mask : sequence) {
      if (at++ % stride == 0) sample.push_back(mask);
    }
  }
  return sample;
}

absl::StatusOr<std::vector<double>> UnionShares(Masks masks, int32_t neurons, int32_t most) {
  if (most < 1 || most > std::ssize(masks)) return Invalid("unions of ", most, " masks, need 1 to the ", masks.size(), " masks");
  const MaskWindow::Options options{.neurons = neurons, .rows = neurons, .masks = most};
  LIME_RETURN_IF_ERROR(MaskWindow::Check(options));
  MaskWindow window(options);
  std::vector<int64_t> sums(static_cast<size_t>(most));
  for (size_t step = 0; step < masks.size(); ++step) {
    LIME_RETURN_IF_ERROR(window.BeginStep(masks[step]));
    window.NextRound();
    for (size_t k = 1; k <= std::min(sums.size(), step + 1); ++k) sums[k - 1] += window.UnionOf(static_cast<int32_t>(k));
  }
  std::vector<double> shares;
  for (size_t i = 0; i < sums.size(); ++i)
    shares.push_back(static_cast<double>(sums[i]) / static_cast<double>(masks.size() - i) / static_cast<double>(neurons));
  return shares;
}

int64_t WindowLoads::total() const {
  return std::accumulate(loads.begin(), loads.end(), int64_t{0});
}

double WindowLoads::MeanShareFrom(size_t first, int32_t neurons) const {
  if (first >= loads.size()) return 0;
  const int64_t sum = std::accumulate(loads.begin() + static_cast<int64_t>(first), loads.end(), int64_t{0});
  return static_cast<double>(sum) / static_cast<double>(loads.size() - first) / static_cast<double>(neurons);
}

absl::StatusOr<WindowLoads> LoadsOf(Masks masks, const MaskWindow::Options& options) {
  LIME_RETURN_IF_ERROR(MaskWindow::Check(options));
  MaskWindow window(options);
  WindowLoads out;
  for (const std::vector<int32_t>& mask : masks) {
    LIME_RETURN_IF_ERROR(window.BeginStep(mask));
    int32_t loads = 0;
    while (window.NextRound()) loads += static_cast<int32_t>(window.coming().size());
    out.loads.push_back(loads);
    out.uses += std::ssize(mask);
    out.rows_needed = std::max(out.rows_needed, static_cast<int32_t>(window.UnionOf(options.masks)));
  }
  return out;
}

std::vector<HitCurve> WindowCurvesOf(const RouteLog& log, int32_t masks) {
  const int32_t units = log.shape().units;
  std::vector<HitCurve> curves;
  for (int32_t layer = 0; layer < log.shape().layers; ++layer) {
    const std::vector<std::vector<int32_t>> of_layer = MasksOf(log, layer);
    std::vector<HitPoint> points;
    int64_t uses = 0;
    for (const int32_t rows : CurvePlaces(units)) {
      const absl::StatusOr<WindowLoads> loads = LoadsOf(of_layer, {.neurons = units, .rows = rows, .masks = masks});
      LIME_CHECK(loads.ok()) << loads.status().message();  // the log has checked its units
      uses = loads->uses;
      points.push_back({.places = rows, .hits = uses - loads->total()});
    }
    curves.push_back(uses == 0 ? HitCurve() : HitCurve::Around(points, uses, units));
  }
  return curves;
}

}  // namespace lime
