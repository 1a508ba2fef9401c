#include "planner/plan/device/interpolation.h"

#include <algorithm>
#include <vector>

#include "planner/base/check.h"

namespace lime {
namespace {

struct Sample {
  double at = 0;
  double value = 0;
};

// Beyond the measured points a cost does not fall and grows at most proportionally. Clamps the line
// to that range.
double Beyond(const Sample& nearest, double line, double at) {
  if (nearest.at <= 0) return nearest.value;
  const double in_proportion = nearest.value * at / nearest.at;
  return std::clamp(line, std::min(nearest.value, in_proportion), std::max(nearest.value, in_proportion));
}

// REQUIRES: samples not empty, ascending.
double Along(std::span<const Sample> samples, double at, Outside outside) {
  if (samples.size() == 1) return samples.front().value;
  const auto above = std::ranges::upper_bound(samples, at, {}, &Sample::at);
  const auto right = std::clamp(above, samples.begin() + 1, samples.end() - 1);
  const Sample low = *(right - 1), high = *right;
  const double share = (at - low.at) / (high.at - low.at);
  if (share < 0 && outside == Outside::kNearest) return low.value;
  if (share > 1 && outside == Outside::kNearest) return high.value;
  const double line = low.value * (1 - share) + high.value * share;
  if (share < 0) return Beyond(low, line, at);
  if (share > 1) return Beyond(high, line, at);
  return line;
}

}  // namespace

double Interpolate(std::span<const GridPoint> points, double x, double y, Outside outside) {
  LIME_CHECK(!points.empty());
  std::vector<Sample> column, row;  // along y at one x; along x
  for (size_t i = 0; i < points.size(); ++i) {
    column.push_back({points[i].y, points[i].value});
    if (i + 1 < points.size() && points[i + 1].x == points[i].x) continue;
    row.push_back({points[i].x, Along(column, y, outside)});
    column.clear();
  }
  return Along(row, x, outside);
}

}  // namespace lime
