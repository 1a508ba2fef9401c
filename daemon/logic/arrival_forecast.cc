#include "daemon/logic/arrival_forecast.h"

#include <algorithm>

namespace lime {
namespace {

constexpr double kLeastMs = 0.05;  // to each side: what a timer and a thread that wakes need

}  // namespace

void ArrivalForecast::Waited(int64_t place, double ms) {
  Place& what = places_[static_cast<size_t>(place)];
  what.ms[static_cast<size_t>(what.count++ % kRemembered)] = ms;
}

// The middle ones of the last waits, without the shortest and the longest, and twice as much again to each side.
std::optional<ArrivalForecast::Window> ArrivalForecast::Expect(int64_t place) const {
  const Place& what = places_[static_cast<size_t>(place)];
  if (what.count < kRemembered) return std::nullopt;
  std::array<double, kRemembered> ms = what.ms;
  std::ranges::sort(ms);
  const double low = ms[1], middle = ms[kRemembered / 2], high = ms[kRemembered - 2];
  const double side = std::max(kLeastMs, 2 * (high - low)), most = std::max(kLeastMs, std::min(kMostMs, kMostShare * middle));
  if (high - low > 2 * most) return std::nullopt;
  return Window{.from_ms = std::max(0.0, middle - std::min(side + middle - low, most)),
                .to_ms = middle + std::min(side + high - middle, most)};
}

}  // namespace lime
