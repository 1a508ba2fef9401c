#include "planner/demand/hit_curve.h"

#include <algorithm>

#include "planner/base/check.h"

namespace lime {
namespace {

// Whether b is below the line from a to c, or on it. Products stay below 2^62: places are at most
// 2^17 and hits at most 2^44.
bool IsBelow(const HitPoint& a, const HitPoint& b, const HitPoint& c) {
  return (b.hits - a.hits) * (c.places - a.places) <= (c.hits - a.hits) * (b.places - a.places);
}

}  // namespace

HitCurve HitCurve::Around(std::span<const HitPoint> points, int64_t uses, int32_t units) {
  HitCurve curve;
  curve.shares_.assign(static_cast<size_t>(units) + 1, 0.0);
  if (uses == 0) return curve;
  std::vector<HitPoint> hull = {{.places = 0, .hits = 0}};
  int64_t most = 0;
  const auto add = [&hull](const HitPoint& point) {
    while (hull.size() >= 2 && IsBelow(hull[hull.size() - 2], hull.back(), point)) hull.pop_back();
    hull.push_back(point);
  };
  for (const HitPoint& point : points) {
    LIME_CHECK(point.places > hull.back().places && point.places <= units && point.hits >= 0 && point.hits <= uses)
        << point.hits << " hits with " << point.places << " places";
    most = std::max(most, point.hits);
    add({.places = point.places, .hits = most});
  }
  if (hull.back().places < units) add({.places = units, .hits = most});
  for (size_t i = 1; i < hull.size(); ++i) {
    const HitPoint &a = hull[i - 1], &b = hull[i];
    for (int32_t n = a.places + 1; n <= b.places; ++n) {
      const double between = static_cast<double>((b.hits - a.hits) * (n - a.places)) / static_cast<double>(b.places - a.places);
      curve.shares_[static_cast<size_t>(n)] = (static_cast<double>(a.hits) + between) / static_cast<double>(uses);
    }
  }
  return curve;
}

double HitCurve::At(int64_t places) const {
  return shares_[static_cast<size_t>(std::clamp<int64_t>(places, 0, units()))];
}

double ExpectedUnits(int64_t rows, int32_t per_token, int32_t units) {
  LIME_CHECK(rows >= 0 && units > 0 && per_token >= 0 && per_token <= units) << per_token << " of " << units;
  double power = 1, factor = 1 - static_cast<double>(per_token) / units;  // by squares, the same on every platform
  for (; rows > 0; rows >>= 1, factor *= factor) power *= (rows & 1) != 0 ? factor : 1;
  return units * (1 - power);
}

}  // namespace lime
