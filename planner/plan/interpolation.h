// Values measured at some points of a plane, read between and beside them.
#pragma once

#include <span>

namespace lime {

struct GridPoint {
  double x = 0;
  double y = 0;
  double value = 0;
};

// What is assumed beyond the outermost points.
enum class Outside {
  kNearest,  // the value of the nearest point
  kLinear,   // the line through the last two points; never more than in proportion, and never the other way than the coordinate goes
};

// Linear between the points along y at each x, then along x; the points need not fill the grid. Finite and not negative where the points
// are.  REQUIRES: points not empty, sorted by x, then y, coordinates not negative and no two equal; x and y finite, not negative
double Interpolate(std::span<const GridPoint> points, double x, double y, Outside outside);

}  // namespace lime
