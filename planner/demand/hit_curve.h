// How many of the chosen units a layer has in memory, by the number of its places.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lime {

// Hits of `uses` choices, measured with a number of places.
struct HitPoint {
  int32_t places = 0;
  int64_t hits = 0;
};

// The expected share of hits for each number of places: from 0 places to those of all units, it
// does not decrease, and each further place adds at most as much as the one before. So a place can
// be given where it saves most (divide_places.h).
class HitCurve {
 public:
  // A layer without units.
  HitCurve() : shares_{0} {}

  // The smallest such curve that is nowhere below the points, with 0 hits without places. `uses`
  // are all choices; 0: no unit was chosen, and the curve is 0.
  // REQUIRES: points ascend in places, from 1 to `units`; 0 <= hits <= uses.
  static HitCurve Around(std::span<const HitPoint> points, int64_t uses, int32_t units);

  int32_t units() const { return static_cast<int32_t>(shares_.size()) - 1; }
  // Expected share of hits, 0 to 1; with more places than units, that of all units.
  double At(int64_t places) const;
  // What one more place adds to the share.
  double Gain(int64_t places) const { return At(places + 1) - At(places); }

 private:
  std::vector<double> shares_;  // by places
};

// Units that `rows` rows choose together if each chooses `per_token` of `units`, all equally likely:
//   units * (1 - (1 - per_token / units) ^ rows)
// REQUIRES: 0 <= per_token <= units, units > 0, rows >= 0
double ExpectedUnits(int64_t rows, int32_t per_token, int32_t units);

}  // namespace lime
