// The median of measurements.
#pragma once

#include <algorithm>
#include <vector>

#include "planner/base/check.h"

namespace lime {

// For an even number of values, the upper of the two middle ones. REQUIRES: at least one value.
inline double Median(std::vector<double> values) {
  LIME_CHECK(!values.empty());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace lime
