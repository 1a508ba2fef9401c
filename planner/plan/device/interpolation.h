// Interpolates values that were measured at some points of a plane.
#pragma once

#include <span>

namespace lime {

struct GridPoint {
  double x = 0;
  double y = 0;
  double value = 0;
};

// How to continue beyond the outermost points.
enum class Outside {
  kNearest,  // the value of the nearest point
  // The line through the last two points. It never grows faster than proportionally to the
  // coordinate, and never falls as the coordinate grows.
  kLinear,
};

// Interpolates linearly along y at each x, then along x. The points need not fill the grid. The
// result is finite and not negative if the values are.  REQUIRES: points not empty, sorted by x,
// then y, unique, coordinates not negative; x and y finite, not negative
double Interpolate(std::span<const GridPoint> points, double x, double y, Outside outside);

}  // namespace lime
