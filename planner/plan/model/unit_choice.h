// How many units of a block the rows of a step choose.
#pragma once

#include <cmath>
#include <cstdint>

namespace lime {

// The expected number of different units that `rows` rows choose together, if every row chooses
// `per_row` different ones of `units` and all are equally likely: units (1 - (1 - per_row / units)^rows).
//
// Reading: rows of one step choose independently. Real rows agree more, so this is an upper bound in
// practice.  REQUIRES: 1 <= per_row <= units, rows >= 0
inline double DistinctUnits(int64_t units, int64_t per_row, int64_t rows) {
  const auto all = static_cast<double>(units);
  return all * (1 - std::pow(1 - static_cast<double>(per_row) / all, static_cast<double>(rows)));
}

}  // namespace lime
